"""A ledger whose primary is replaced while jobs come and go: none lost, none run twice, none refused."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
from redis import Redis

from faults.brokers import broker_on
from faults.conftest import Setting
from faults.replicated import Cluster, Watched, clustered, watched
from faults.scene import Scene
from oncelery.embedded.process import eventually
from oncelery.job import State
from oncelery.testing.servers import ValkeyServer

pytestmark = pytest.mark.prove

#: How many jobs are sent, how many a second, and how many have taken effect when the fault strikes.
JOBS = 860
RATE = 20
BEFORE = 160

#: How many callers may wait for the ledger at once.
CALLERS = 400

#: Longer than the ledger's own check of a job that nobody has begun, and anything else that would run one again.
AFTERWARDS = 180.0

PATIENCE = "patience=15"

#: As in production: no lease lapses while the primary is replaced. And each of the many callers would listen for its
#: results, over a connection that outlives the test.
TERMS: dict[str, Any] = {"lease": 30.0, "task_ignore_result": True}

#: How long the old primary stays away after it was replaced.
AWAY = 3.0


def pause(servers: Watched, _: Scene) -> None:
    servers.primary.pause()
    servers.wait_for_failover()
    back_at = time.monotonic() + AWAY
    assert eventually(lambda: time.monotonic() > back_at, 2 * AWAY)
    servers.primary.resume()


def kill(servers: Watched, _: Scene) -> None:
    servers.primary.kill()
    servers.wait_for_failover()


@pytest.mark.parametrize("fault", [pause, kill])
def test_jobs_outlive_a_primary_that_sentinels_replace(
    fault: Callable[[Watched, Scene], None], setting: Setting, valkey: ValkeyServer
) -> None:
    with (
        watched(replicas=2, down_after_ms=3000) as servers,
        setting(broker_on(valkey), store=f"{servers.url}&{PATIENCE}", **TERMS) as scene,
    ):
        scene.start(concurrency=4)

        refused = send_while(scene, lambda: fault(servers, scene))

        report(scene, f"Sentinel, {fault.__name__}", refused)
        assert_once_each(scene, refused)


def kill_the_owner(cluster: Cluster, scene: Scene) -> None:
    owner = cluster.owner(slot_of(scene))
    owner.kill()
    # A worker that starts now finds the others as well.
    scene.start(concurrency=2)


def move_the_slot(cluster: Cluster, scene: Scene) -> None:
    """Move all keys of the ledger to another node, as `redis-cli --cluster reshard` does."""
    key = slot_of(scene)
    source, target = cluster.owner(key), next(node for node in cluster.nodes[:3] if node is not cluster.owner(key))
    with Redis(port=source.port) as here, Redis(port=target.port) as there:
        slot = tell(here, "CLUSTER KEYSLOT", key)
        names = [tell(each, "CLUSTER MYID").decode() for each in (here, there)]
        tell(there, "CLUSTER SETSLOT", slot, "IMPORTING", names[0])
        tell(here, "CLUSTER SETSLOT", slot, "MIGRATING", names[1])
        # In two words, or redis-py would read the names of keys, which are bytes, as text.
        while keys := tell(here, "CLUSTER", "GETKEYSINSLOT", slot, 10):
            moved = tell(here, "MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
            assert moved == b"OK", (moved, keys)
        for each in (there, here):
            tell(each, "CLUSTER SETSLOT", slot, "NODE", names[1])


@pytest.mark.parametrize("fault", [kill_the_owner, move_the_slot])
def test_jobs_outlive_a_change_of_the_cluster(
    fault: Callable[[Cluster, Scene], None], setting: Setting, valkey: ValkeyServer
) -> None:
    with (
        clustered(node_timeout_ms=5000) as cluster,
        setting(broker_on(valkey), store=f"{cluster.url()}?{PATIENCE}", **TERMS) as scene,
    ):
        scene.start(concurrency=4)

        refused = send_while(scene, lambda: fault(cluster, scene))

        report(scene, f"cluster, {fault.__name__}", refused)
        assert_once_each(scene, refused)


def send_while(scene: Scene, strike: Callable[[], None]) -> dict[str, str]:
    """Send all jobs at their times, whatever becomes of those before; return why any were refused."""
    with sending(scene) as sent:
        assert eventually(lambda: scene.journal.count() >= BEFORE, AFTERWARDS)
        strike()
        return {order: str(error) for order, each in sent.items() if (error := each.exception())}


@contextmanager
def sending(scene: Scene) -> Iterator[dict[str, Future[str]]]:
    def send(order: str, at: float) -> str:
        time.sleep(max(0.0, at - time.monotonic()))
        job_id: str = scene.shop.charge.delay(order).id
        return job_id

    started = time.monotonic()
    with ThreadPoolExecutor(CALLERS) as callers:
        try:
            yield {order: callers.submit(send, order, started + n / RATE) for n, order in enumerate(orders())}
        except BaseException:
            callers.shutdown(wait=False, cancel_futures=True)
            raise


def orders() -> list[str]:
    return [f"order-{number}" for number in range(JOBS)]


def assert_once_each(scene: Scene, refused: dict[str, str]) -> None:
    assert refused == {}
    verdict = scene.journal.verdict(orders())
    assert verdict.is_clean, verdict


def report(scene: Scene, what: str, refused: dict[str, str]) -> None:
    """Wait until no job is left, and say what has become of them."""
    live = {State.QUEUED, State.RUNNING}
    eventually(lambda: scene.journal.count() >= JOBS - len(refused), AFTERWARDS)
    assert eventually(lambda: not any(counts(scene)[state] for state in live), AFTERWARDS)
    effects = scene.journal.entries()
    verdict = scene.journal.verdict(order for order in orders() if order not in refused)
    standstill = max(later.at - earlier.at for earlier, later in pairwise(effects)) / 1e9
    sys.stdout.write(
        f"{what}: accepted {JOBS - len(refused)}, refused {len(refused)}, lost {verdict.lost.total()}, "
        f"twice {verdict.duplicated.total()}, standstill {standstill:.1f} s\n"
    )


def counts(scene: Scene) -> dict[State, int]:
    return dict(scene.shop.once.ledger.tally().states)


def slot_of(scene: Scene) -> bytes:
    """Return the key by which the cluster knows where the ledger is."""
    return b"{%b}:" % scene.shop.once.settings.namespace.encode()


def tell(client: Redis, *words: object) -> Any:  # noqa: ANN401 - whatever the server says
    return client.execute_command(*words)  # type: ignore[no-untyped-call]
