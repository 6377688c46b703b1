"""Clocks of workers that are wrong by hours: the store's clock decides, so that it makes no difference."""

from __future__ import annotations

from dataclasses import replace

import pytest

from faults import wrong_clock
from faults.brokers import broker_on
from faults.conftest import Setting
from faults.scene import SOON
from faults.shop import GRACE_VARIABLE, receipt
from oncelery.embedded.process import eventually
from oncelery.testing.failpoints import Failpoint

TWO_HOURS = 7200

#: How soon a message is asked for that does not come, in seconds; and how often Redis' messages are looked through.
IMPATIENT = {GRACE_VARIABLE: "1"}
OFTEN = {"unacked_restore_interval": 0.2, "unacked_restore_throttle": 1}


@pytest.mark.parametrize(("server", "ahead"), [("valkey", TWO_HOURS), ("valkey", -TWO_HOURS), ("rabbitmq", -TWO_HOURS)])
def test_a_worker_whose_clock_is_wrong_by_two_hours_loses_and_repeats_nothing(
    request: pytest.FixtureRequest, setting: Setting, server: str, ahead: int
) -> None:
    broker = broker_on(request.getfixturevalue(server))
    with setting(replace(broker, transport_options=OFTEN) if server == "valkey" else broker) as scene:
        midway = Failpoint("mid-effect", "wait", scene.folder)
        right = scene.start(midway, concurrency=1, env=IMPATIENT)
        held = scene.shop.charge.delay("held").id
        assert eventually(lambda: midway.fired == 1, SOON)

        wrong = scene.start(env={**IMPATIENT, wrong_clock.VARIABLE: str(ahead)})
        orders = [f"order-{number}" for number in range(20)]
        jobs = {order: scene.shop.charge.delay(order).id for order in orders}
        later = [f"later-{number}" for number in range(4)]
        jobs |= {order: scene.shop.charge.apply_async([order], countdown=1).id for order in later}

        assert all(scene.returned(job_id, receipt(order)) for order, job_id in jobs.items())
        if ahead > 0:
            # To that clock it was delivered longer ago than the visibility timeout, so it is delivered again.
            assert eventually(lambda: f"[{held}] received" in wrong.log, SOON)
        midway.release()
        assert scene.returned(held, receipt("held"))
        assert scene.journal.verdict(["held", *jobs]).is_clean
        assert sorted(scene.commits()) == sorted([held, *jobs.values()])
        assert all(worker.is_running for worker in (right, wrong))
