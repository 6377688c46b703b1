from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from redis import Redis, RedisError

from oncelery.answers import Absent, Finished, Granted, Reserved
from oncelery.embedded.process import eventually
from oncelery.errors import ConfigurationError
from oncelery.job import Query
from oncelery.stores.redis import RedisStore
from oncelery.testing.conformance.acts import accepted, begin, completed, reserve, work
from oncelery.testing.servers import RedisServer
from stores.redis.stores import SAFE, AnyServer, client_of, follow, opened

# URLs


def test_a_store_is_reached_by_a_unix_socket(private_server: AnyServer) -> None:
    path = private_server.folder / "socket"
    private_server.options["unixsocket"] = str(path)
    private_server.restart()
    store = RedisStore(f"unix://{path}?db=3")
    accepted(store)
    store.close()

    with Redis.from_url(private_server.url.replace("/0", "/3")) as client:
        assert client.dbsize()


def test_valkey_is_a_scheme_of_its_own(server: AnyServer) -> None:
    store = RedisStore(server.url.replace("redis://", "valkey://"), namespace=uuid.uuid4().hex)

    assert isinstance(begin(store, work(body=None)), Absent)
    store.close()


def test_a_store_speaks_tls(private_redis7: RedisServer) -> None:
    folder = private_redis7.folder
    private_redis7.start()
    names = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    command = ["openssl", *names.split(), "-keyout", f"{folder}/key.pem", "-out", f"{folder}/certificate.pem"]
    subprocess.run(command, check=True, capture_output=True)
    with client_of(private_redis7) as client:
        for setting, file in (("key-file", "key"), ("cert-file", "certificate"), ("ca-cert-file", "certificate")):
            client.config_set(f"tls-{setting}", str(folder / f"{file}.pem"))
        client.config_set("tls-auth-clients", "no")
        client.config_set("port", 0)
        client.config_set("tls-port", private_redis7.port)

    for scheme in ("rediss", "valkeys"):
        url = private_redis7.url.replace("redis", scheme) + f"?ssl_ca_certs={folder / 'certificate.pem'}"
        store = RedisStore(url, namespace=scheme)
        assert isinstance(reserve(store), Reserved)
        store.close()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://secret@host/0", "use redis://"),
        ("redis://:secret@host:port/0", "not understood"),
        ("redis://:secret@host/0?db=first", "not understood"),
        ("redis://:secret@host/0?unknown=option", "not understood"),
        ("redis://:secret@host/0?replicas=few", "replicas=1"),
        ("redis://:secret@one,two/0", "sentinel"),
    ],
)
def test_a_url_that_is_wrong_says_so_and_keeps_its_secrets(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as raised:
        RedisStore(url)

    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("namespace", ["", "{", "a}b"])
def test_a_namespace_cannot_break_the_slot(namespace: str) -> None:
    with pytest.raises(ConfigurationError, match="namespace"):
        RedisStore("redis://", namespace=namespace)


# More than one server


@pytest.fixture
def cluster(private_redis7: RedisServer) -> Iterator[tuple[RedisServer, RedisServer]]:
    """Give a cluster of two nodes, each with half of the slots."""
    options = {"cluster-enabled": "yes", "cluster-node-timeout": "2000"}
    private_redis7.options |= options
    private_redis7.restart()
    with (
        RedisServer(options=options) as second,
        client_of(private_redis7) as one,
        client_of(second) as other,
    ):
        one.execute_command("CLUSTER ADDSLOTSRANGE", 0, 8191)  # type: ignore[no-untyped-call]
        other.execute_command("CLUSTER ADDSLOTSRANGE", 8192, 16383)  # type: ignore[no-untyped-call]
        one.execute_command("CLUSTER MEET", "127.0.0.1", second.port)  # type: ignore[no-untyped-call]
        for client in (one, other):
            assert eventually(partial(is_whole, client), 30)
        yield private_redis7, second


def is_whole(client: Redis) -> bool:
    about = client.execute_command("CLUSTER INFO")  # type: ignore[no-untyped-call]
    return "ok" in str(about["cluster_state"]) and about["cluster_known_nodes"] == "2"


@pytest.mark.parametrize("namespace", ["one", "two", "three", "four"])
def test_a_store_finds_the_node_of_the_cluster_that_has_its_slot(
    namespace: str, cluster: tuple[RedisServer, RedisServer]
) -> None:
    for node in cluster:
        with opened(node, namespace=namespace) as store:
            reserve(store, f"job on {node.port}", f"key on {node.port}")

    with opened(cluster[0], namespace=namespace) as store:
        assert len(store.find(Query()).items) == 2


@pytest.fixture
def sentinel(private_redis7: RedisServer, tmp_path: Path) -> Iterator[tuple[str, RedisServer]]:
    """Give the URL of a Sentinel that watches a primary and its replica, and the replica."""
    settings = tmp_path / "sentinel.conf"
    settings.write_text(f"sentinel monitor shop 127.0.0.1 {private_redis7.port} 1\n")
    private_redis7.options["repl-diskless-sync-delay"] = "0"
    private_redis7.restart()
    with RedisServer() as replica, SentinelServer(settings) as sentinel, client_of(sentinel) as watcher:
        follow(replica, private_redis7)
        watcher.execute_command("SENTINEL DEBUG", "INFO-PERIOD", 200)  # type: ignore[no-untyped-call]
        assert eventually(lambda: len(watcher.sentinel_slaves("shop")) == 1, 30)
        yield sentinel.url, replica


def fail_over(url: str, replica: RedisServer) -> None:
    """Have the Sentinel promote the replica, as soon as it knows enough of it."""

    def asked() -> bool:
        try:
            return bool(watcher.execute_command("SENTINEL FAILOVER", "shop"))
        except RedisError:
            return False

    with Redis.from_url(url) as watcher:
        assert eventually(asked, 30)
        assert eventually(lambda: watcher.sentinel_master("shop")["port"] == replica.port, 30)


class SentinelServer(RedisServer):
    def __init__(self, settings: Path) -> None:
        super().__init__()
        self.settings = settings

    def _command(self) -> list[str]:
        return [self.program, str(self.settings), "--sentinel", "--port", str(self.port), "--dir", str(self.folder)]

    def _answers(self) -> bool:
        try:
            with Redis.from_url(self.url, retry=None) as client:
                return bool(client.ping())
        except RedisError:
            return False


def test_a_store_follows_the_primary_that_the_sentinels_name(sentinel: tuple[str, RedisServer]) -> None:
    url, replica = sentinel
    store = RedisStore(f"{url}?sentinel=shop")
    accepted(store)

    fail_over(url, replica)

    assert isinstance(begin(store), Granted)
    with client_of(replica) as successor:
        assert successor.info("replication")["role"] == "master"
    store.close()


def test_a_finished_job_is_answered_after_the_failover(
    sentinel: tuple[str, RedisServer], private_redis7: RedisServer
) -> None:
    url, replica = sentinel
    store = RedisStore(f"{url}?sentinel=shop&replicas=1")
    completed(store, work(durability=SAFE))
    private_redis7.kill()
    fail_over(url, replica)

    assert isinstance(begin(store), Finished)
    store.close()
