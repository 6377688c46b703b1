"""A ledger that fails over, or is emptied, while a job runs and the broker lives on: nothing accepted is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from celery import chain
from redis import Redis
from stores.redis.stores import client_of, follow

from faults.brokers import broker_on
from faults.conftest import Setting
from faults.scene import SOON, Scene
from faults.shop import receipt
from oncelery.embedded.process import eventually
from oncelery.job import Cause, State
from oncelery.testing.failpoints import Failpoint
from oncelery.testing.servers import RedisServer, ValkeyServer

#: Renewed at once; and not before the run has ended.
SHORT, LONG = 1.0, 120.0


@pytest.fixture
def replica(private_redis7: RedisServer) -> Iterator[RedisServer]:
    """Give a replica whose link to the ledger's primary is broken: nothing that is written from now on reaches it."""
    with RedisServer() as replica:
        follow(replica, private_redis7)
        with client_of(replica) as client:
            client.replicaof("NO", "ONE")
        yield replica


def promote(replica: RedisServer, primary: RedisServer) -> None:
    """Have the replica take the place of its primary, under the address that clients know."""
    primary.kill()
    replica.port = primary.port
    replica.restart()


def empty(scene: Scene) -> None:
    """Delete all that the ledger knows."""
    with closing(Redis.from_url(scene.store)) as client:
        assert client.delete(*client.keys(f"{{{scene.environment['ONCELERY_NAMESPACE']}}}:*"))


def is_restored(scene: Scene, job_id: str) -> bool:
    job = scene.shop.once.ledger.get(job_id)
    return job is not None and job.state is State.RUNNING


@pytest.mark.parametrize(
    ("task", "place", "pool", "lease"),
    [
        # The run itself finds out, when it settles or records; or its heartbeat does, before that.
        ("charge", "mid-effect", "prefork", LONG),
        ("charge", "mid-effect", "prefork", SHORT),
        ("charge", "mid-effect", "threads", SHORT),
        ("charge_with_progress", "mid-effect", "prefork", LONG),
        ("charge_in_step", "before-step", "prefork", LONG),
    ],
)
def test_a_job_that_runs_while_its_ledger_fails_over_takes_effect_once_and_its_chain_goes_on(  # noqa: PLR0917
    private_redis7: RedisServer,
    valkey: ValkeyServer,
    setting: Setting,
    request: pytest.FixtureRequest,
    task: str,
    place: str,
    pool: str,
    lease: float,
) -> None:
    with setting(broker_on(valkey), store=private_redis7.url, lease=lease) as scene:
        midway = Failpoint(place, "wait", scene.folder)
        scene.start(midway, pool=pool)
        replica = request.getfixturevalue("replica")
        links = chain(getattr(scene.shop, task).s("order-1"), scene.shop.charge.si("order-2")).apply_async()
        job_id = links.parent.id  # type: ignore[union-attr] # of a chain of two
        assert eventually(lambda: midway.fired == 1, SOON)

        promote(replica, private_redis7)
        assert scene.shop.once.ledger.get(job_id) is None or lease == SHORT
        assert lease == LONG or eventually(lambda: is_restored(scene, job_id), SOON)
        midway.release()

        assert scene.returned(job_id, receipt("order-1"))
        assert scene.returned(links.id, receipt("order-2"))
        assert scene.journal.verdict(["order-1", "order-2"]).is_clean
        assert [entry.key for entry in scene.journal.entries(what="start")] == ["order-1", "order-2"]
        assert sorted(scene.commits()) == sorted([job_id, links.id])
        assert scene.job(job_id).state is State.COMPLETED


@pytest.mark.parametrize("lease", [SHORT, LONG])
def test_a_child_that_is_killed_after_the_ledger_has_lost_its_job_has_it_run_again(
    valkey: ValkeyServer, setting: Setting, lease: float
) -> None:
    with setting(broker_on(valkey), lease=lease) as scene:
        midway = Failpoint("mid-effect", "wait", scene.folder)
        worker = scene.start(midway)
        job_id = scene.shop.charge.delay("order-1").id
        assert eventually(lambda: midway.fired == 1, SOON)
        empty(scene)
        assert lease == LONG or eventually(lambda: is_restored(scene, job_id), SOON)

        worker.kill_child(scene.journal.entries(what="start")[0].pid)

        assert scene.returned(job_id, receipt("order-1"))
        assert scene.journal.verdict(["order-1"]).is_clean
        assert scene.job(job_id).state is State.COMPLETED
        # The parent lets go of the lease under which the job was recorded again; nobody waits for it to lapse.
        assert [run.cause for run in scene.job(job_id).past] == ([Cause.CRASH] if lease == SHORT else [])


def test_a_hard_time_limit_after_the_ledger_has_lost_the_job_does_not_lose_the_message(
    valkey: ValkeyServer, setting: Setting
) -> None:
    with setting(broker_on(valkey), lease=LONG) as scene:
        scene.start()
        job_id = scene.shop.charge.apply_async(("order-1", SOON), time_limit=2).id
        assert eventually(lambda: bool(scene.journal.entries(what="start")), SOON)
        empty(scene)

        # It comes again, and the ledger that knows it by now buries it.
        assert eventually(lambda: scene.result(job_id).state == "FAILURE", SOON)
        assert scene.job(job_id).state is State.BURIED
        assert len(scene.journal.entries(what="start")) == 2


def test_steps_that_were_done_before_the_ledger_lost_the_job_are_not_done_again(
    valkey: ValkeyServer, setting: Setting
) -> None:
    with setting(broker_on(valkey), lease=SHORT) as scene:
        midway = Failpoint("after-step", "wait", scene.folder)
        worker = scene.start(midway)
        job_id = scene.shop.charge_in_step.delay("order-1").id
        assert eventually(lambda: midway.fired == 1, SOON)
        empty(scene)
        assert eventually(lambda: is_restored(scene, job_id), SOON)

        worker.kill_child(scene.journal.entries(what="start")[0].pid)

        assert scene.returned(job_id, receipt("order-1"))
        assert len(scene.journal.entries(what="start")) == 2
        assert scene.journal.verdict(["order-1"]).is_clean


def test_a_job_that_is_queued_when_the_ledger_loses_it_is_accepted_where_its_message_comes(
    valkey: ValkeyServer, setting: Setting
) -> None:
    with setting(broker_on(valkey), lease=SHORT) as scene:
        job_id = scene.shop.charge.delay("order-1").id
        empty(scene)

        scene.start()

        assert scene.returned(job_id, receipt("order-1"))
        assert scene.job(job_id).state is State.COMPLETED
        assert scene.journal.verdict(["order-1"]).is_clean
