"""kill -9 of workers whose pools have no children, and of which nothing is left to tell."""

from __future__ import annotations

from faults.brokers import broker_on
from faults.conftest import Setting
from faults.scene import SOON
from faults.shop import receipt
from oncelery.embedded.process import eventually
from oncelery.job import Cause
from oncelery.testing.servers import ValkeyServer

POOLS = ("threads", "gevent", "solo")


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
