"""kill -9 of a child at each place, of a whole worker, and how long it takes until the job goes on."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import pytest

from faults.scene import SOON, Scene, busyness
from faults.shop import receipt
from faults.traps import Trap
from faults.workers import Worker
from oncelery.embedded.process import eventually
from oncelery.job import Cause, State

#: Where a child is killed, how often the effect of its job then happens, and how many runs are cut short.
PLACES = [
    ("before-begin", 1, 0),
    ("after-begin", 1, 1),
    ("mid-effect", 1, 1),
    # The effect is done and nobody knows: what `run.transaction` and `run.idempotency_key` are for.
    ("before-settle", 2, 1),
    ("after-settle", 1, 0),
]

#: How many deaths are timed.
DEATHS = 7


@pytest.fixture(scope="module")
def traps(stage: Scene) -> dict[str, Trap]:
    return {place: Trap(place, "kill", stage.folder) for place, *_ in PLACES}


@pytest.fixture(scope="module")
def worker(stage: Scene, traps: dict[str, Trap]) -> Iterator[Worker]:
    worker = stage.start(*(trap.point for trap in traps.values()))
    yield worker
    worker.stop()


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize(("place", "effects", "cut_short"), PLACES)
def test_a_job_whose_child_is_killed_is_completed_once(
    stage: Scene, traps: dict[str, Trap], place: str, effects: int, cut_short: int
) -> None:
    traps[place].set()

    job_id = stage.shop.charge.delay(place).id

    assert stage.returned(job_id, receipt(place))
    assert traps[place].caught
    assert stage.commits().count(job_id) == 1
    assert [entry.key for entry in stage.journal.entries()].count(place) == effects
    assert [attempt.cause for attempt in stage.job(job_id).past] == [Cause.CRASH] * cut_short


@pytest.mark.usefixtures("worker")
def test_a_finished_step_is_not_run_again_after_a_kill(stage: Scene, traps: dict[str, Trap]) -> None:
    traps["before-settle"].reset()
    traps["before-settle"].set()

    job_id = stage.shop.charge_in_step.delay("in a step").id

    assert stage.returned(job_id, receipt("in a step"))
    assert traps["before-settle"].caught
    assert [entry.key for entry in stage.journal.entries()].count("in a step") == 1
    assert [entry.key for entry in stage.journal.entries(what="start")].count("in a step") == 2


def test_the_job_of_a_killed_child_begins_again_within_a_second(stage: Scene, worker: Worker) -> None:
    waits = []
    for number in range(DEATHS):
        order = f"death {number}"
        job_id = stage.shop.charge_slowly_at_first.delay(order, seconds=SOON).id
        assert eventually(lambda: len(starts(stage, order)) == 1, SOON)  # noqa: B023 - called at once

        killed_at = time.monotonic_ns()
        worker.kill_child(stage.journal.entries(what="start")[-1].pid)

        assert stage.returned(job_id, receipt(order))
        assert [attempt.cause for attempt in stage.job(job_id).past] == [Cause.CRASH]
        waits.append((starts(stage, order)[1] - killed_at) / 1e9)

    assert statistics.median(waits) < 1.0 * busyness()


def test_the_job_of_a_killed_worker_begins_again_soon_after_its_lease(scene: Scene) -> None:
    first = scene.start()
    job_id = scene.shop.charge_slowly_at_first.delay("order-1", seconds=SOON).id
    assert eventually(lambda: len(starts(scene, "order-1")) == 1, SOON)
    scene.start()

    killed_at = time.monotonic_ns()
    first.kill()

    assert scene.returned(job_id, receipt("order-1"))
    lease = scene.shop.charge.policy.lease.total_seconds()
    assert (starts(scene, "order-1")[1] - killed_at) / 1e9 < lease + 5.0 * busyness()
    assert scene.commits() == [job_id]
    assert [attempt.cause for attempt in scene.job(job_id).past] == [Cause.LAPSE]


def test_what_a_killed_worker_had_done_but_not_told_is_told_by_the_next(scene: Scene) -> None:
    trap = Trap("after-settle", "stop", scene.folder)
    trap.set()
    first = scene.start(trap.point)
    job_id = scene.shop.charge.delay("order-1").id
    assert eventually(lambda: trap.caught is not None, SOON)
    assert scene.job(job_id).state is State.COMPLETED
    assert scene.result(job_id).state == "PENDING"

    first.kill()
    scene.start()

    assert scene.returned(job_id, receipt("order-1"))
    assert scene.journal.verdict(["order-1"]).is_clean
    assert scene.commits() == [job_id]


def starts(scene: Scene, order: str) -> list[int]:
    """Give when the runs of an order began."""
    return [entry.at for entry in scene.journal.entries(what="start") if entry.key == order]
