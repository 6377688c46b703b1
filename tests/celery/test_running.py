"""Guarded tasks in a real worker: every way in which a run may end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery.exceptions import (
    TaskRevokedError,
)
from faults.brokers import Broker
from faults.workers import Worker, Workers
from guarded.versions import dumps_models
from guarded.world import SOON, World

from oncelery.embedded.process import eventually
from oncelery.job import Answer, Cause, Reason, State


@pytest.fixture(scope="module", autouse=True)
def worker(world: World, crew: Workers, broker_here: Broker) -> Worker:
    """Give two children, which all tests here share."""
    return world.start(crew, broker=broker_here, queues=["guarded", "urgent"])


# Duplicates


def test_a_double_click_takes_effect_once(world: World) -> None:
    name = world.name()

    first, second = (world.tasks.joining.delay(name, {"amount": 500}) for _ in range(2))

    assert first.get(timeout=SOON) == second.get(timeout=SOON) == {"amount": 500}
    assert first.id == second.id
    assert [entry.job_id for entry in world.told(name)] == [first.id]


def test_a_message_delivered_again_is_answered_with_the_result(world: World) -> None:
    name = world.name()
    with world.captured() as sent:
        result = world.tasks.joining.delay(name, "paid")
    assert result.get(timeout=SOON) == "paid"

    sent.again()

    assert eventually(lambda: world.job(result).duplicates == 1, SOON)
    assert len(world.told(name)) == 1


def test_duplicates_sent_by_other_code_wait_for_the_one_that_runs(world: World) -> None:
    name = world.name()
    gate = world.gate(name)
    first = world.tasks.joining.delay(name, "paid", gate.path)
    assert world.hears(name, "start")

    others = [world.once.send_unguarded("joining", (name, "paid", gate.path)) for _ in range(2)]
    assert eventually(lambda: world.job(first).duplicates >= 2, SOON)
    gate.open()

    assert [result.get(timeout=SOON) for result in (first, *others)] == ["paid"] * 3
    assert len(world.told(name)) == 1


def test_what_trails_a_running_job_runs_once_after_it_with_the_newest_payload(world: World) -> None:
    name = world.name()
    gate = world.gate(name)
    front = world.tasks.trailing.delay(name, 1, gate.path)
    assert world.hears(name, "start")

    second, third = (world.tasks.trailing.delay(name, n) for n in (2, 3))
    gate.open()

    assert (front.get(timeout=SOON), second.get(timeout=SOON)) == (1, 3)
    assert second.id == third.id != front.id
    assert [entry.payload for entry in world.told(name)] == [1, 3]


def test_a_running_job_is_not_replaced_but_joined(world: World) -> None:
    name = world.name()
    gate = world.gate(name)
    first = world.tasks.replacing.delay(name, "old", gate.path)
    assert world.hears(name, "start")

    second = world.tasks.replacing.delay(name, "new")
    gate.open()

    assert (second.id, second.existing) == (first.id, True)
    assert second.get(timeout=SOON) == "old"


def test_answers_are_kept_for_the_audit(world: World) -> None:
    name = world.name()
    world.tasks.joining.delay(name).get(timeout=SOON)

    world.tasks.joining.delay(name)

    latest = world.once.ledger.duplicates(task="joining").items[0]
    assert latest.answer is Answer.REPLAYED


# Options of a call


def test_a_delayed_task_starts_when_its_time_has_come_and_not_when_the_sweeper_comes(world: World) -> None:
    name = world.name()
    eta = datetime.now(UTC) + timedelta(seconds=1)

    results = [
        world.tasks.joining.apply_async((f"{name}-eta",), eta=eta),
        world.tasks.joining.apply_async((f"{name}-countdown",), countdown=1),
    ]

    for result in results:
        result.get(timeout=SOON)
        begun_at = world.job(result).begun_at
        assert begun_at
        assert timedelta(0) <= begun_at - eta < timedelta(seconds=8)


def test_a_queue_and_a_header_of_the_call_survive_retries(world: World) -> None:
    name = world.name()

    result = world.tasks.asks_again.apply_async((name, 2), queue="urgent", headers={"colour": "red"}, priority=3)

    assert result.get(timeout=SOON) == 2
    assert [entry.payload for entry in world.told(name)] == ["red"] * 3
    assert world.job(result).queue == "urgent#3"


def test_an_expired_task_is_cancelled_with_that_reason(world: World) -> None:
    name = world.name()

    result = world.tasks.joining.apply_async((name,), expires=datetime.now(UTC) - timedelta(seconds=1))

    assert world.becomes(result, State.CANCELLED)
    assert world.job(result).reason == "expired"
    with pytest.raises(TaskRevokedError, match="expired"):
        result.get(timeout=SOON)
    assert world.told(name) == []


# Retries


def test_a_retry_is_the_same_job_going_on(world: World) -> None:
    name = world.name()

    result = world.tasks.asks_again.delay(name, 3)

    assert result.get(timeout=SOON) == 3
    assert [entry.attempt for entry in world.told(name)] == [1, 2, 3, 4]
    assert {entry.job_id for entry in world.told(name)} == {result.id}
    assert [past.cause for past in world.job(result).past] == [Cause.RETRY] * 3


def test_a_duplicate_of_a_task_between_two_attempts_joins_it(world: World) -> None:
    name = world.name()
    first = world.tasks.asks_again.delay(name, 1, countdown=2)
    assert eventually(lambda: bool(world.job(first).past), SOON)

    second = world.tasks.asks_again.delay(name, 1, countdown=2)

    assert second.id == first.id
    assert second.get(timeout=SOON) == 1
    assert len(world.told(name)) == 2


def test_a_retry_may_change_its_arguments(world: World) -> None:
    name = world.name()

    result = world.tasks.asks_otherwise.delay(name, 2)

    assert result.get(timeout=SOON) == "done"
    assert [entry.payload for entry in world.told(name)] == [2, 1, 0]
    assert {entry.job_id for entry in world.told(name)} == {result.id}


def test_a_task_that_gives_up_is_a_dead_letter_with_its_own_error(world: World) -> None:
    name = world.name()

    result = world.tasks.gives_up.delay(name)

    with pytest.raises(Exception, match=name):
        result.get(timeout=SOON)
    job = world.job(result)
    assert (job.state, job.reason, job.attempt) == (State.BURIED, Reason.FAILED, 2)
    assert job.error
    assert job.error.type == "guarded.app.RefusedError"


@pytest.mark.parametrize(("failures", "runs", "state"), [(2, 3, State.COMPLETED), (9, 3, State.BURIED)])
def test_celerys_own_retries_are_counted_by_celery(world: World, failures: int, runs: int, state: State) -> None:
    name = world.name()

    result = world.tasks.retried_by_celery.delay(name, failures)

    assert eventually(lambda: world.job(result).state is state, SOON)
    assert len(world.told(name, name)) == runs


@pytest.mark.parametrize(
    ("failures", "runs", "state", "reason"),
    [(2, 3, State.COMPLETED, ""), (9, 3, State.BURIED, Reason.EXHAUSTED)],
)
def test_a_policys_retries_are_counted_by_the_ledger(
    world: World, failures: int, runs: int, state: State, reason: str
) -> None:
    name = world.name()

    result = world.tasks.retried_by_policy.delay(name, failures)

    assert eventually(lambda: world.job(result).state is state, SOON)
    assert world.job(result).reason == reason
    assert len(world.told(name, name)) == runs
    if state is State.BURIED:
        with pytest.raises(Exception, match=name):
            result.get(timeout=SOON)


def test_a_finished_step_is_not_taken_again(world: World) -> None:
    name = world.name()

    result = world.tasks.steps.delay(name)

    assert result.get(timeout=SOON) == ["one!", "two!", "two!"]
    assert (len(world.told(name, "one")), len(world.told(name, "two"))) == (1, 1)


# Calls within a run


def test_a_task_that_calls_itself_is_one_run(world: World) -> None:
    name = world.name()

    result = world.tasks.counts_down.delay(name, 2)

    assert result.get(timeout=SOON) == [2, 1, 0]
    assert {(entry.job_id, entry.attempt) for entry in world.told(name)} == {(result.id, 1)}


def test_a_guarded_task_called_as_a_function_is_part_of_the_run_that_calls_it(world: World) -> None:
    name = world.name()

    result = world.tasks.calls_directly.delay(name)

    assert result.get(timeout=SOON) == "direct"
    assert [entry.job_id for entry in world.told(name)] == [result.id]


@dumps_models
def test_models_are_known_by_what_is_sent(world: World) -> None:
    name = world.name()
    order = {"order_id": "o-1", "amount": 5}

    as_model = world.tasks.takes_models.delay(world.tasks.Order(**order), name)
    as_dict = world.tasks.takes_models.delay(order, name=name)

    assert as_model.id == as_dict.id
    assert as_model.get(timeout=SOON) == order
    assert [entry.payload for entry in world.told(name)] == ["Order"]


# What a run sees


def test_a_run_knows_itself_and_its_progress_can_be_read(world: World) -> None:
    name = world.name()
    gate = world.gate(name)
    result = world.tasks.reports.delay(name, gate.path)
    assert world.hears(name, "start")

    progress = world.job(result).progress
    gate.open()

    assert progress
    assert (progress.done, progress.total, progress.stage) == (1, 3, "first")
    seen: dict[str, Any] = result.get(timeout=SOON)
    assert (seen["job_id"], seen["key"], seen["attempt"]) == (result.id, world.job(result).key, 1)
    assert len(seen["receipt"]) == 64


def test_a_lease_is_renewed_for_as_long_as_its_task_runs(world: World) -> None:
    name = world.name()
    gate = world.gate(name)
    result = world.tasks.reports.delay(name, gate.path)
    assert world.hears(name, "start")
    lease = world.job(result).lease_until
    assert lease

    assert eventually(lambda: (world.job(result).lease_until or lease) > lease + timedelta(seconds=1.5), SOON)
    gate.open()

    assert result.get(timeout=SOON)["attempt"] == 1


def test_a_request_class_of_the_apps_own_sees_each_delivery(world: World) -> None:
    name = world.name()

    result = world.tasks.announced.delay(name, "done")

    assert result.get(timeout=SOON) == "done"
    assert world.hears(name, "accepted")
    assert world.job(result).state == "completed"
