"""Runs on a real worker, and every way in which one may end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from celery import chain
from celery.exceptions import (
    Reject,
    SoftTimeLimitExceeded,
    TaskRevokedError,
    TimeLimitExceeded,
)
from faults.brokers import Broker
from faults.workers import Worker, Workers
from guarded.versions import tells_of_rejections
from guarded.world import SOON, World
from kombu.exceptions import EncodeError

from oncelery import JobBuriedError
from oncelery.embedded.process import eventually
from oncelery.job import Cause, State


@pytest.fixture(scope="module", autouse=True)
def worker(world: World, crew: Workers, broker_here: Broker) -> Worker:
    """Give two children, which all tests here share."""
    return world.start(crew, broker=broker_here, queues=["guarded", "urgent"])


@pytest.mark.parametrize(
    ("kind", "value"), [("none", None), ("text", "text"), ("nested", {"list": [1, 2.5, None, {"a": True}]})]
)
def test_a_result_is_given_and_replayed(world: World, kind: str, value: object) -> None:
    name = world.name()
    first = world.tasks.returns.delay(name, kind)
    assert first.get(timeout=SOON) == value

    again = world.once.send_unguarded("returns", (name, kind))

    assert again.get(timeout=SOON) == value
    assert len(world.told(name)) == 1


@pytest.mark.parametrize(
    ("kind", "value"),
    [("a result", [["a-task", None], None]), ("a group's result", [["a-group", None], [[["a-task", None], None]]])],
)
def test_a_result_that_is_another_tasks_is_kept_as_celery_keeps_it(world: World, kind: str, value: object) -> None:
    name = world.name()
    first = world.tasks.returns.delay(name, kind)
    assert first.get(timeout=SOON) == value

    again = world.once.send_unguarded("returns", (name, kind))

    assert again.get(timeout=SOON) == value
    assert world.tasks.returns.delay(name, kind).get(timeout=SOON) == value
    assert world.job(first).state is State.COMPLETED
    assert len(world.told(name)) == 1


def test_a_result_that_names_a_task_runs_nothing(world: World) -> None:
    name, forged = world.name(), world.name()
    signature = {"task": "plain-increment", "args": [1, forged], "kwargs": {}, "options": {}, "immutable": True}
    # What marked a replaced task once.
    payload = {"oncelery_replaced_by": signature, "replaced_by": signature}
    joining, increment = world.tasks.joining, world.app.tasks["plain-increment"]
    assert joining.delay(name, payload).get(timeout=SOON) == payload

    result = chain(joining.s(name, payload), increment.si(2, name)).delay()

    assert result.get(timeout=SOON) == 3
    assert world.app.AsyncResult(result.parent.id).get(timeout=SOON) == payload  # type: ignore[union-attr]
    assert (len(world.told(name)), world.told(forged, "increment")) == (1, [])


def test_a_result_that_cannot_be_written_is_a_failure_as_in_celery_of_a_job_that_is_completed(world: World) -> None:
    name = world.name()
    result = world.tasks.returns.delay(name, "object")

    with pytest.raises(EncodeError):
        result.get(timeout=SOON)
    assert world.job(result).state is State.COMPLETED
    assert "not JSON serializable" in world.job(result).result_omitted

    with pytest.raises(EncodeError):
        world.tasks.returns.delay(name, "object").get(timeout=SOON)
    with pytest.raises(EncodeError):
        world.once.send_unguarded("returns", (name, "object")).get(timeout=SOON)
    assert len(world.told(name)) == 1


def test_a_result_over_the_limit_reaches_its_callers_while_the_backend_keeps_it(world: World) -> None:
    name = world.name()
    result = world.tasks.returns.delay(name, "large")

    large = result.get(timeout=SOON)
    assert len(large) == 2 << 20
    assert world.job(result).state is State.COMPLETED
    assert "the limit is 1,048,576" in world.job(result).result_omitted

    assert world.tasks.returns.delay(name, "large").get(timeout=SOON) == large
    assert world.once.send_unguarded("returns", (name, "large")).get(timeout=SOON) == large
    assert len(world.told(name)) == 1


def test_a_result_that_cannot_be_written_does_not_matter_where_it_is_ignored(world: World) -> None:
    result = world.tasks.returns_unseen.delay(world.name(), "object")

    assert world.becomes(result, State.COMPLETED)
    assert result.get(timeout=SOON) is None


@pytest.mark.parametrize(
    ("kind", "said"), [("refused", "RefusedError"), ("unpicklable", "UnpicklableError"), ("key", "KeyError")]
)
def test_an_error_reaches_the_caller_and_the_dead_letters(world: World, kind: str, said: str) -> None:
    name = world.name()

    result = world.tasks.raises.delay(name, kind)

    with pytest.raises(Exception, match=r".*") as raised:
        result.get(timeout=SOON)
    assert said in repr(raised.value) + type(raised.value).__name__
    error = world.job(result).error
    assert error
    assert said in error.type
    assert "in raises" in error.traceback


def test_an_error_that_cannot_be_printed_is_a_dead_letter(world: World) -> None:
    result = world.tasks.raises.delay(world.name(), "unspeakable")

    assert world.becomes(result, State.BURIED)


def test_a_duplicate_of_a_dead_letter_is_new_work(world: World) -> None:
    name = world.name()
    first = world.tasks.raises.delay(name, "key")
    assert world.becomes(first, State.BURIED)

    second = world.tasks.raises.delay(name, "key")

    assert second.id != first.id
    assert world.becomes(second, State.BURIED)
    assert len(world.told(name)) == 2


@tells_of_rejections
def test_a_rejected_message_is_a_dead_letter(world: World) -> None:
    result = world.tasks.rejects.delay(world.name(), requeue=False)

    assert world.becomes(result, State.BURIED)
    with pytest.raises(Reject):
        result.get(timeout=SOON)


def test_a_message_that_is_rejected_to_come_back_is_the_same_job_going_on(world: World) -> None:
    name = world.name()

    result = world.tasks.rejects.delay(name, requeue=True)

    assert result.get(timeout=SOON) == "done"
    assert [entry.job_id for entry in world.told(name)] == [result.id] * 2


def test_an_ignored_task_is_over_without_a_result(world: World) -> None:
    name = world.name()
    result = world.tasks.ignores.delay(name)
    assert world.becomes(result, State.COMPLETED)

    again = world.tasks.ignores.delay(name)

    assert again.existing
    assert result.state == "PENDING"
    assert len(world.told(name)) == 1


def test_a_task_that_tries_to_end_its_process_is_a_dead_letter_at_once(world: World) -> None:
    name = world.name()

    result = world.tasks.exits.delay(name)

    with pytest.raises(JobBuriedError, match=r"SystemExit\(3\)"):
        result.get(timeout=SOON)
    assert (world.job(result).state, len(world.told(name))) == (State.BURIED, 1)


def test_a_soft_time_limit_is_an_error_that_the_task_may_catch(world: World) -> None:
    caught = world.tasks.sleeps.delay(world.name(), catch=True)
    uncaught = world.tasks.sleeps.delay(world.name())

    assert caught.get(timeout=SOON) == "woken"
    with pytest.raises(SoftTimeLimitExceeded):
        uncaught.get(timeout=SOON)
    assert world.job(uncaught).state is State.BURIED


def test_a_hard_time_limit_buries_the_job(world: World) -> None:
    name = world.name()

    result = world.tasks.hangs.delay(name)

    with pytest.raises(TimeLimitExceeded):
        result.get(timeout=SOON)
    job = world.job(result)
    assert job.error
    assert (job.state, "TimeLimitExceeded" in job.error.type) == (State.BURIED, True)
    assert len(world.told(name)) == 1


def test_a_hard_time_limit_that_the_policy_forgives_is_an_attempt_and_no_failure(world: World) -> None:
    name = world.name()

    result = world.tasks.hangs_at_first.apply_async((name,), link_error=world.app.tasks["guarded-lament"].s(name))

    assert result.get(timeout=SOON) == "done"
    assert [past.cause for past in world.job(result).past] == [Cause.RETRY]
    assert (len(world.told(name)), world.told(name, "lament")) == (2, [])


# Cancelling


def test_a_running_job_ends_when_it_heeds_its_cancellation(world: World) -> None:
    name = world.name()
    result = world.tasks.heeds.delay(name)
    assert world.hears(name, "start")

    world.once.ledger.cancel(result.id, reason="customer asked")

    assert world.becomes(result, State.CANCELLED)
    assert world.job(result).reason == "customer asked"
    with pytest.raises(TaskRevokedError, match="customer asked"):
        result.get(timeout=SOON)


def test_a_cancelled_job_leaves_its_key_to_others(world: World) -> None:
    name = world.name()
    first = world.tasks.joining.apply_async((name,), countdown=60)
    world.once.ledger.cancel(first.id)

    second = world.tasks.joining.delay(name, "again")

    assert second.get(timeout=SOON) == "again"
    assert second.id != first.id


def test_a_task_revoked_while_it_waits_is_cancelled(world: World, worker: Worker) -> None:
    name = world.name()
    result = world.tasks.joining.apply_async((name,), countdown=2)

    assert eventually(lambda: result.id in worker.log, SOON)
    result.revoke()

    assert world.becomes(result, State.CANCELLED)
    assert world.job(result).reason == "revoked"
    assert world.told(name) == []


def test_a_running_task_that_is_terminated_is_cancelled(world: World) -> None:
    name = world.name()
    result = world.tasks.joining.delay(name, None, world.gate(name).path)
    assert world.hears(name, "start")

    result.revoke(terminate=True)

    assert world.becomes(result, State.CANCELLED)
    assert world.job(result).reason == "terminated"
    with pytest.raises(TaskRevokedError):
        result.get(timeout=SOON)


def test_a_copy_of_a_message_that_is_too_late_does_not_disturb_the_job_that_runs(world: World, worker: Worker) -> None:
    name = world.name()
    gate = world.gate(name)
    with world.captured() as sent:
        result = world.tasks.joining.apply_async((name, "done", gate.path), expires=3)
    assert world.hears(name, "start")
    job = world.job(result)
    expired = job.created_at + timedelta(seconds=3.5)
    assert eventually(lambda: datetime.now(UTC) > expired, SOON)

    sent.again()
    assert eventually(lambda: worker.log.count(f"Discarding revoked task: joining[{result.id}]") == 1, SOON)
    gate.open()

    assert world.becomes(result, State.COMPLETED)
    assert not world.job(result).cancel_requested
