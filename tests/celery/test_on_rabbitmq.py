"""What depends on the broker, on RabbitMQ: acknowledgement, rejection, expiry, priorities, retries."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from celery import chord
from celery.exceptions import TaskRevokedError
from faults.brokers import Broker
from faults.workers import Worker, Workers
from guarded.world import SOON, World

from oncelery.embedded.process import eventually
from oncelery.job import State


@pytest.fixture(scope="module")
def broker_here(rabbit_broker: Broker) -> Broker:
    """Have the world of this module on RabbitMQ."""
    return rabbit_broker


@pytest.fixture(scope="module", autouse=True)
def worker(world: World, crew: Workers, broker_here: Broker) -> Worker:
    """Give two children, which all tests here share."""
    return world.start(crew, broker=broker_here)


def test_duplicates_take_effect_once(world: World) -> None:
    name = world.name()
    gate = world.gate(name)
    with world.captured() as sent:
        first = world.tasks.joining.delay(name, "done", gate.path)
    assert world.hears(name, "start")

    sent.again()
    others = [world.tasks.joining.delay(name, "done", gate.path)]
    others += [world.once.send_unguarded("joining", (name, "done", gate.path)) for _ in range(2)]
    assert eventually(lambda: world.job(first).duplicates >= 3, SOON)
    gate.open()

    assert [result.get(timeout=SOON) for result in (first, *others)] == ["done"] * 4
    assert len(world.told(name)) == 1


def test_a_chord_sent_twice_takes_effect_once(world: World) -> None:
    name = world.name()
    increment, total = world.app.tasks["guarded-increment"], world.app.tasks["guarded-total"]

    results = [chord([increment.s(1, name), increment.s(2, name)], total.s(name)).delay() for _ in range(2)]

    assert [result.get(timeout=SOON) for result in results] == [5, 5]
    assert (len(world.told(name, "increment")), len(world.told(name, "total"))) == (2, 1)


def test_a_retry_keeps_priority_queue_and_headers(world: World) -> None:
    name = world.name()

    result = world.tasks.asks_again.apply_async((name, 2), headers={"colour": "red"}, priority=3)

    assert result.get(timeout=SOON) == 2
    assert [entry.payload for entry in world.told(name)] == ["red"] * 3


def test_a_message_that_is_rejected_to_come_back_is_the_same_job_going_on(world: World) -> None:
    name = world.name()

    result = world.tasks.rejects.delay(name, requeue=True)

    assert result.get(timeout=SOON) == "done"
    assert [entry.job_id for entry in world.told(name)] == [result.id] * 2


def test_a_rejected_message_is_a_dead_letter_in_the_ledger(world: World) -> None:
    result = world.tasks.rejects.delay(world.name(), requeue=False)

    assert world.becomes(result, State.BURIED)


# Celery's Redis backend, where the result is told, has not yet given this up.
@pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")
def test_a_task_that_expires_in_a_queue_is_cancelled_although_the_broker_drops_its_message(world: World) -> None:
    name = world.name()
    expires = datetime.now(UTC) + timedelta(seconds=1)
    result = world.tasks.joining.apply_async((name,), queue="nobody-listens", expires=expires)

    assert eventually(lambda: datetime.now(UTC) > expires, SOON)
    again = world.tasks.joining.apply_async((name, "done"), expires=60)

    assert again.get(timeout=SOON) == "done"
    assert (world.job(result).state, world.job(result).reason) == (State.CANCELLED, "expired")
    with pytest.raises(TaskRevokedError):
        result.get(timeout=SOON)


def test_a_delayed_task_starts_when_its_time_has_come(world: World) -> None:
    name = world.name()
    sent_at = datetime.now(UTC)

    result = world.tasks.joining.apply_async((name, "done"), countdown=1)

    assert result.get(timeout=SOON) == "done"
    begun_at = world.job(result).begun_at
    assert begun_at
    assert timedelta(seconds=1) <= begun_at - sent_at < timedelta(seconds=9)
