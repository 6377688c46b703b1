"""Servers that replace each other: a primary with replicas under Sentinels, and a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from redis import Redis, RedisError

from oncelery.embedded.process import PATIENCE_SECONDS, ServerStartError, eventually
from oncelery.testing.servers import RedisServer

#: The name under which the Sentinels watch the primary.
NAME = "shop"

#: A replica need not wait for others before it copies its primary.
AT_ONCE = {"repl-diskless-sync-delay": "0"}


class SentinelServer(RedisServer):
    """A private Sentinel that watches one primary."""

    def __init__(
        self,
        primary: RedisServer,
        *,
        quorum: int = 1,
        down_after_ms: int = 500,
        settings: str = "",
        client: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        #: How it is reached, if not as usual.
        self._client = dict(client or {})
        self._settings = f"""
sentinel monitor {NAME} 127.0.0.1 {primary.port} {quorum}
sentinel down-after-milliseconds {NAME} {down_after_ms}
sentinel failover-timeout {NAME} 5000
{settings}
"""

    def _prepare(self) -> None:
        # It rewrites the file with what it learns.
        (self.folder / "sentinel.conf").write_text(self._settings)

    def _command(self) -> list[str]:
        settings = str(self.folder / "sentinel.conf")
        ports = {"--port": 0, "--tls-port": self.port} if "ssl" in self._client else {"--port": self.port}
        options = [str(word) for option in ports.items() for word in option]
        return [self.program, settings, "--sentinel", *options, "--dir", str(self.folder)]

    def _answers(self) -> bool:
        try:
            with Redis(port=self.port, **self._client) as client:
                return int(client.info("server")["process_id"]) == self.pid
        except RedisError:
            return False


@dataclass(frozen=True, slots=True)
class Watched:
    """A primary, its replicas, and the Sentinels that watch them."""

    primary: RedisServer
    replicas: list[RedisServer]
    sentinels: list[SentinelServer]

    @property
    def url(self) -> str:
        """The store's URL, which names all Sentinels."""
        return f"redis://{_hosts(self.sentinels)}/0?sentinel={NAME}"

    def primary_port(self) -> int:
        """Ask the last Sentinel where the primary is."""
        with Redis(port=self.sentinels[-1].port) as client:
            return int(client.sentinel_get_master_addr_by_name(NAME)[1])

    def wait_for_failover(self) -> RedisServer:
        """Wait until all Sentinels name another primary, which takes writes; return it."""

        def done() -> bool:
            return all(named(sentinel) in successors for sentinel in self.sentinels) and writes()

        def named(sentinel: SentinelServer) -> int:
            with Redis(port=sentinel.port) as client:
                return int(client.sentinel_get_master_addr_by_name(NAME)[1])

        def writes() -> bool:
            with Redis(port=self.primary_port()) as client:
                return str(client.info("replication")["role"]) == "master"

        successors = {replica.port: replica for replica in self.replicas}
        _wait(done, "no fail-over")
        return successors[self.primary_port()]


@contextmanager
def watched(
    *, replicas: int = 1, sentinels: int = 3, down_after_ms: int = 500, options: Mapping[str, str] | None = None
) -> Iterator[Watched]:
    """Start a primary, replicas that have copied it, and Sentinels that know them all."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(RedisServer(options={**AT_ONCE, **(options or {})})) for _ in range(1 + replicas)
        ]
        primary, *others = servers
        for other in others:
            with Redis(port=other.port) as client:
                client.replicaof("127.0.0.1", primary.port)
        quorum = sentinels // 2 + 1
        watchers = [
            stack.enter_context(SentinelServer(primary, quorum=quorum, down_after_ms=down_after_ms))
            for _ in range(sentinels)
        ]
        for watcher in watchers:
            with Redis(port=watcher.port) as client:
                client.execute_command("SENTINEL DEBUG", "INFO-PERIOD", 200)
                _wait(partial(_knows, client, replicas, sentinels - 1), "the Sentinels do not know each other")
        yield Watched(primary, others, watchers)


def _knows(client: Redis, replicas: int, sentinels: int) -> bool:
    about: Any = client.sentinel_master(NAME)
    followers: Any = client.sentinel_slaves(NAME)
    ready = sum(each["master-link-status"] == "ok" for each in followers)
    return bool(ready == replicas and about["num-other-sentinels"] == sentinels)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Primaries that share all slots, and their replicas."""

    nodes: list[RedisServer]

    def url(self, *nodes: RedisServer) -> str:
        """The store's URL, which names these nodes, or all."""
        return f"redis://{_hosts(list(nodes) or self.nodes)}/0"

    def owner(self, key: bytes) -> RedisServer:
        """Return the node that has a key's slot, as the others see it."""
        for node in self.nodes:
            if node.is_running and (port := owner_seen_by(node, key)):
                return next(each for each in self.nodes if each.port == port)
        raise ServerStartError("nobody has the slot")


def owner_seen_by(node: RedisServer, key: bytes) -> int:
    """Ask a node for the port of the node that has a key's slot; 0 if it knows of none."""
    with Redis(port=node.port) as client:
        slot = int(client.execute_command("CLUSTER KEYSLOT", key))
        for first, last, (_, port, *_), *_ in client.cluster("slots"):
            if first <= slot <= last:
                return int(port)
    return 0


@contextmanager
def clustered(
    *, primaries: int = 3, replicas: int = 1, node_timeout_ms: int = 2000, whole: bool = True
) -> Iterator[Cluster]:
    """Start a cluster, each of whose primaries has so many replicas, and wait until all agree.

    One that is `whole` serves nothing while any slot has no node.
    """
    options = {"cluster-enabled": "yes", "cluster-node-timeout": str(node_timeout_ms), **AT_ONCE}
    options["cluster-require-full-coverage"] = "yes" if whole else "no"
    with ExitStack() as stack:
        nodes = [stack.enter_context(RedisServer(options=options)) for _ in range(primaries * (1 + replicas))]
        clients = [stack.enter_context(Redis(port=node.port)) for node in nodes]
        for number in range(primaries):
            first, last = (16384 * edge // primaries for edge in (number, number + 1))
            clients[number].execute_command("CLUSTER ADDSLOTSRANGE", first, last - 1)
            clients[number].execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
        for node in nodes[1:]:
            clients[0].execute_command("CLUSTER MEET", "127.0.0.1", node.port)
        _wait(lambda: all(_agrees(client, len(nodes)) for client in clients), "the nodes do not agree")
        for number, client in enumerate(clients[primaries:]):
            followed = str(clients[number % primaries].execute_command("CLUSTER MYID"), "ascii")
            client.execute_command("CLUSTER REPLICATE", followed)
        _wait(lambda: all(_follows(client) for client in clients[primaries:]), "the replicas do not follow")
        yield Cluster(nodes)


def _agrees(client: Redis, nodes: int) -> bool:
    about = client.execute_command("CLUSTER INFO")  # type: ignore[no-untyped-call]
    return bool(about["cluster_state"] == "ok" and int(about["cluster_known_nodes"]) == nodes)


def _follows(client: Redis) -> bool:
    return client.info("replication").get("master_link_status") == "up"


def _hosts(servers: list[RedisServer] | list[SentinelServer]) -> str:
    return ",".join(f"127.0.0.1:{server.port}" for server in servers)


def _wait(condition: Callable[[], bool], otherwise: str) -> None:
    def tried() -> bool:
        try:
            return condition()
        except RedisError:
            return False

    if not eventually(tried, PATIENCE_SECONDS):
        raise ServerStartError(otherwise)
