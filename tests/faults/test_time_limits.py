"""Soft time limits that strike between the steps of the ledger: what a run has done is recorded, and not done again."""

from __future__ import annotations

import pytest
from celery.exceptions import SoftTimeLimitExceeded

from faults.brokers import broker_on
from faults.conftest import Setting
from faults.scene import SOON
from faults.shop import receipt
from oncelery.embedded.process import eventually
from oncelery.job import State
from oncelery.testing.failpoints import Failpoint
from oncelery.testing.servers import ValkeyServer


@pytest.mark.parametrize("place", ["before-settle", "after-settle"])
def test_a_limit_that_strikes_after_a_task_has_ended_changes_nothing(
    valkey: ValkeyServer, setting: Setting, place: str
) -> None:
    with setting(broker_on(valkey)) as scene:
        limit = Failpoint(place, "limit", scene.folder)
        scene.start(limit, concurrency=1)

        # The second one finds the child as it should be.
        jobs = {order: scene.shop.charge.delay(order).id for order in ("order-1", "order-2")}

        assert all(scene.returned(job_id, receipt(order)) for order, job_id in jobs.items())
        assert limit.fired == 1
        assert len(scene.journal.entries(what="start")) == 2
        assert scene.journal.verdict(list(jobs)).is_clean
        assert sorted(scene.commits()) == sorted(jobs.values())


@pytest.mark.parametrize("place", ["before-begin", "after-begin"])
def test_a_limit_that_strikes_before_a_task_has_begun_is_its_error(
    valkey: ValkeyServer, setting: Setting, place: str
) -> None:
    with setting(broker_on(valkey)) as scene:
        limit = Failpoint(place, "limit", scene.folder)
        scene.start(limit, concurrency=1)

        struck = scene.shop.charge.delay("order-1")

        assert eventually(lambda: struck.state == "FAILURE", SOON)
        assert isinstance(struck.result, SoftTimeLimitExceeded)
        assert scene.job(struck.id).state is State.BURIED
        scene.shop.once.dead_letters.revive(struck.id)
        assert scene.returned(struck.id, receipt("order-1"))
        assert scene.journal.verdict(["order-1"]).is_clean
        assert len(scene.journal.entries(what="start")) == 1


def test_a_limit_that_strikes_when_a_step_is_done_does_not_have_it_done_again(
    valkey: ValkeyServer, setting: Setting
) -> None:
    with setting(broker_on(valkey)) as scene:
        scene.start(Failpoint("before-record", "limit", scene.folder), concurrency=1)

        struck = scene.shop.charge_in_step.delay("order-1")

        assert eventually(lambda: struck.state == "FAILURE", SOON)
        scene.shop.once.dead_letters.revive(struck.id)
        assert scene.returned(struck.id, receipt("order-1"))
        assert scene.journal.verdict(["order-1"]).is_clean
