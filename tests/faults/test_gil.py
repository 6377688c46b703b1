"""C code that keeps the GIL for three leases, so that no thread of its process can renew."""

from __future__ import annotations

from faults.brokers import broker_on
from faults.conftest import Setting
from faults.scene import SOON
from faults.shop import receipt
from oncelery.embedded.process import eventually
from oncelery.testing.servers import ValkeyServer

LEASE = 1.0


def test_a_child_that_keeps_the_gil_for_three_leases_keeps_its_job_thanks_to_the_parent(
    valkey: ValkeyServer, setting: Setting
) -> None:
    with setting(broker_on(valkey), lease=LEASE) as scene:
        scene.start()
        scene.start()

        job_id = scene.shop.keep_the_gil.delay("order-1", seconds=3 * LEASE).id

        assert scene.returned(job_id, receipt("order-1"))
        assert len(scene.journal.entries(what="start")) == 1
        assert scene.journal.verdict(["order-1"]).is_clean
        assert scene.job(job_id).past == ()


def test_a_thread_that_keeps_the_gil_for_three_leases_never_makes_a_second_commit(
    valkey: ValkeyServer, setting: Setting
) -> None:
    with setting(broker_on(valkey), lease=LEASE) as scene:
        scene.start(pool="threads")
        scene.start()

        jobs = {order: scene.shop.keep_the_gil.delay(order, seconds=3 * LEASE).id for order in ("order-1", "order-2")}

        assert all(scene.returned(job_id, receipt(order)) for order, job_id in jobs.items())
        runs = len(scene.journal.entries(what="start"))
        assert eventually(lambda: len(scene.journal.entries()) == runs, SOON)
        assert sorted(scene.commits()) == sorted(jobs.values())
