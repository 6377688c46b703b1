"""Runs that stand still until another has taken over, and then go on: nothing of them is recorded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from faults.scene import SOON, Scene
from faults.shop import receipt
from faults.traps import Trap
from oncelery.embedded.process import eventually
from oncelery.job import Cause, State
from oncelery.testing.failpoints import Failpoint

PLACES = ["mid-effect", "before-step", "before-settle", "after-settle"]


@pytest.fixture(scope="module")
def traps(stage: Scene) -> dict[str, Trap]:
    return {place: Trap(place, "stop", stage.folder) for place in PLACES}


@pytest.fixture(scope="module")
def workers_of_the_stage(stage: Scene, traps: dict[str, Trap]) -> Iterator[None]:
    started = [stage.start(*(trap.point for trap in traps.values())) for _ in range(2)]
    yield
    for worker in started:
        worker.kill()


@pytest.fixture
def reset_traps(traps: dict[str, Trap]) -> Iterator[None]:
    yield
    for trap in traps.values():
        trap.reset()


@pytest.mark.usefixtures("workers_of_the_stage", "reset_traps")
@pytest.mark.parametrize(
    ("task", "place", "effects"),
    [
        # It cannot be told in time, but what it returns or raises is not recorded.
        ("charge", "mid-effect", 2),
        ("charge_and_fail_at_first", "mid-effect", 2),
        ("charge", "before-settle", 2),
        # It is told before it does the step.
        ("charge_in_step", "before-step", 1),
    ],
)
def test_a_child_that_stood_still_changes_nothing_after_another_has_taken_over(
    stage: Scene, traps: dict[str, Trap], task: str, place: str, effects: int
) -> None:
    order = f"{task} {place}"
    traps[place].set()

    job_id = getattr(stage.shop, task).delay(order).id
    assert eventually(lambda: traps[place].caught is not None, SOON)
    zombie = traps[place].caught
    assert stage.returned(job_id, receipt(order))
    recorded = stage.job(job_id)
    # The end of its run, by when it has done what it will do.
    traps["after-settle"].set()
    traps[place].wake()
    assert eventually(lambda: traps["after-settle"].caught == zombie, SOON)
    traps["after-settle"].wake()

    # Its parent may be told as well, when it renews for a child that seems to be starved.
    assert eventually(lambda: zombie in fenced(stage, job_id), SOON)
    # The zombie does its next job as any other.
    assert stage.returned(stage.shop.charge.delay(f"after {order}").id, receipt(f"after {order}"))
    assert stage.job(job_id).result == recorded.result
    assert stage.job(job_id).state is State.COMPLETED
    assert [attempt.cause for attempt in stage.job(job_id).past] == [Cause.LAPSE]
    assert stage.commits().count(job_id) == 1
    assert stage.result(job_id).result == receipt(order)
    assert [entry.key for entry in stage.journal.entries()].count(order) == effects


@pytest.mark.usefixtures("workers_of_the_stage", "reset_traps")
def test_a_child_that_stood_still_after_its_commit_repeats_nothing(stage: Scene, traps: dict[str, Trap]) -> None:
    traps["after-settle"].set()

    job_id = stage.shop.charge.delay("committed").id
    assert eventually(lambda: traps["after-settle"].caught is not None, SOON)
    assert stage.job(job_id).state is State.COMPLETED
    traps["after-settle"].wake()

    assert stage.returned(job_id, receipt("committed"))
    assert stage.commits().count(job_id) == 1
    assert [entry.key for entry in stage.journal.entries()].count("committed") == 1


def test_a_whole_worker_that_stood_still_changes_nothing_after_another_has_taken_over(scene: Scene) -> None:
    midway = Failpoint("mid-effect", "wait", scene.folder)
    # With room for one message, so that RabbitMQ sends it no other while it stands still.
    first = scene.start(midway, concurrency=1)
    job_id = scene.shop.charge.delay("order-1").id
    assert eventually(lambda: midway.fired == 1, SOON)
    scene.start()

    first.pause()
    assert scene.returned(job_id, receipt("order-1"))
    midway.release()
    first.resume()

    assert eventually(lambda: bool(fenced(scene, job_id)), SOON)
    assert scene.commits() == [job_id]
    # It works on as before.
    later = {order: scene.shop.charge.delay(order).id for order in (f"later {number}" for number in range(8))}
    assert all(scene.returned(job, receipt(order)) for order, job in later.items())


def fenced(scene: Scene, job_id: str) -> set[int]:
    """Give the processes that were told that the job is not theirs."""
    return {entry.pid for entry in scene.journal.entries(what="fenced") if entry.key == job_id}
