"""The same promises in every pool that Celery has."""

from __future__ import annotations

from typing import Any

import pytest
from celery import chain
from faults.brokers import Broker
from faults.workers import ALONE, Worker, Workers
from guarded.world import SOON, World

from oncelery import JobBuriedError
from oncelery.job import State

POOLS: dict[str, dict[str, Any]] = {
    "threads": {"pool": "threads", "concurrency": 3},
    "solo": {"pool": "solo", "concurrency": 1},
    "gevent": {"pool": "gevent", "concurrency": 3},
    "prefork, a child for each task": {"options": [*ALONE, "--max-tasks-per-child", "1"]},
}


@pytest.fixture(scope="module", params=POOLS, autouse=True)
def worker(request: pytest.FixtureRequest, world: World, crew: Workers, broker_here: Broker) -> Worker:
    """Give one worker after the other, each with another pool."""
    for earlier in crew.started:
        earlier.kill()
    return world.start(crew, broker=broker_here, **POOLS[request.param])


def test_duplicates_take_effect_once(world: World) -> None:
    name = world.name()

    results = [world.tasks.joining.delay(name, "done") for _ in range(2)]
    results += [world.once.send_unguarded("joining", (name, "done")) for _ in range(2)]

    assert [result.get(timeout=SOON) for result in results] == ["done"] * 4
    assert len(world.told(name)) == 1


def test_several_tasks_are_all_done(world: World) -> None:
    names = [world.name() for _ in range(4)]

    results = [world.tasks.joining.delay(name, name) for name in names]

    assert [result.get(timeout=SOON) for result in results] == names
    assert all(len(world.told(name)) == 1 for name in names)


def test_a_retry_goes_on(world: World) -> None:
    name = world.name()

    assert world.tasks.asks_again.delay(name, 2).get(timeout=SOON) == 2
    assert len(world.told(name)) == 3


def test_a_chain_of_guarded_tasks_goes_on(world: World) -> None:
    name = world.name()
    increment = world.app.tasks["guarded-increment"]

    assert chain(increment.s(1, name), increment.s(name)).delay().get(timeout=SOON) == 3


def test_a_task_that_tries_to_end_its_process_is_a_dead_letter_and_the_worker_lives(
    world: World, worker: Worker
) -> None:
    result = world.tasks.exits.delay(world.name())

    with pytest.raises(JobBuriedError):
        result.get(timeout=SOON)
    assert world.tasks.joining.delay(world.name(), "alive").get(timeout=SOON) == "alive"
    assert worker.is_running


def test_a_running_job_heeds_its_cancellation(world: World) -> None:
    name = world.name()
    result = world.tasks.heeds.delay(name)
    assert world.hears(name, "start")

    world.once.ledger.cancel(result.id)

    assert world.becomes(result, State.CANCELLED)
