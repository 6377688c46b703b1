"""What a task has set off, its replacement and its callbacks, when its message is delivered again."""

from __future__ import annotations

from typing import Any

import pytest
from celery import chain, chord, group
from guarded.hand import Hand

from oncelery import JobBuriedError
from oncelery.job import State
from oncelery.stores.memory import MemoryStore

# Replacement


def test_a_task_that_was_replaced_is_published_again_under_its_own_identity(hand: Hand) -> None:
    name = hand.name()
    result = hand.app.tasks["guarded-become"].delay(1, name)
    assert hand.deliver().state == "IGNORED"
    hand.app.control.purge()

    hand.clock.advance(hours=2)
    hand.once.sweep()
    again = hand.deliver()

    assert (again.id, again.task, again.value) == (result.id, "guarded-increment", 2)
    assert len(hand.jobs()) == 2
    assert all(job.state is State.COMPLETED for job in hand.jobs())


def test_a_duplicate_of_a_task_that_was_replaced_is_replaced_in_turn(hand: Hand) -> None:
    name = hand.name()
    hand.app.tasks["guarded-become"].delay(1, name)
    hand.deliver_all()

    result = chain(hand.app.tasks["guarded-become"].s(1, name), hand.app.tasks["guarded-increment"].s(name)).delay()
    hand.deliver_all()

    assert result.get(timeout=1) == 3
    assert [entry.payload for entry in hand.told(name, "increment")] == [1, 2]
    assert len(hand.told(name, "become")) == 1


def test_a_task_may_be_replaced_by_itself(hand: Hand) -> None:
    name = hand.name()
    result = hand.tasks.polls.delay(name, 3)

    hand.deliver_all()

    assert result.get(timeout=1) == 3
    assert len(hand.told(name)) == 3


def test_a_task_known_by_its_id_alone_may_be_replaced_by_itself(hand: Hand) -> None:
    runs = []

    @hand.once.task(name="again", bind=True, key=hand.tasks.TASK_ID)
    def again(self: Any, x: int) -> int:
        runs.append(x)
        if x:
            raise self.replace(self.s(x - 1))
        return 7

    result = hand.app.tasks["again"].delay(2)
    hand.deliver_all()

    assert (result.get(timeout=1), runs) == (7, [2, 1, 0])


def test_a_task_may_be_replaced_by_one_that_is_replaced_by_it(hand: Hand) -> None:
    runs = []

    @hand.once.task(name="there", bind=True, key="order", shared=False)
    def there(self: Any, order: str, stage: int = 1) -> str:
        runs.append(("there", stage))
        if stage == 1:
            raise self.replace(back.s(order))
        return "end"

    @hand.once.task(name="back", bind=True, key="order", shared=False)
    def back(self: Any, order: str) -> None:
        runs.append(("back", 1))
        raise self.replace(there.s(order, stage=2))

    result = there.delay("o-1")
    hand.deliver_all()

    assert result.get(timeout=1) == "end"
    assert runs == [("there", 1), ("back", 1), ("there", 2)]
    assert there.delay("o-1").get(timeout=1) == "end"


@pytest.mark.parametrize("kind", ["group", "chain", "chord"])
def test_a_task_may_be_replaced_by_a_canvas_with_itself_in_it(hand: Hand, kind: str) -> None:
    runs = []

    @hand.once.task(name="grow", bind=True, key="order", shared=False)
    def grow(self: Any, order: str, stage: int = 1) -> int:
        runs.append(stage)
        if stage > 1:
            return stage
        parts = [self.si(order, 2), self.si(order, 3)]
        canvas = {"group": group(parts), "chain": chain(*parts), "chord": chord(parts, self.si(order, 4))}[kind]
        raise self.replace(canvas)

    result = grow.delay("o-1")
    hand.deliver_all()

    assert result.get(timeout=1) == {"group": [2, 3], "chain": 3, "chord": 4}[kind]
    assert sorted(runs) == {"group": [1, 2, 3], "chain": [1, 2, 3], "chord": [1, 2, 3, 4]}[kind]


def test_an_ignored_task_is_ignored_again(hand: Hand) -> None:
    name = hand.name()
    with hand.captured() as sent:
        hand.tasks.ignores.delay(name)
    sent.again()

    assert [delivery.state for delivery in hand.deliver_all()] == ["IGNORED", "IGNORED"]
    assert len(hand.told(name)) == 1


# Callbacks


def ids_of(hand: Hand, task: str) -> list[str]:
    return [delivery.id for delivery in hand.deliver_all() if delivery.task == task]


