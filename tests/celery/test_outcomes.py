"""How a run ends and what is kept of it: results, errors, an outcome that is hard to record, a cancellation."""

from __future__ import annotations

from typing import Any

import pytest
from celery import chain, chord, group
from celery.backends.base import DisabledBackend
from celery.exceptions import SoftTimeLimitExceeded
from guarded.hand import Hand, Runner
from kombu.exceptions import OperationalError

from oncelery import ResultOmittedError, StoreUnavailableError, TooLargeError, current_run
from oncelery.job import Cause, Reason, State

# Results and errors


@pytest.mark.parametrize("task", ["returns", "returns-unseen"])
def test_a_result_that_is_too_large_is_not_kept_and_its_job_is_completed(hand: Hand, task: str) -> None:
    result = hand.app.tasks[task].delay(hand.name(), "large")

    assert hand.deliver().state is None

    job = hand.job(result)
    assert (job.state, job.result, job.error) == (State.COMPLETED, b"", None)
    assert job.result_omitted.startswith("the result has 2,097,154 bytes, the limit is 1,048,576")


@pytest.mark.parametrize("kind", ["object", "large"])
def test_a_duplicate_gets_none_for_a_result_that_nobody_has_and_the_log_says_so(
    hand: Hand, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = hand.name()
    result = hand.tasks.returns.delay(name, kind)
    hand.deliver()
    result.forget()

    again = hand.tasks.returns.delay(name, kind)
    sent = hand.once.send_unguarded("returns", (name, kind))

    assert (again.id, again.get(timeout=1)) == (result.id, None)
    assert (hand.deliver().state, sent.get(timeout=1)) == (None, None)
    assert caplog.text.count(f"a duplicate of job {result.id} gets None: the result was not kept: ") == 2
    assert len(hand.told(name)) == 1


@pytest.mark.parametrize("follow", ["chain", "link", "chord", "group"])
@pytest.mark.parametrize("immutable", [False, True], ids=["takes the result", "takes none"])
def test_what_follows_is_never_called_with_none_for_a_result_that_nobody_has(
    hand: Hand,
    follow: str,
    immutable: bool,  # noqa: FBT001
) -> None:
    name = hand.name()
    hand.tasks.returns.delay(name, "large").forget()
    hand.deliver()
    hand.app.AsyncResult(hand.jobs()[0].id).forget()
    first, next_one = hand.tasks.returns.s(name, "large"), hand.app.tasks["plain-increment"]
    then = next_one.si(1, name) if immutable else next_one.s(name)

    if follow == "link":
        first.apply_async(link=then)
    elif follow == "chord":
        chord([first], then).delay()
    else:
        chain(first, group(then) if follow == "group" else then).delay()
    replayed = hand.deliver()
    hand.deliver_all()

    assert isinstance(replayed.value, ResultOmittedError) is not immutable
    assert [entry.payload for entry in hand.told(name, "increment")] == ([1] if immutable else [])
    assert len(hand.told(name)) == 1


@pytest.mark.parametrize("ignored", [True, False])
def test_a_call_may_say_itself_whether_its_result_is_wanted(hand: Hand, ignored: bool) -> None:  # noqa: FBT001
    task = hand.tasks.returns if ignored else hand.tasks.returns_unseen
    result = task.apply_async((hand.name(), "object"), ignore_result=ignored)

    # As in Celery: what cannot be stored is a failure where it is to be stored.
    assert hand.deliver().state == (None if ignored else "FAILURE")

    assert hand.job(result).state is State.COMPLETED
    assert "not JSON serializable" in hand.job(result).result_omitted


def test_an_error_that_cannot_be_printed_ends_its_job(hand: Hand) -> None:
    result = hand.tasks.raises.delay(hand.name(), "unspeakable")

    hand.deliver()

    error = hand.job(result).error
    assert error
    assert (hand.job(result).state, error.type) == (State.BURIED, "guarded.app.UnspeakableError")
    assert "cannot be printed" in error.message


def test_an_error_of_great_length_is_cut(hand: Hand) -> None:
    @hand.once.task(name="verbose")
    def verbose() -> None:
        raise ValueError("x" * (1 << 20))

    result = hand.app.tasks["verbose"].delay()
    hand.deliver()

    error = hand.job(result).error
    assert error
    assert len(error.message) + len(error.traceback) < 200_000


def test_a_body_that_cannot_be_read_buries_the_job(hand: Hand) -> None:
    name = hand.name()
    result = hand.tasks.trailing.delay(name, "old")
    hand.tasks.trailing.apply_async((name,), {"payload": "new"}, serializer="pickle")

    assert hand.deliver().state == "FAILURE"

    assert (hand.job(result).state, hand.told(name)) == (State.BURIED, [])


def test_a_rejected_message_of_a_task_that_retries_everything_is_a_dead_letter(hand: Hand) -> None:
    name = hand.name()
    result = hand.tasks.rejects_for_good.delay(name)

    hand.deliver_all()

    assert hand.job(result).state is State.BURIED
    assert len(hand.told(name)) == 1


def test_a_store_that_is_away_while_the_task_uses_it_is_no_failure_of_the_task(hand: Hand) -> None:
    runs = []

    @hand.once.task(name="uses-the-store")
    def uses_the_store() -> str:
        runs.append(current_run().attempt)
        if len(runs) == 1:
            raise StoreUnavailableError
        return "done"

    result = hand.app.tasks["uses-the-store"].delay()
    assert hand.deliver().state == "RETRY"
    hand.clock.advance(seconds=60)

    assert hand.deliver().value == "done"
    assert hand.job(result).past[0].cause is Cause.RETRY


def test_progress_that_cannot_be_told_does_not_stop_the_task(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise StoreUnavailableError

    @hand.once.task(name="tells")
    def tells() -> str:
        with monkeypatch.context() as patch:
            patch.setattr(hand.store, "record", away)
            current_run().progress(1, 2)
        return "done"

    hand.app.tasks["tells"].delay()

    assert hand.deliver().value == "done"


def test_a_step_waits_for_a_store_that_is_away(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    record = hand.store.record

    def away_once(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            raise StoreUnavailableError
        return record(*args, **kwargs)

    monkeypatch.setattr(hand.store, "record", away_once)

    @hand.once.task(name="steps-once")
    def steps_once() -> str:
        return current_run().step("one", lambda: "done")

    hand.app.tasks["steps-once"].delay()

    assert hand.deliver().value == "done"
    assert len(calls) == 2


@pytest.mark.parametrize(
    "options", [{"retry_on": Exception}, {"autoretry_for": (Exception,)}], ids=["ours", "Celery's"]
)
@pytest.mark.parametrize("value", [object(), "x" * (300 << 10)], ids=["of no type", "too large"])
def test_a_step_is_not_done_again_because_its_value_cannot_be_kept(
    hand: Hand, value: object, options: dict[str, Any]
) -> None:
    done: list[object] = []

    def do() -> object:
        done.append(value)
        return value

    @hand.once.task(name="steps-badly", shared=False, **options)
    def steps_badly() -> None:
        current_run().step("one", do)

    result = steps_badly.delay()

    assert hand.deliver_all()[-1].state == "FAILURE"
    assert len(done) == 1
    assert (hand.job(result).state, hand.job(result).reason) == (State.BURIED, Reason.OUTCOME_UNKNOWN)
    assert "step 'one' is done" in hand.job(result).error.message  # type: ignore[union-attr]


def test_a_step_whose_name_is_too_long_is_not_begun(hand: Hand) -> None:
    done: list[int] = []

    @hand.once.task(name="steps-at-length", shared=False)
    def steps_at_length() -> None:
        current_run().step("one" * 100, done.append, 1)

    steps_at_length.delay()

    assert isinstance(hand.deliver().value, TooLargeError)
    assert done == []


# Results that cannot be written


@pytest.mark.parametrize("value", [object(), "x" * (2 << 20)], ids=["of no type", "too large"])
def test_a_task_is_not_run_again_because_its_result_cannot_be_written(hand: Hand, value: object) -> None:
    runs: list[object] = []

    @hand.once.task(name="returns-anything", shared=False, retry_on=(Exception,))
    def returns() -> object:
        runs.append(value)
        return value

    result = returns.delay()
    hand.deliver_all()
    # Its key is not free.
    again = returns.delay()
    hand.deliver_all()

    assert len(runs) == 1
    assert (hand.job(result).state, again.id) == (State.COMPLETED, result.id)


def test_a_result_that_cannot_be_written_does_not_matter_where_no_backend_would_keep_it(hand: Hand) -> None:
    @hand.once.task(name="returns-anything", shared=False, backend=DisabledBackend(hand.app))
    def returns() -> object:
        return object()

    result = returns.delay()

    hand.deliver()

    assert hand.job(result).state is State.COMPLETED


# Runs that are interrupted while they are recorded


class TimeIsUp(BaseException):
    """As that of gevent, which is no Exception."""


def test_an_outcome_at_hand_is_recorded_whatever_interrupts_that(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    settle, strikes = hand.store.settle, [TimeIsUp]

    def struck(*args: Any) -> Any:
        if strikes:
            raise strikes.pop()
        return settle(*args)

    monkeypatch.setattr(hand.store, "settle", struck)
    result = hand.tasks.joining.delay(hand.name(), "done")

    with pytest.raises(TimeIsUp):
        hand.deliver()
    assert hand.job(result).state is State.COMPLETED


# Runs that are taken over


@pytest.mark.parametrize("found", [None, False, {"charged": 500}, 0, ""])
def test_what_verifies_the_effect_of_a_run_gives_its_result_or_lets_the_task_run(hand: Hand, found: object) -> None:
    runs: list[str] = []

    @hand.once.task(name="verified", shared=False, on_takeover=lambda _order: found)
    def charge(order: str) -> str:
        runs.append(order)
        return "charged now"

    result = charge.delay("o-1")
    Runner(hand, hand.job(result))
    hand.clock.advance(hours=1)
    hand.deliver()

    is_to_run = found is None or found is False
    assert runs == ["o-1"] * is_to_run
    assert result.get(timeout=1) == ("charged now" if is_to_run else found)


# Cancelled jobs


def test_a_job_cancelled_before_it_began_is_revoked_when_its_message_comes(hand: Hand) -> None:
    name = hand.name()
    result = hand.tasks.joining.delay(name)
    hand.once.ledger.cancel(result.id, reason="customer asked")

    assert hand.deliver().state == "IGNORED"

    assert result.state == "REVOKED"
    assert "customer asked" in str(result.result)
    assert hand.told(name) == []


def test_a_running_job_that_heeds_its_cancellation_ends_with_the_reason_that_was_given(hand: Hand) -> None:
    @hand.once.task(name="heedful")
    def heedful() -> None:
        run = current_run()
        hand.once.ledger.cancel(run.job_id, reason="customer asked")
        run.progress(1, 2)

    result = hand.app.tasks["heedful"].delay()
    assert hand.deliver().state == "IGNORED"

    assert (hand.job(result).state, hand.job(result).reason) == (State.CANCELLED, "customer asked")
    assert (result.state, "customer asked" in str(result.result)) == ("REVOKED", True)


def test_a_run_that_is_cancelled_does_not_go_on_later(hand: Hand) -> None:
    @hand.once.task(name="heedless", bind=True)
    def heedless(self: Any) -> None:
        hand.once.ledger.cancel(self.request.id)
        raise self.retry(countdown=0)

    result = hand.app.tasks["heedless"].delay()
    hand.deliver_all()

    assert (hand.job(result).state, result.state) == (State.CANCELLED, "REVOKED")
    assert hand.job(result).attempt == 1


def test_a_run_that_was_superseded_leaves_everything_to_the_one_that_took_over(hand: Hand) -> None:
    name = hand.name()

    @hand.once.task(name="slow", lease=1)
    def slow() -> str:
        if current_run().attempt == 1:
            hand.clock.advance(seconds=5)
            hand.once.sweep()
            assert hand.deliver().value == "taken over"
            return "too late"
        return "taken over"

    result = hand.app.tasks["slow"].apply_async(link=hand.tasks.notifying.si(name, "note"))
    assert hand.deliver().state == "IGNORED"
    hand.deliver_all()

    assert result.get(timeout=1) == "taken over"
    assert len(hand.told(name)) == 1


def test_a_store_that_is_away_after_a_run_is_recorded_does_not_make_a_failure_of_it(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, after = hand.name(), hand.name()
    with hand.captured() as sent:
        chain(hand.tasks.joining.si(name, "paid"), hand.tasks.joining.si(after)).delay()

    def strike(*_: object) -> None:
        raise StoreUnavailableError

    with monkeypatch.context() as patch:
        patch.setattr(hand.tasks.joining, "_conclude", strike)
        struck = hand.deliver()

    assert (struck.state, struck.value.requeue) == ("REJECTED", True)
    sent.again()
    assert hand.deliver().value == "paid"
    hand.deliver_all()
    assert (len(hand.told(name)), len(hand.told(after))) == (1, 1)


def test_a_soft_time_limit_of_the_tasks_own_is_its_failure(hand: Hand) -> None:
    @hand.once.task(name="slow", shared=False)
    def slow() -> None:
        raise SoftTimeLimitExceeded

    result = slow.delay()

    assert hand.deliver().state == "FAILURE"
    assert hand.job(result).state is State.BURIED


def test_whoever_waits_for_a_job_that_is_cancelled_before_it_began_is_told_so_at_once(hand: Hand) -> None:
    result = hand.tasks.joining.apply_async((hand.name(),), countdown=3600)

    hand.once.jobs.cancel(result.id, reason="not wanted")

    assert result.state == "REVOKED"


def test_a_job_that_replaced_another_and_is_cancelled_is_told_under_the_id_that_is_waited_for(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []
    monkeypatch.setattr(hand.app.control, "revoke", lambda task_id, **_: ended.append(task_id))

    def replaced(self: Any) -> None:
        self.replace(hand.tasks.joining.si(hand.name()))

    result: Any = hand.once.task(replaced, name="replaced", bind=True, shared=False).delay()
    hand.deliver()
    (job,) = hand.once.jobs.find(task="joining").items

    hand.once.jobs.cancel(job.id, terminate=True)

    assert result.state == "REVOKED"
    assert ended == [result.id]


def test_nobody_is_told_of_a_cancelled_call_that_asked_for_no_result(hand: Hand) -> None:
    silent = hand.tasks.joining.apply_async((hand.name(),), ignore_result=True)

    hand.once.jobs.cancel(silent.id)

    assert hand.job(silent).state is State.CANCELLED
    assert hand.app.AsyncResult(silent.id).state == "PENDING"


def test_a_dead_letter_that_was_discarded_and_is_then_cancelled_stays_a_failure_to_whoever_waits(hand: Hand) -> None:
    failed = hand.tasks.raises.delay(hand.name(), "refused")
    hand.deliver()
    hand.once.dead_letters.discard(failed.id)

    hand.once.jobs.cancel(failed.id)

    assert failed.state == "FAILURE"


def test_a_job_is_cancelled_though_nobody_can_be_told(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OperationalError("the backend does not answer")

    result = hand.tasks.joining.delay(hand.name())
    monkeypatch.setattr(hand.app.backend, "mark_as_revoked", refuse)

    hand.once.jobs.cancel(result.id)

    assert hand.job(result).state is State.CANCELLED


def test_whoever_waits_for_a_terminated_job_is_told_so_though_its_run_cannot_be_ended(hand: Hand) -> None:
    ids: list[str] = []

    def stubborn() -> str:
        hand.once.jobs.cancel(ids[0], terminate=True)
        return "done"

    result: Any = hand.once.task(stubborn, name="stubborn", shared=False).delay()
    ids.append(result.id)

    hand.deliver()

    assert hand.job(result).state is State.CANCELLED
    assert result.state == "REVOKED"
