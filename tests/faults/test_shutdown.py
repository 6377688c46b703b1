"""Workers and children that are told to end: what they were doing is handed back, settled or cancelled, at once."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator

import pytest

from faults.brokers import Broker, broker_on
from faults.conftest import Setting
from faults.scene import SOON, Scene
from faults.shop import receipt
from faults.workers import Worker
from oncelery.embedded.process import eventually
from oncelery.job import Cause, Reason, State
from oncelery.testing.failpoints import Failpoint
from oncelery.testing.servers import ValkeyServer

#: So long that no test could wait for it.
LEASE = 600.0


@pytest.mark.parametrize("soft", [0.0, 1.0])
def test_a_cold_shutdown_hands_its_job_to_another_worker_at_once(broker: Broker, setting: Setting, soft: float) -> None:
    with setting(broker, lease=LEASE) as scene:
        first = scene.start(settings={"worker_soft_shutdown_timeout": soft})
        job_id = scene.shop.charge_slowly_at_first.delay("order-1", seconds=LEASE).id
        assert eventually(lambda: len(scene.journal.entries(what="start")) == 1, SOON)
        scene.start()

        first.stop(signal.SIGQUIT)

        assert scene.returned(job_id, receipt("order-1"))
        assert scene.journal.verdict(["order-1"]).is_clean
        assert scene.commits() == [job_id]
        assert [attempt.cause for attempt in scene.job(job_id).past] == [Cause.HANDBACK]
        # It was not the job's fault.
        assert (scene.job(job_id).attempt, scene.job(job_id).crashes) == (1, 0)


def test_a_warm_shutdown_ends_what_it_runs_and_leaves_the_rest_to_others(broker: Broker, setting: Setting) -> None:
    with setting(broker, lease=LEASE) as scene:
        midway = Failpoint("mid-effect", "wait", scene.folder, times=2)
        first = scene.start(midway, options=["--loglevel", "DEBUG"])
        jobs = {order: scene.shop.charge.delay(order).id for order in (f"order-{number}" for number in range(8))}
        assert eventually(lambda: midway.fired == 2, SOON)

        first._signal(signal.SIGTERM)  # noqa: SLF001 - and go on, for it waits for the tasks
        assert eventually(lambda: "Stopping Pool" in first.log, SOON)
        midway.release()
        scene.start()

        assert all(scene.returned(job_id, receipt(order)) for order, job_id in jobs.items())
        assert scene.journal.verdict(list(jobs)).is_clean
        assert len(scene.journal.entries(what="start")) == len(jobs)
        assert eventually(lambda: first.status == 0, SOON)


@pytest.fixture(scope="module")
def worker(stage_on_redis: Scene) -> Iterator[Worker]:
    worker = stage_on_redis.start()
    yield worker
    worker.stop()


@pytest.mark.usefixtures("worker")
def test_a_hard_time_limit_settles_the_job(stage_on_redis: Scene) -> None:
    scene = stage_on_redis

    job_id = scene.shop.charge.apply_async(["too long"], {"seconds": SOON}, time_limit=1).id

    assert eventually(lambda: scene.job(job_id).state is State.BURIED, SOON)
    assert scene.job(job_id).reason == Reason.FAILED
    assert eventually(lambda: scene.result(job_id).state == "FAILURE", SOON)
    assert [entry.key for entry in scene.journal.entries(what="start")].count("too long") == 1
    assert "too long" not in [entry.key for entry in scene.journal.entries()]


@pytest.mark.usefixtures("worker")
def test_a_job_that_is_revoked_while_it_runs_is_cancelled(stage_on_redis: Scene) -> None:
    scene = stage_on_redis
    job_id = scene.shop.charge.delay("revoked", seconds=SOON).id
    assert eventually(lambda: "revoked" in [entry.key for entry in scene.journal.entries(what="start")], SOON)

    scene.shop.app.control.revoke(job_id, terminate=True)

    assert eventually(lambda: scene.job(job_id).state is State.CANCELLED, SOON)
    assert eventually(lambda: str(scene.result(job_id).state) == "REVOKED", SOON)
    neighbours = {order: scene.shop.charge.delay(order).id for order in ("after it", "and after")}
    assert all(scene.returned(neighbour, receipt(order)) for order, neighbour in neighbours.items())
    assert [entry.key for entry in scene.journal.entries(what="start")].count("revoked") == 1
    assert "revoked" not in [entry.key for entry in scene.journal.entries()]


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.prove)])
def test_each_of_many_jobs_is_done_once_by_children_that_come_and_go(
    valkey: ValkeyServer, setting: Setting, count: int
) -> None:
    with setting(broker_on(valkey)) as scene:
        scene.start(options=["--autoscale", "4,1", "--max-tasks-per-child", "1"])
        jobs = {order: scene.shop.charge.delay(order).id for order in (f"order-{number}" for number in range(count))}

        assert eventually(lambda: scene.all_are(State.COMPLETED, jobs.values()), SOON + count)
        # Who is told the result comes after who writes the journal.
        assert all(scene.returned(job_id, receipt(order)) for order, job_id in jobs.items())
        assert scene.journal.verdict(list(jobs)).is_clean
        assert Counter(scene.commits()) == Counter(jobs.values())