@pytest.mark.parametrize("links", [1, 3])
def test_a_replayed_parent_publishes_its_callbacks_under_the_same_ids(hand: Hand, links: int) -> None:
    name = hand.name()
    callbacks = [hand.tasks.notifying.si(name, n) for n in range(links)]
    with hand.captured() as sent:
        result = hand.tasks.joining.apply_async((name, 1), link=callbacks)
    first = hand.deliver_all()
    result.forget()
    sent.again()
    second = hand.deliver_all()

    assert [(each.task, each.id) for each in first] == [(each.task, each.id) for each in second]
    assert len(hand.told(name)) == 1 + links


def test_two_equal_callbacks_are_two(hand: Hand) -> None:
    name = hand.name()
    callback = hand.tasks.notifying.si(name, "note")

    hand.tasks.joining.apply_async((name, 1), link=[callback, callback])
    hand.deliver_all()

    assert [entry.payload for entry in hand.told(name)] == [1, "note", "note"]


def test_a_canvas_as_callback_keeps_its_ids_over_a_replay(hand: Hand) -> None:
    name = hand.name()
    note = hand.tasks.notifying
    canvas = chain(note.si(name, "one"), group(note.si(name, "two"), note.si(name, "three")))
    with hand.captured() as sent:
        result = hand.tasks.joining.apply_async((name, 1), link=canvas)
    hand.deliver_all()
    result.forget()
    sent.again()
    hand.deliver_all()

    assert sorted(str(entry.payload) for entry in hand.told(name)) == ["1", "one", "three", "two"]


def test_a_replayed_failure_tells_its_errbacks_under_the_same_ids(hand: Hand) -> None:
    failed = []

    @hand.once.task(name="is-told", key=hand.tasks.TASK_ID)
    def is_told(failed_id: str) -> None:
        failed.append(failed_id)

    with hand.captured() as sent:
        result = hand.tasks.raises.apply_async((hand.name(), "key"), link_error=hand.app.tasks["is-told"].s())
    hand.deliver_all()
    sent.again()
    replayed = hand.deliver()
    hand.deliver_all()

    # The same error, for somebody may have seen it; without a trace of it, that of a dead letter.
    assert type(replayed.value) is KeyError
    result.forget()
    sent.again()
    assert type(hand.deliver().value) is JobBuriedError
    hand.deliver_all()
    assert failed == [result.id]


def test_a_callback_may_be_handed_what_no_key_can_hold(hand: Hand) -> None:
    seen = []

    @hand.once.task(name="nan", key=hand.tasks.TASK_ID)
    def nan() -> float:
        return float("nan")

    @hand.once.task(name="seen", key=hand.tasks.TASK_ID)
    def see(x: float) -> None:
        seen.append(x)

    hand.app.tasks["nan"].apply_async(link=hand.app.tasks["seen"].s())
    hand.deliver_all()

    assert len(seen) == 1


def test_a_signature_that_was_used_as_a_callback_can_be_used_again(hand: Hand) -> None:
    name = hand.name()
    callback = hand.tasks.notifying.si(name, "note")

    for n in (1, 2):
        hand.tasks.asks_again.apply_async((f"{name}-{n}", 0), link=callback)
    hand.deliver_all()

    assert len(hand.told(name)) == 2


# A ledger that has lost the job of a run


@pytest.mark.parametrize("is_done", [True, False])
def test_a_run_whose_work_another_job_does_since_the_ledger_has_lost_it_has_the_result_of_that_job(
    hand: Hand, *, is_done: bool
) -> None:
    """While the other one runs, this one is put aside."""

    def charge(order: str) -> str:
        if task.request.id == "second":
            return f"{order} by the second"
        hand.once.ledger.store = MemoryStore(clock=hand.clock)
        task.apply_async((order,), task_id="second")
        if is_done:
            hand.deliver()
        return f"{order} by the first"

    task: Any = hand.once.task(charge, name=f"charge-{hand.name()}", shared=False, key="order")
    task.apply_async(("order-1",), task_id="first")

    delivered = hand.deliver_all()

    assert hand.app.AsyncResult("first").get(timeout=1) == "order-1 by the second"
    assert [message.id for message in delivered if message.state is None][-1] == "first"
    assert [job.id for job in hand.jobs()] == ["second"]


def test_a_run_whose_job_the_ledger_has_lost_is_retried_with_its_message(hand: Hand) -> None:
    first = iter([True])

    def charge(order: str, *, amount: int) -> str:
        if not next(first, False):
            return f"{order}: {amount}"
        hand.once.ledger.store = MemoryStore(clock=hand.clock)
        raise OSError

    task: Any = hand.once.task(charge, name=f"charge-{hand.name()}", shared=False, retry_on=OSError)
    job_id = task.delay("order-1", amount=5).id
    assert hand.deliver().state == "RETRY"
    hand.drop()

    hand.clock.advance(hours=2)
    hand.once.sweep()
    hand.deliver()

    assert hand.app.AsyncResult(job_id).get(timeout=1) == "order-1: 5"
