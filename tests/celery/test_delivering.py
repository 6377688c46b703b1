"""What becomes of a message, delivered by hand: once, twice, too early, under another id, with nobody to reserve it."""

from __future__ import annotations

import pytest
from celery import Task, chain, group
from celery.backends.base import DisabledBackend
from celery.exceptions import Reject
from guarded.hand import Hand

from oncelery import current_run
from oncelery.celery.message import PARKED
from oncelery.celery.publishing import publish_again
from oncelery.job import Reason, State, Submission
from oncelery.policy import Policy
from oncelery.stores.base import PUBLISH_GRACE

# Duplicates


def test_a_message_delivered_again_takes_no_effect_and_gives_its_result_if_that_was_not_given(hand: Hand) -> None:
    name = hand.name()
    with hand.captured() as sent:
        result = hand.tasks.joining.delay(name, {"n": 1})
    first = hand.deliver()
    # As if its worker had died before it told.
    result.forget()
    for _ in range(2):
        sent.again()

    second, third = hand.deliver(), hand.deliver()

    assert first.value == second.value == result.get(timeout=1) == {"n": 1}
    assert third.state == "IGNORED"
    assert len(hand.told(name)) == 1


@pytest.mark.parametrize("marked", [True, False], ids=["and the broker marks it", "and no broker marks it"])
def test_a_message_delivered_again_lets_its_chain_go_on_where_no_backend_tells_whether_it_has(
    hand: Hand, monkeypatch: pytest.MonkeyPatch, *, marked: bool
) -> None:
    name, after = hand.name(), hand.name()
    hand.tasks.joining.backend = DisabledBackend(hand.app)
    assert hand.once.marks_redeliveries
    monkeypatch.setitem(vars(hand.once), "marks_redeliveries", marked)
    with hand.captured() as sent:
        chain(hand.tasks.joining.si(name), hand.tasks.notifying.si(after, 1)).delay()
    assert hand.deliver().task == "joining"
    # As if its worker had died before it told.
    assert hand.drop() == 1

    sent.again() if marked else sent.copy()
    hand.deliver_all()

    assert (len(hand.told(name)), len(hand.told(after))) == (1, 1)


def test_another_call_under_the_same_id_is_no_copy_and_what_follows_it_is_called(hand: Hand) -> None:
    calls: list[str] = []

    @hand.app.task(name="plain", shared=False)
    def plain(what: str) -> None:
        calls.append(what)

    name, other = hand.name(), hand.name()
    part = hand.tasks.joining.si(other).set(task_id="part-1")
    for n in range(2):
        hand.tasks.joining.apply_async((name,), task_id="order-1", link=plain.si(f"linked {n}"))
        chain(part, plain.si(f"next {n}").set(task_id="part-2")).delay()
        hand.deliver_all()

    assert sorted(calls) == ["linked 0", "linked 1", "next 0", "next 1"]
    assert (len(hand.told(name)), len(hand.told(other))) == (1, 1)


@pytest.mark.parametrize("fails", [True, False])
def test_that_a_run_has_started_is_told_of_the_run_and_not_of_a_copy(hand: Hand, *, fails: bool) -> None:
    states: list[str] = []
    hand.app.conf.task_track_started = True

    @hand.once.task(name="tracked", shared=False)
    def tracked() -> None:
        states.append(result.state)
        if fails:
            raise ValueError

    with hand.captured() as sent:
        result = tracked.delay()
    sent.copy()
    hand.deliver_all()

    assert [*states, result.state] == ["STARTED", "FAILURE" if fails else "SUCCESS"]


@pytest.mark.parametrize("kind", ["", "key"], ids=["a good end", "a bad end"])
def test_a_copy_of_a_message_takes_no_effect_and_leaves_it_to_the_other_to_tell(hand: Hand, kind: str) -> None:
    name = hand.name()
    with hand.captured() as sent:
        result = hand.tasks.raises.delay(name, kind) if kind else hand.tasks.joining.delay(name, 1)
    sent.copy()

    first, second = hand.deliver(), hand.deliver()

    assert (first.state, second.state) == ("FAILURE" if kind else None, "IGNORED")
    assert len(hand.told(name)) == 1
    assert type(result.result) is (KeyError if kind else int)


