"""A primary that is replaced: nothing is granted twice, and a caller who can wait is not refused."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass

import pytest
from faults.replicated import Cluster, Watched, clustered, watched
from redis import Redis

from oncelery.answers import Absent, Busy, Finished, Granted, Reserved
from oncelery.embedded.process import eventually
from oncelery.errors import ConfigurationError, StoreUnavailableError
from oncelery.job import State
from oncelery.stores.redis import RedisStore
from oncelery.stores.redis.address import Address, Node
from oncelery.stores.redis.primary import ClusterNodes, Sentinels
from oncelery.testing.conformance.acts import JOB, accepted, begin, complete, reserve, running, seen, work
from oncelery.testing.servers import RedisServer
from stores.redis.stores import AnyServer, client_of, opened

#: What the store of these tests begins its keys with.
PREFIX = b"{oncelery}:"


# A stale primary: paused, replaced and resumed, it answers for ten seconds as if nothing had happened


@dataclass(frozen=True, slots=True)
class Replaced:
    """Servers whose first primary has been replaced and does not know it yet."""

    servers: Watched
    #: Was connected to the first primary before.
    idle: RedisStore
    #: Knows the new one.
    other: RedisStore

    def still_stale(self) -> bool:
        with client_of(self.servers.primary) as client:
            return str(client.info("replication")["role"]) == "master"


@contextmanager
def replaced(before: Callable[[RedisStore], object], after: Callable[[RedisStore], object]) -> Iterator[Replaced]:
    """Give a stale primary: the idle store asks `before` the pause, another one what comes `after` the fail-over."""
    with (
        watched() as servers,
        closing(RedisStore(servers.url)) as idle,
        closing(RedisStore(servers.url)) as other,
    ):
        before(idle)
        servers.primary.pause()
        servers.wait_for_failover()
        after(other)
        servers.primary.resume()
        yield Replaced(servers, idle, other)


def begin_as_a_worker_does(store: RedisStore) -> object:
    answer = begin(store, work(body=None), holder="idle")
    return begin(store, holder="idle") if isinstance(answer, Absent) else answer


def test_a_job_that_only_the_new_primary_knows_has_one_grant() -> None:
    with replaced(lambda idle: idle.get("none"), accepted) as scene:
        answers = begin_as_a_worker_does(scene.idle), begin(scene.other, holder="other")

        assert [type(answer) for answer in answers] == [Granted, Busy]
        assert scene.still_stale()


def test_a_job_is_not_accepted_by_a_primary_that_was_replaced() -> None:
    with replaced(lambda idle: idle.get("none"), lambda other: other.get("none")) as scene:
        assert isinstance(reserve(scene.idle), Reserved)

        assert seen(scene.other).state is State.QUEUED
        assert scene.still_stale()


def test_a_run_that_began_before_the_pause_settles_where_others_see_it() -> None:
    leases = []
    with replaced(lambda idle: leases.append(running(idle)), lambda other: other.get("none")) as scene:
        complete(scene.idle, leases[0])

        assert isinstance(begin(scene.other), Finished)
        assert scene.still_stale()


def test_sentinels_are_not_asked_while_the_primary_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    find = Sentinels.find

    def counted(self: Sentinels, *suspect: object) -> object:
        asked.append(suspect)
        return find(self, *suspect)  # type: ignore[arg-type]

    monkeypatch.setattr(Sentinels, "find", counted)
    with watched(replicas=0, sentinels=1) as servers, closing(RedisStore(servers.url)) as store:
        accepted(store)
        monkeypatch.setattr("oncelery.stores.redis.primary.TRUSTED_SECONDS", 60.0)
        for _ in range(100):
            store.get(JOB)
            store.get("none")
        assert len(asked) == 1

        # As after a silence.
        monkeypatch.setattr("oncelery.stores.redis.primary.TRUSTED_SECONDS", 0.0)
        store.get(JOB)
        assert len(asked) == 2


def test_a_sentinel_that_is_dead_or_does_not_know_better_is_outvoted() -> None:
    with watched() as servers, closing(RedisStore(f"{servers.url}&patience=20")) as store:
        servers.sentinels[0].pause()
        servers.primary.kill()
        assert isinstance(reserve(store), Reserved)
        # It now knows what was true before, until the others tell it.
        servers.sentinels[0].resume()

        store.close()
        assert seen(store).state is State.QUEUED


# Patience


@pytest.fixture
def passing() -> Iterator[Callable[[bytes], str]]:
    """Give what starts a server that refuses five times with the error, and then knows no job; and gives its URL."""

    def serve(listener: socket.socket, error: bytes) -> None:
        left = 5
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client:
                while request := client.recv(65_536):
                    if b"HELLO" in request:
                        client.sendall(b"%2\r\n+version\r\n+7.0.0\r\n+proto\r\n:3\r\n")
                    elif b"EVALSHA" in request:
                        left -= 1
                        client.sendall(b"-%b\r\n" % error if left >= 0 else b"_\r\n")
                    else:
                        client.sendall(b"+OK\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def start(error: bytes) -> str:
            threads.append(threading.Thread(target=serve, args=[listener, error]))
            threads[-1].start()
            return f"redis://127.0.0.1:{listener.getsockname()[1]}/0"

        threads: list[threading.Thread] = []
        yield start
        listener.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(
    "error",
    [
        b"LOADING Redis is loading the dataset in memory",
        b"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        b"CLUSTERDOWN The cluster is down",
        b"TRYAGAIN Multiple keys request during rehashing of slot",
        b"ASK 6501 127.0.0.1:1",
        b"NOREPLICAS Not enough good replicas to write.",
        b"ERR Error running script: @user_script: 17: -NOREPLICAS Not enough good replicas to write.",
        b"READONLY You can't write against a read only replica.",
        b"UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
    ],
    ids=lambda error: error.split()[0].decode(),
)
def test_what_passes_by_itself_is_waited_for(error: bytes, passing: Callable[[bytes], str]) -> None:
    store = RedisStore(f"{passing(error)}?patience=20")

    assert store.get("none") is None
    store.close()


def test_patience_ends(private_redis7: RedisServer) -> None:
    with opened(private_redis7, "patience=1") as store, client_of(private_redis7) as client:
        client.config_set("min-replicas-to-write", 1)
        started = time.monotonic()

        with pytest.raises(StoreUnavailableError, match="NOREPLICAS"):
            reserve(store)

        assert 1 < time.monotonic() - started < 10


def test_a_silent_server_takes_no_more_than_the_patience_and_one_reply(private_server: AnyServer) -> None:
    with opened(private_server, "patience=2&socket_timeout=1") as store:
        accepted(store)
        private_server.pause()
        started = time.monotonic()

        with pytest.raises(StoreUnavailableError, match="not in time"):
            begin(store)

        assert 2 < time.monotonic() - started < 2 + 1 + 1
        private_server.resume()
        assert isinstance(begin(store), Granted)


def test_a_reply_may_take_no_longer_than_the_patience() -> None:
    address = Address("redis://host/0?patience=2")

    assert address.reply_seconds == 2


# A cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Give a cluster of three nodes; what two of them have stays there when the third is gone."""
    with clustered(primaries=3, replicas=0, whole=False) as cluster:
        yield cluster


