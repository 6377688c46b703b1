"""What a crash leaves behind, and who goes on with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery import chain
from faults.brokers import Broker
from faults.workers import Worker, Workers
from guarded.world import SOON, World

from oncelery import OutcomeUnknownError
from oncelery.embedded.process import eventually
from oncelery.job import Cause, Reason, State
from oncelery.testing.failpoints import Failpoint, environment


@pytest.fixture(scope="module")
def halfway(tmp_path_factory: pytest.TempPathFactory) -> Failpoint:
    """Kill the first child that has recorded an outcome, before it can tell anyone."""
    return Failpoint("after-settle", "kill", tmp_path_factory.mktemp("failpoints"))


@pytest.fixture(scope="module", autouse=True)
def worker(world: World, crew: Workers, broker_here: Broker, halfway: Failpoint) -> Worker:
    """Give two children, which all tests here share, after the first test has killed one."""
    return world.start(crew, broker=broker_here, env=environment(halfway), settings={"oncelery_sweep_every": 0.5})


@pytest.fixture(scope="module", autouse=True)
def crashed_after_its_commit(world: World, worker: Worker, halfway: Failpoint) -> tuple[World, str]:  # noqa: ARG001
    """Play the crash first, while the failpoint is armed; the other tests need a worker that does not kill itself."""
    name = world.name()
    notes = [world.tasks.notifying.si(name, n) for n in (1, 2)]
    increment: Any = world.app.tasks["guarded-increment"]
    result = chain(increment.s(1, name).set(link=notes), increment.s(name), increment.s(name)).delay()
    assert result.get(timeout=SOON) == 4
    assert halfway.fired == 1
    return world, name


def test_a_crash_between_the_commit_and_the_acknowledgement_lets_chain_and_callbacks_go_on_once(
    crashed_after_its_commit: tuple[World, str],
) -> None:
    world, name = crashed_after_its_commit

    assert world.hears(name, times=2)
    assert sorted(entry.payload for entry in world.told(name)) == [1, 2]
    assert [entry.payload for entry in world.told(name, "increment")] == [1, 2, 3]


def crash(world: World, worker: Worker, task: str) -> tuple[str, str, Callable[[], None]]:
    name = world.name()
    gate = world.gate(name)
    result = world.app.tasks[task].delay(name, gate.path)
    assert world.hears(name)
    worker.kill_child(world.told(name)[0].pid)
    return name, result.id, gate.open


def test_a_task_whose_child_was_killed_runs_again(world: World, worker: Worker) -> None:
    name, job_id, go_on = crash(world, worker, "rerunning")

    go_on()

    assert world.app.AsyncResult(job_id).get(timeout=SOON) == "charged"
    assert len(world.told(name)) == 2
    assert [entry.payload for entry in world.told(name, "recovered")] == [False, True]
    assert [past.cause for past in world.job(job_id).past] == [Cause.CRASH]


def test_a_task_that_verifies_is_not_run_again_if_its_effect_has_happened(world: World, worker: Worker) -> None:
    name, job_id, _ = crash(world, worker, "verifying")

    assert world.app.AsyncResult(job_id).get(timeout=SOON) == "verified"
    assert (len(world.told(name)), len(world.told(name, "verify"))) == (1, 1)


def test_a_task_that_may_not_be_run_again_is_held_for_a_person(world: World, worker: Worker) -> None:
    name, job_id, _ = crash(world, worker, "holding")

    with pytest.raises(OutcomeUnknownError):
        world.app.AsyncResult(job_id).get(timeout=SOON)
    assert (world.job(job_id).state, world.job(job_id).reason) == (State.BURIED, Reason.OUTCOME_UNKNOWN)
    assert len(world.told(name)) == 1


def test_a_task_that_kills_its_child_each_time_is_a_dead_letter_in_the_end(world: World, worker: Worker) -> None:
    name, gate = world.name(), world.gate("never")
    result = world.tasks.rerunning.delay(name, gate.path)

    for run in range(1, 5):
        assert world.hears(name, times=run)
        worker.kill_child(world.told(name)[-1].pid)

    assert world.becomes(result, State.BURIED)
    assert (world.job(result).reason, len(world.told(name))) == (Reason.CRASHED, 4)
    assert eventually(lambda: result.state == "FAILURE", SOON)


def test_steps_taken_before_a_crash_are_not_taken_again(world: World, worker: Worker, tmp_path: Path) -> None:
    name, gate = world.name(), tmp_path / "gate"
    result = world.tasks.pauses_between_steps.delay(name, str(gate))
    assert world.hears(name, "two")

    worker.kill_child(world.told(name, "one")[0].pid)
    gate.touch()

    assert result.get(timeout=SOON) == ["one", "two"]
    assert (len(world.told(name, "one")), len(world.told(name, "two"))) == (1, 2)