def test_a_message_sent_by_other_code_is_guarded_all_the_same(hand: Hand) -> None:
    name = hand.name()
    for task_id in ("one", "other"):
        hand.once.send_unguarded("joining", (name, "done"), task_id=task_id)

    delivered = hand.deliver_all()

    assert [delivery.value for delivery in delivered] == ["done", "done"]
    assert len(hand.told(name)) == 1
    assert hand.app.AsyncResult("other").get(timeout=1) == "done"


def test_a_message_sent_by_other_code_may_hold_what_the_tasks_own_serialiser_cannot_write(hand: Hand) -> None:
    hand.app.conf.accept_content = ["json", "application/x-python-serialize"]
    calls: list[complex] = []

    @hand.once.task(name="takes", shared=False, key="name")
    def takes(name: str, number: complex) -> None:  # noqa: ARG001 - what makes it the work it is
        calls.append(number)
        if len(calls) == 1:
            # Now comes another, which has to wait; and then this one is to be tried again.
            hand.once.send_unguarded("takes", ("a number", 1 + 2j), task_id="other", serializer="pickle")
            assert hand.deliver().state == "IGNORED"
            raise Reject("not now", requeue=True)

    hand.once.send_unguarded("takes", ("a number", 1 + 2j), task_id="one", serializer="pickle")
    hand.deliver()
    job = hand.once.ledger.get("one")
    assert job
    publish_again(hand.once, job)
    hand.deliver_all()

    assert calls == [1 + 2j] * 2
    assert hand.app.AsyncResult("other").state == "SUCCESS"


def test_a_message_of_a_job_that_is_running_is_let_go(hand: Hand) -> None:
    with hand.captured() as sent:

        @hand.once.task(name="nested")
        def nested(x: int) -> int:
            sent.again()
            inner = hand.deliver()
            assert (inner.state, hand.waiting()) == ("IGNORED", 0)
            return x

        hand.app.tasks["nested"].delay(1)

    assert hand.deliver().value == 1


def test_a_duplicate_with_an_id_of_its_own_waits_for_the_job_that_is_running(hand: Hand) -> None:
    name = hand.name()

    @hand.once.task(name="nested", key="x")
    def nested(x: str) -> str:
        hand.once.send_unguarded("nested", (x,), task_id="other", headers={"colour": "red"}, priority=3)
        assert hand.deliver().state == "IGNORED"
        return f"{x}!"

    hand.app.tasks["nested"].delay(name)
    assert hand.deliver().value == f"{name}!"

    parked = hand.deliver()
    assert (parked.id, parked.value) == ("other", f"{name}!")
    assert (parked.headers["colour"], parked.headers["eta"] is None) == ("red", False)


def test_a_duplicate_that_waited_for_a_job_that_was_buried_is_run(hand: Hand) -> None:
    runs = []

    @hand.once.task(name="nested")
    def nested(x: int) -> int:
        runs.append(x)
        if len(runs) == 1:
            hand.once.send_unguarded("nested", (x,), task_id="other")
            hand.deliver()
            raise ValueError(x)
        return x

    hand.app.tasks["nested"].delay(1)
    assert hand.deliver().state == "FAILURE"

    assert hand.deliver().value == 1


def test_a_duplicate_that_the_broker_does_not_take_back_is_not_acknowledged(hand: Hand) -> None:
    @hand.once.task(name="nested")
    def nested(x: int) -> int:
        hand.once.send_unguarded("nested", (x,), task_id="other")
        with hand.broker_down():
            refused = hand.deliver()
        assert (refused.state, refused.value.requeue) == ("REJECTED", True)
        return x

    hand.app.tasks["nested"].delay(1)

    assert hand.deliver().value == 1


def test_a_message_that_comes_too_early_is_put_off_and_not_lost(hand: Hand) -> None:
    name = hand.name()
    hand.tasks.joining.apply_async((name,), countdown=60)

    early = hand.deliver()

    assert early.state == "IGNORED"
    assert hand.told(name) == []
    hand.clock.advance(seconds=61)
    assert hand.deliver().state is None
    assert len(hand.told(name)) == 1


# Jobs that nobody reserved