def test_a_dead_seed_does_not_matter(cluster: Cluster) -> None:
    seeds = cluster.url().replace("redis://", "redis://127.0.0.1:1,")
    with closing(RedisStore(f"{seeds}?patience=0", namespace="dead seed")) as store:
        assert isinstance(reserve(store), Reserved)


def test_one_seed_is_enough_to_know_the_others(cluster: Cluster) -> None:
    owner = cluster.owner(PREFIX)
    seed = next(node for node in cluster.nodes if node is not owner)
    with closing(RedisStore(cluster.url(seed))) as store:
        accepted(store)
        seed.kill()
        try:
            store.close()

            assert seen(store).state is State.QUEUED
        finally:
            seed.restart()
            assert eventually(lambda: all(is_joined(node) for node in cluster.nodes), 30)


def is_joined(node: RedisServer) -> bool:
    with client_of(node) as client:
        about = client.execute_command("CLUSTER INFO")  # type: ignore[no-untyped-call]
        return bool(about["cluster_state"] == "ok" and int(about["cluster_slots_ok"]) == 16384)


def test_a_slot_that_moves_is_waited_for_and_not_followed(cluster: Cluster) -> None:
    owner = cluster.owner(PREFIX)
    target = next(node for node in cluster.nodes if node is not owner)
    with (
        closing(RedisStore(cluster.url())) as store,
        closing(RedisStore(f"{cluster.url()}?patience=0")) as hasty,
        client_of(owner) as here,
        client_of(target) as there,
        ThreadPoolExecutor() as pool,
    ):
        slot = here.execute_command("CLUSTER KEYSLOT", PREFIX)  # type: ignore[no-untyped-call]
        names = [str(each.execute_command("CLUSTER MYID"), "ascii") for each in (here, there)]  # type: ignore[no-untyped-call]
        there.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", names[0])  # type: ignore[no-untyped-call]
        here.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", names[1])  # type: ignore[no-untyped-call]
        before = asks(here)
        waiting = pool.submit(reserve, store, "moved", "moved")
        assert eventually(lambda: asks(here) > before, 30)
        with pytest.raises(StoreUnavailableError, match="ASK"):
            reserve(hasty)
        for each in (here, there):
            each.execute_command("CLUSTER SETSLOT", slot, "STABLE")  # type: ignore[no-untyped-call]

        assert isinstance(waiting.result(30), Reserved)
        assert cluster.owner(PREFIX) is owner


def asks(client: Redis) -> int:
    """Count how often a node has said ASK."""
    about = client.info("errorstats").get("errorstat_ASK", {"count": 0})
    return int(about["count"])


def test_a_cluster_node_does_not_vouch_for_itself(cluster: Cluster) -> None:
    asked: list[int] = []
    address = Address(cluster.url())
    nodes = ClusterNodes(address, PREFIX)
    owner = nodes.find()
    find_from = address.open

    def noted(node: Node | None = None) -> object:
        asked.append(node.port if node else 0)
        return find_from(node)

    address.open = noted  # type: ignore[method-assign, assignment]
    for _ in range(10):
        assert nodes.find(owner) == owner

    assert owner.port not in asked


def test_several_hosts_that_are_no_cluster_are_an_error_of_the_configuration(private_redis7: RedisServer) -> None:
    host = f"127.0.0.1:{private_redis7.port}"

    with pytest.raises(ConfigurationError, match=r"nodes of a cluster, or Sentinels with \?sentinel"):
        reserve(RedisStore(f"redis://{host},{host}/0"))
