"""kill -9 of workers whose pools have no children, and of which nothing is left to tell; children and threads."""

from __future__ import annotations

import pytest

from faults.brokers import broker_on
from faults.conftest import Setting
from faults.scene import SOON
from faults.shop import receipt
from oncelery.embedded.process import eventually
from oncelery.job import Cause
from oncelery.testing.servers import PostgresServer, ValkeyServer

POOLS = ("threads", "gevent", "solo")


@pytest.mark.prove
@pytest.mark.parametrize("ledger", ["valkey", "postgres"])
def test_no_child_hangs_that_is_forked_while_a_thread_of_its_parent_sweeps(
    request: pytest.FixtureRequest, valkey: ValkeyServer, setting: Setting, *, ledger: str
) -> None:
    server: ValkeyServer | PostgresServer = request.getfixturevalue(ledger)
    store = server.create_database() if isinstance(server, PostgresServer) else server.url
    with setting(broker_on(valkey), store=store) as scene:
        worker = scene.start(options=["--max-tasks-per-child", "1"], env={"ONCELERY_SWEEP_EVERY": "0.02"})

        jobs = {order: scene.shop.charge.delay(order).id for order in (f"order-{number}" for number in range(200))}

        assert all(scene.returned(job_id, receipt(order)) for order, job_id in jobs.items())
        assert "Timed out waiting for UP message" not in worker.log


def test_the_job_of_a_killed_worker_is_taken_over_whatever_its_pool(valkey: ValkeyServer, setting: Setting) -> None:
    with setting(broker_on(valkey)) as scene:
        workers = [scene.start(pool=pool, concurrency=1, options=["--queues", pool]) for pool in POOLS]
        jobs = {
            pool: scene.shop.charge_slowly_at_first.apply_async([pool], {"seconds": SOON}, queue=pool).id
            for pool in POOLS
        }
        assert eventually(lambda: len(scene.journal.entries(what="start")) == len(POOLS), SOON)

        for worker in workers:
            worker.kill()
        scene.start(options=["--queues", ",".join(POOLS)])

        assert all(scene.returned(job_id, receipt(pool)) for pool, job_id in jobs.items())
        assert scene.journal.verdict(POOLS).is_clean
        assert sorted(scene.commits()) == sorted(jobs.values())
        for job_id in jobs.values():
            assert [attempt.cause for attempt in scene.job(job_id).past] == [Cause.LAPSE]
