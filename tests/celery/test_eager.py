from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import chain, group
from guarded.hand import Hand

from oncelery import DuplicateTaskError, PayloadMismatchError
from oncelery.errors import StoreUnavailableError
from oncelery.job import State


@pytest.fixture
def eager(hand: Hand) -> Hand:
    """Give a world in which every call runs at once, where it is made."""
    hand.app.conf.task_always_eager = True
    hand.app.conf.task_store_eager_result = True
    return hand


def test_an_eager_duplicate_has_the_id_and_the_result_of_the_first(eager: Hand) -> None:
    name = eager.name()

    first = eager.tasks.joining.delay(name, {"n": 1})
    second = eager.tasks.joining.delay(name, {"n": 1})

    assert first.id == second.id
    assert first.get() == second.get() == {"n": 1}
    assert (first.existing, second.existing) == (False, True)
    assert len(eager.told(name)) == 1


def test_apply_runs_a_task_once(hand: Hand) -> None:
    name = hand.name()

    results = [hand.tasks.joining.apply((name, "done")).get() for _ in range(2)]

    assert results == ["done", "done"]
    assert len(hand.told(name)) == 1


def test_an_eager_call_has_its_callers_key(eager: Hand) -> None:
    task = eager.tasks.asks_otherwise
    first = task.apply_async(("a", 0), idempotency_key="evt-1")

    assert task.apply_async(("a", 0), idempotency_key="evt-1").id == first.id
    assert task.apply_async(("a", 0), idempotency_key="evt-2").id != first.id
    with pytest.raises(PayloadMismatchError):
        task.apply_async(("b", 0), idempotency_key="evt-1")


@pytest.mark.parametrize("when", [{"countdown": 60}, {"eta": datetime.now(UTC) + timedelta(days=1)}])
def test_an_eager_call_does_not_wait_for_its_time(eager: Hand, when: dict[str, Any]) -> None:
    name = eager.name()

    assert eager.tasks.joining.apply_async((name, "done"), **when).get() == "done"
    assert len(eager.told(name)) == 1


def test_an_eager_retry_does_not_wait_for_its_time(eager: Hand) -> None:
    name = eager.name()

    result = eager.tasks.asks_again.delay(name, 2, countdown=60)

    assert result.get() == 2
    assert [entry.attempt for entry in eager.told(name)] == [1, 2, 3]


def test_an_eager_retry_of_a_policy_does_not_wait_for_its_time(eager: Hand) -> None:
    runs = []

    @eager.once.task(name="flaky", retry_on=ValueError)
    def flaky() -> int:
        runs.append(1)
        if len(runs) < 3:
            raise ValueError
        return len(runs)

    assert eager.app.tasks["flaky"].delay().get() == 3


def test_an_eager_task_that_fails_is_a_dead_letter_and_its_error_reaches_the_caller(eager: Hand) -> None:
    result = eager.tasks.raises.delay(eager.name(), "key")

    with pytest.raises(KeyError):
        result.get()
    assert eager.job(result).state is State.BURIED


def test_a_store_that_is_away_after_an_eager_run_is_told_to_the_caller_for_no_message_comes_again(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def strike(*_: object) -> None:
        raise StoreUnavailableError

    monkeypatch.setattr(hand.tasks.joining, "_conclude", strike)

    with pytest.raises(StoreUnavailableError):
        hand.tasks.joining.apply((hand.name(),)).get()


def test_an_error_that_is_to_propagate_does(eager: Hand) -> None:
    eager.app.conf.task_eager_propagates = True

    with pytest.raises(KeyError):
        eager.tasks.raises.delay(eager.name(), "key")

    (job,) = eager.jobs()
    assert job.state is State.BURIED


def test_an_eager_task_that_calls_itself_as_a_task_joins_itself(eager: Hand) -> None:
    inner = []

    @eager.once.task(name="inward", bind=True)
    def inward(self: Any, x: int) -> int:
        inner.append(self.delay(x))
        return x

    outer = eager.app.tasks["inward"].delay(1)

    assert outer.get() == 1
    assert (inner[0].id, inner[0].existing) == (outer.id, True)


def test_an_eager_duplicate_under_an_id_of_its_own_of_a_running_job_is_refused(eager: Hand) -> None:
    seen: list[Any] = []

    @eager.once.task(name="inward", bind=True)
    def inward(self: Any, x: int) -> int:
        seen.append(self.apply((x,)).result)
        return x

    outer = eager.app.tasks["inward"].delay(1)

    assert outer.get() == 1
    assert isinstance(seen[0], DuplicateTaskError)
    assert seen[0].job_id == outer.id


def test_an_eager_trailing_job_runs_after_the_one_before_it(eager: Hand) -> None:
    order: list[int] = []

    @eager.once.task(name="front", key="x", on_duplicate="trail")
    def front(x: str, payload: int) -> int:
        if payload == 1:
            eager.app.tasks["front"].delay(x, 2)
        order.append(payload)
        return payload

    assert eager.app.tasks["front"].delay("x", 1).get() == 1
    assert order == [1, 2]


@pytest.mark.parametrize("kind", ["plain", "guarded"])
def test_an_eager_canvas_gives_what_it_gives_without_us(eager: Hand, kind: str) -> None:
    name = eager.name()
    increment, total = eager.app.tasks[f"{kind}-increment"], eager.app.tasks[f"{kind}-total"]

    assert chain(increment.s(1, name), increment.s(name)).delay().get() == 3
    assert group(increment.s(5, name), increment.s(6, name)).delay().get() == [6, 7]
    assert (group(increment.s(5, name), increment.s(6, name)) | total.s(name)).delay().get() == 13
    assert eager.app.tasks[f"{kind}-become"].apply((1, name)).get() == 2


def test_an_eager_callback_runs_and_its_signature_can_be_used_again(eager: Hand) -> None:
    name = eager.name()
    callback = eager.tasks.notifying.si(name, "note")

    for n in (1, 2):
        eager.tasks.asks_again.apply_async((f"{name}-{n}", 0), link=callback)

    assert len(eager.told(name)) == 2
