"""What becomes of a message, delivered by hand: once, twice, too early, under another id, with broker or store away."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from celery import chain, group
from celery.exceptions import Reject, SoftTimeLimitExceeded
from guarded.hand import Hand

from oncelery import JobBuriedError, StoreUnavailableError, current_run
from oncelery.job import Cause, Query, Reason, State, Submission
from oncelery.policy import Policy


def count(hand: Hand) -> int:
    return len(hand.once.ledger.find(Query()).items)


# Duplicates


def test_a_message_delivered_twice_takes_effect_once_and_gives_its_result_twice(hand: Hand) -> None:
    name = hand.name()
    with hand.captured() as sent:
        hand.tasks.joining.delay(name, {"n": 1})
    sent.again()

    first, second = hand.deliver(), hand.deliver()

    assert first.value == second.value == {"n": 1}
    assert first.state is second.state is None
    assert len(hand.told(name)) == 1


def test_a_message_sent_by_other_code_is_guarded_all_the_same(hand: Hand) -> None:
    name = hand.name()
    for task_id in ("one", "other"):
        hand.once.send_task("joining", (name, "done"), task_id=task_id)

    delivered = hand.deliver_all()

    assert [delivery.value for delivery in delivered] == ["done", "done"]
    assert len(hand.told(name)) == 1
    assert hand.app.AsyncResult("other").get(timeout=1) == "done"


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
        hand.once.send_task("nested", (x,), task_id="other", headers={"colour": "red"}, priority=3)
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
            hand.once.send_task("nested", (x,), task_id="other")
            hand.deliver()
            raise ValueError(x)
        return x

    hand.app.tasks["nested"].delay(1)
    assert hand.deliver().state == "FAILURE"

    assert hand.deliver().value == 1


def test_a_duplicate_that_the_broker_does_not_take_back_is_not_acknowledged(hand: Hand) -> None:
    @hand.once.task(name="nested")
    def nested(x: int) -> int:
        hand.once.send_task("nested", (x,), task_id="other")
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
    hand.once.send_task(
        "joining", (hand.name(),), task_id="unknown", queue=hand.queue, priority=3, headers={"colour": "red"}
    )
    seen = []

    @hand.once.task(name="lost")
    def lost() -> None:
        seen.append(current_run().job_id)

    body = hand.deliver()
    assert body.id == "unknown"
    hand.once.send_task("lost", task_id="lost", priority=3, headers={"colour": "red"})
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


def test_the_sweeper_does_not_publish_what_has_been_the_death_of_too_many(hand: Hand) -> None:
    result = hand.tasks.joining.delay(hand.name())
    for _ in range(hand.once.settings.max_received):
        hand.once.ledger.received(result.id, limit=9)
    before = hand.waiting()
    hand.clock.advance(hours=2)

    swept = hand.once.sweep()

    assert (swept.published, swept.failed, hand.waiting()) == (0, 0, before)
    assert hand.job(result).reason == Reason.NEVER_STARTED
    assert result.state == "FAILURE"


def test_a_worker_reads_a_resent_message_that_has_no_key(hand: Hand) -> None:
    hand.once.send_task("joining", (hand.name(),), task_id="unknown", headers={"oncelery_resent": True})

    assert hand.deliver().state is None


# Going on later


def test_a_retry_is_sent_after_its_run_has_let_go(hand: Hand) -> None:
    name = hand.name()
    hand.tasks.asks_again.apply_async((name, 2), headers={"colour": "red"}, priority=3)

    states = [delivery.state for delivery in hand.deliver_all()]

    assert states == ["RETRY", "RETRY", None]
    assert [(entry.attempt, entry.payload) for entry in hand.told(name)] == [(1, "red"), (2, "red"), (3, "red")]


def test_a_retry_that_the_broker_refuses_is_left_to_the_sweeper(hand: Hand, caplog: pytest.LogCaptureFixture) -> None:
    name = hand.name()
    result = hand.tasks.asks_again.delay(name, 1)

    with hand.broker_down(), caplog.at_level(logging.WARNING, "oncelery"):
        assert hand.deliver().state == "RETRY"

    assert hand.job(result).state is State.QUEUED
    assert result.id in caplog.text
    hand.clock.advance(hours=2)
    hand.once.sweep()
    assert hand.deliver().value == 1


def test_a_policys_retry_that_the_broker_refuses_is_left_to_the_sweeper(hand: Hand) -> None:
    name = hand.name()
    result = hand.tasks.retried_by_policy.delay(name, 1)

    with hand.broker_down():
        assert hand.deliver().state == "RETRY"

    assert hand.job(result).state is State.QUEUED
    hand.clock.advance(hours=2)
    hand.once.sweep()
    assert hand.deliver().value == 1


def test_retries_of_a_policy_and_of_celery_are_counted_apart(hand: Hand) -> None:
    name = hand.name()
    errors = ["forbidden", "refused", "refused", "refused", "refused"]
    result = hand.tasks.retried_by_both.delay(name, errors)

    states = [delivery.state for delivery in hand.deliver_all()]

    assert states[-1] == "FAILURE"
    assert len(states) <= 4
    assert hand.job(result).state is State.BURIED


def test_a_retry_asked_for_quietly_is_another_attempt_of_the_same_job(hand: Hand) -> None:
    name = hand.name()
    result = hand.tasks.asks_quietly.delay(name)

    assert [delivery.value for delivery in hand.deliver_all()] == ["not yet", "done"]
    assert len(hand.told(name)) == 2
    assert hand.job(result).state is State.COMPLETED


def test_a_trailing_job_that_the_broker_refuses_does_not_fail_the_one_before_it(hand: Hand) -> None:
    name = hand.name()
    calls: list[Any] = []

    @hand.once.task(name="front", key="x", on_duplicate="trail")
    def front(x: str, payload: int) -> int:
        if not calls:
            calls.append(hand.app.tasks["front"].delay(x, payload + 1))
        return payload

    hand.app.tasks["front"].delay(name, 1)
    with hand.broker_down():
        assert hand.deliver().value == 1
    assert hand.waiting() == 0
    hand.clock.advance(hours=2)
    hand.once.sweep()
    assert (hand.deliver().value, hand.job(calls[0]).state) == (2, State.COMPLETED)


def test_a_trailing_job_is_published_when_the_one_before_it_ends(hand: Hand) -> None:
    name = hand.name()
    later: list[Any] = []

    @hand.once.task(name="front", key="x", on_duplicate="trail")
    def front(x: str, payload: int) -> int:
        if not later:
            later.extend(hand.app.tasks["front"].delay(x, n) for n in (2, 3))
            assert hand.waiting() == 0
        return payload

    hand.app.tasks["front"].delay(name, 1)

    assert [delivery.value for delivery in hand.deliver_all()] == [1, 3]
    assert later[0].id == later[1].id


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
    assert count(hand) == 2
    assert all(job.state is State.COMPLETED for job in hand.once.ledger.find(Query()).items)


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
        hand.tasks.joining.apply_async((name, 1), link=callbacks)
    first = hand.deliver_all()
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
        hand.tasks.joining.apply_async((name, 1), link=canvas)
    hand.deliver_all()
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

    assert isinstance(replayed.value, JobBuriedError)
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


# Results and errors


def test_a_result_that_is_too_large_buries_the_job_instead_of_running_it_again(hand: Hand) -> None:
    name = hand.name()
    result = hand.tasks.returns.delay(name, "large")

    assert hand.deliver().state == "FAILURE"

    assert (hand.job(result).state, hand.job(result).reason) == (State.BURIED, Reason.FAILED)
    assert "limit" in hand.job(result).error.message  # type: ignore[union-attr]


def test_a_result_that_is_too_large_is_dropped_where_nobody_wants_it(hand: Hand) -> None:
    result = hand.tasks.returns_unseen.delay(hand.name(), "large")

    assert hand.deliver().state is None

    assert hand.job(result).state is State.COMPLETED


@pytest.mark.parametrize("ignored", [True, False])
def test_a_call_may_say_itself_whether_its_result_is_wanted(hand: Hand, ignored: bool) -> None:  # noqa: FBT001
    task = hand.tasks.returns if ignored else hand.tasks.returns_unseen
    result = task.apply_async((hand.name(), "object"), ignore_result=ignored)

    hand.deliver()

    assert hand.job(result).state is (State.COMPLETED if ignored else State.BURIED)


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


def test_a_soft_time_limit_that_strikes_while_the_outcome_is_recorded_does_not_undo_it(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = hand.name()
    settle = hand.store.settle
    strikes: list[Any] = []

    def struck(*args: Any) -> Any:
        if not strikes:
            strikes.append(args)
            raise SoftTimeLimitExceeded
        return settle(*args)

    monkeypatch.setattr(hand.store, "settle", struck)
    result = hand.tasks.joining.delay(name, "done")

    assert hand.deliver().value == "done"
    assert hand.job(result).state is State.COMPLETED


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