def test_a_job_that_a_worker_accepted_is_published_again_as_it_was_sent(hand: Hand) -> None:
    hand.once.send_unguarded(
        "joining", (hand.name(),), task_id="unknown", queue=hand.queue, priority=3, headers={"colour": "red"}
    )
    seen = []

    @hand.once.task(name="lost")
    def lost() -> None:
        seen.append(current_run().job_id)

    body = hand.deliver()
    assert body.id == "unknown"
    hand.once.send_unguarded("lost", task_id="lost", priority=3, headers={"colour": "red"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hand.app.tasks["lost"], "run", lambda *_: (_ for _ in ()).throw(Reject(requeue=True)))
        hand.deliver()
    hand.clock.advance(hours=2)
    hand.once.sweep()

    again = hand.deliver()

    assert (again.id, again.state, seen) == ("lost", None, ["lost"])
    assert again.headers["colour"] == "red"


def test_the_sweeper_tells_celery_of_a_job_that_was_to_be_cancelled_when_its_worker_died(hand: Hand) -> None:
    result = hand.tasks.joining.delay(hand.name())
    job = hand.job(result)
    hand.once.ledger.begin(Submission(id=job.id, key=job.key, task=job.task), Policy())
    hand.once.jobs.cancel(job.id, reason="not wanted")
    hand.clock.advance(hours=1)

    swept = hand.once.sweep()

    assert (swept.published, swept.failed) == (0, 0)
    assert (hand.job(result).state, hand.job(result).reason) == (State.CANCELLED, "not wanted")
    assert result.state == "REVOKED"


def test_the_sweeper_does_not_publish_what_has_been_the_death_of_too_many(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody dies of reading JSON.
    monkeypatch.setitem(hand.app.conf, "accept_content", ["json", "pickle"])
    result = hand.tasks.joining.apply_async((hand.name(),), serializer="pickle")
    for _ in range(hand.once.settings.max_received):
        hand.once.ledger.received(result.id, limit=9)
    before = hand.waiting()
    hand.clock.advance(hours=2)

    swept = hand.once.sweep()

    assert (swept.published, swept.failed, hand.waiting()) == (0, 0, before)
    assert hand.job(result).reason == Reason.NEVER_STARTED
    assert result.state == "FAILURE"


def test_a_worker_reads_a_resent_message_that_has_no_key(hand: Hand) -> None:
    hand.once.send_unguarded("joining", (hand.name(),), task_id="unknown", headers={"oncelery_resent": True})

    assert hand.deliver().state is None


def test_a_duplicate_waits_however_often_it_was_put_aside(hand: Hand) -> None:
    delivered = []

    @hand.once.task(name="slow", shared=False)
    def slow(number: int) -> None:
        hand.once.send_unguarded("slow", (number,), {}, task_id="duplicate", headers={PARKED: 1100})
        delivered.append(hand.deliver())

    slow.delay(1)
    hand.deliver()

    assert [each.state for each in delivered] == ["IGNORED"]


def test_a_task_replaced_by_more_than_can_be_recorded_fails_before_anything_is_published(hand: Hand) -> None:
    @hand.once.task(name="replaced", bind=True, shared=False)
    def replaced(self: Task[..., None]) -> None:
        raise self.replace(group(hand.tasks.joining.s("x" * 1000) for _ in range(1500)))

    result = replaced.delay()
    hand.deliver()

    assert hand.job(result).state is State.BURIED
    assert hand.waiting() == 0


def test_a_job_whose_message_nobody_can_read_is_a_dead_letter_and_frees_its_key(hand: Hand) -> None:
    name = hand.name()
    result = hand.tasks.joining.delay(name, {"__type__": "datetime", "__value__": "soon"})
    hand.drop()
    hand.clock.now += PUBLISH_GRACE * 2

    swept = hand.once.sweep()

    assert (swept.published, swept.failed) == (0, 0)
    assert (hand.job(result).state, hand.job(result).reason) == (State.BURIED, Reason.FAILED)
    assert "soon" in hand.job(result).error.message  # type: ignore[union-attr]
    assert result.state == "FAILURE"
    assert not hand.tasks.joining.delay(name, "now").existing
