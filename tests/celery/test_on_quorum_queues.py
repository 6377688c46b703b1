"""RabbitMQ's quorum queues, where the broker itself keeps a delayed message until its time has come."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from faults.brokers import Broker
from faults.workers import Worker, Workers
from guarded.world import SOON, World
from kombu import Queue

from oncelery.embedded.process import eventually


@pytest.fixture(scope="module")
def broker_here(rabbit_broker: Broker) -> Broker:
    """Have the world of this module on RabbitMQ."""
    return rabbit_broker


@pytest.fixture(scope="module")
def settings_here() -> dict[str, object]:
    """Have Celery use quorum queues, and RabbitMQ keep what is delayed."""
    return {
        "task_default_queue": "guarded",
        "task_default_exchange": "guarded",
        "task_default_exchange_type": "topic",
        "task_default_queue_type": "quorum",
        "broker_native_delayed_delivery_queue_type": "classic",
        "broker_transport_options": {"confirm_publish": True},
    }


@pytest.fixture(scope="module", autouse=True)
def worker(world: World, crew: Workers, broker_here: Broker) -> Worker:
    """Give two children, which all tests here share."""
    return world.start(crew, broker=broker_here)


@pytest.mark.parametrize("limit", [None, -1])
def test_a_message_comes_again_where_no_limit_is_given_and_a_negative_one_is_none_since_rabbitmq_4(
    world: World, *, limit: int | None
) -> None:
    arguments = {"x-queue-type": "quorum"} | ({} if limit is None else {"x-delivery-limit": limit})
    with world.app.connection_for_write() as connection:
        channel: Any = connection.default_channel
        queue: Any = Queue(world.name(), queue_arguments=arguments)(channel)
        queue.declare()
        channel.basic_publish(channel.prepare_message(b"message"), "", queue.name)
        got: list[Any] = []

        def get() -> bool:
            got.append(queue.get())
            return got[-1] is not None

        assert eventually(get, SOON)
        got[-1].requeue()

        version = int(connection.connection.server_properties["version"].split(".")[0])
        # One that is dropped is so at once.
        assert eventually(get, 2.0) == (limit is None or version >= 4)


def test_the_job_of_a_killed_child_runs_again_by_its_own_message(world: World, worker: Worker) -> None:
    name = world.name()
    gate = world.gate(name)
    result = world.tasks.joining.delay(name, "done", gate.path)
    assert world.hears(name, "start")

    worker.kill_child(int(world.job(result).worker.rpartition(":")[2]))
    assert world.hears(name, "start", times=2)
    gate.open()

    assert result.get(timeout=SOON) == "done"
    assert f"message seems lost: joining, job {result.id}" not in worker.log


def test_a_delayed_task_starts_when_its_time_has_come(world: World) -> None:
    name = world.name()
    sent_at = datetime.now(UTC)

    result = world.tasks.joining.apply_async((name, "done"), countdown=2)

    assert result.get(timeout=SOON) == "done"
    begun_at = world.job(result).begun_at
    assert begun_at
    assert timedelta(seconds=2) <= begun_at - sent_at < timedelta(seconds=10)


def test_a_delayed_retry_goes_on(world: World) -> None:
    name = world.name()

    result = world.tasks.asks_again.delay(name, 2, countdown=1)

    assert result.get(timeout=SOON) == 2
    assert [entry.attempt for entry in world.told(name)] == [1, 2, 3]


def test_a_duplicate_with_an_id_of_its_own_waits_for_the_job_that_runs(world: World) -> None:
    name = world.name()
    gate = world.gate(name)
    first = world.tasks.joining.delay(name, "done", gate.path)
    assert world.hears(name, "start")

    other = world.once.send_unguarded("joining", (name, "done", gate.path))
    assert eventually(lambda: world.job(first).duplicates >= 2, SOON)
    gate.open()

    assert (first.get(timeout=SOON), other.get(timeout=SOON)) == ("done", "done")
    assert len(world.told(name)) == 1


def test_an_attempt_by_policy_within_a_second_is_no_failure(world: World) -> None:
    name = world.name()

    result = world.tasks.retried_soon.delay(name, 1)

    assert result.get(timeout=SOON) == 1
