"""Stores that die, stand still and lose replies while tasks run: what is done is recorded once, and not done again."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from faults.brokers import broker_on
from faults.conftest import Setting
from faults.scene import SOON, Scene
from faults.shop import receipt
from faults.workers import Worker
from oncelery.embedded.process import eventually
from oncelery.stores.redis.scripts import FLAGGED
from oncelery.testing.failpoints import Failpoint
from oncelery.testing.proxy import FaultProxy
from oncelery.testing.servers import PostgresServer, ValkeyServer

LEASE = 1.0
#: How long a store is away, in seconds.
ABSENCE = 2.5 * LEASE

#: How many tasks run meanwhile.
RUNNING = 4


@pytest.fixture(params=["durable_valkey", "private_postgres"])
def own_store(request: pytest.FixtureRequest) -> ValkeyServer | PostgresServer:
    store: ValkeyServer | PostgresServer = request.getfixturevalue(request.param)
    return store


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_runs_outlive_a_store_that_is_away_for_longer_than_their_leases(
    own_store: ValkeyServer | PostgresServer, valkey: ValkeyServer, setting: Setting, how: str
) -> None:
    with setting(broker_on(valkey), store=own_store.url, lease=LEASE) as scene:
        midway = Failpoint("mid-effect", "wait", scene.folder, times=RUNNING)
        # With room for more, so that others could take over.
        workers = [scene.start(midway, concurrency=RUNNING) for _ in range(2)]
        jobs = {order: scene.shop.charge.delay(order).id for order in (f"order-{n}" for n in range(RUNNING))}
        assert eventually(lambda: midway.fired == RUNNING, SOON)

        getattr(own_store, how)()
        back_at = time.monotonic() + ABSENCE
        assert eventually(lambda: time.monotonic() > back_at, SOON)
        # One that is dead is missed by each sweeper before it is back; nobody can tell one that stands still.
        assert how == "pause" or eventually(lambda: all("could not sweep" in worker.log for worker in workers), SOON)
        own_store.restart() if how == "kill" else own_store.resume()
        # Each owner has renewed its lease when it goes on.
        assert eventually(lambda: all(is_held(scene, job_id) for job_id in jobs.values()), SOON)
        midway.release()

        assert all(scene.returned(job_id, receipt(order)) for order, job_id in jobs.items())
        assert scene.journal.verdict(list(jobs)).is_clean
        assert len(scene.journal.entries(what="start")) == RUNNING
        assert sorted(scene.commits()) == sorted(jobs.values())


def test_an_outcome_waits_for_a_store_that_is_away(
    own_store: ValkeyServer | PostgresServer, valkey: ValkeyServer, setting: Setting
) -> None:
    with setting(broker_on(valkey), store=own_store.url, lease=LEASE) as scene:
        midway = Failpoint("mid-effect", "wait", scene.folder)
        worker = scene.start(midway)
        job_id = scene.shop.charge.delay("order-1").id
        assert eventually(lambda: midway.fired == 1, SOON)

        own_store.kill()
        midway.release()
        assert eventually(lambda: "the store does not answer" in worker.log, SOON)
        own_store.restart()

        assert scene.returned(job_id, receipt("order-1"))
        assert scene.journal.verdict(["order-1"]).is_clean
        assert scene.commits() == [job_id]


# Lost replies: the store has done it, and the caller cannot know


@pytest.fixture(scope="module")
def line(valkey: ValkeyServer) -> Iterator[FaultProxy]:
    """Give the way to the store, on which replies get lost."""
    with FaultProxy(valkey.port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def far_worker(stage_on_redis: Scene, line: FaultProxy, valkey: ValkeyServer) -> Iterator[Worker]:
    worker = stage_on_redis.start(env={"ONCELERY_STORE": line.url(valkey.url), "ONCELERY_LEASE": str(LEASE)})
    yield worker
    worker.stop()


@pytest.mark.usefixtures("far_worker")
@pytest.mark.parametrize("verb", ["begin", "renew", "record", "settle", "due"])
def test_a_run_is_not_disturbed_when_the_reply_to_one_of_its_verbs_is_lost(
    stage_on_redis: Scene, line: FaultProxy, verb: str
) -> None:
    scene = stage_on_redis
    lost = line.lose_reply(FLAGGED[verb].head)

    job_id = scene.shop.charge_in_step.delay(f"without {verb}", seconds=LEASE).id

    assert scene.returned(job_id, receipt(f"without {verb}"))
    assert eventually(lost.happened.is_set, SOON)
    assert [entry.key for entry in scene.journal.entries()].count(f"without {verb}") == 1
    assert [entry.key for entry in scene.journal.entries(what="start")].count(f"without {verb}") == 1
    assert scene.commits().count(job_id) == 1
    assert scene.job(job_id).past == ()


def test_a_job_whose_reservation_was_not_confirmed_is_accepted_once(
    line: FaultProxy, setting: Setting, valkey: ValkeyServer
) -> None:
    with setting(broker_on(valkey), store=line.url(valkey.url)) as scene:
        lost = line.lose_reply(FLAGGED["reserve"].head)

        job_id = scene.shop.charge.delay("order-1").id
        again = scene.shop.charge.delay("order-1").id
        scene.start()

        assert lost.happened.is_set()
        assert again == job_id
        assert scene.returned(job_id, receipt("order-1"))
        assert scene.journal.verdict(["order-1"]).is_clean


def is_held(scene: Scene, job_id: str) -> bool:
    """Whether a run holds the job, under a lease that has not lapsed."""
    until = scene.job(job_id).lease_until
    return until is not None and until.timestamp() > time.time()
