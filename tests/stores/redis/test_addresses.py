from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from contextlib import closing

import pytest
from faults.replicated import NAME, Cluster, SentinelServer, Watched, clustered, watched
from redis import Redis, RedisError

from oncelery.answers import Absent, Finished, Granted, Reserved
from oncelery.embedded.process import eventually
from oncelery.errors import ConfigurationError, OnceleryError
from oncelery.job import Query
from oncelery.stores.redis import RedisStore
from oncelery.testing.conformance.acts import accepted, begin, completed, reserve, work
from oncelery.testing.servers import RedisServer
from stores.redis.stores import SAFE, AnyServer, client_of, opened

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
    certificate = speak_tls(private_redis7)["tls-cert-file"]

    for scheme in ("rediss", "valkeys"):
        url = private_redis7.url.replace("redis", scheme) + f"?ssl_ca_certs={certificate}"
        store = RedisStore(url, namespace=scheme)
        assert isinstance(reserve(store), Reserved)
        store.close()


def speak_tls(server: RedisServer) -> dict[str, str]:
    """Have the server speak TLS and nothing else; return the settings that make it."""
    folder = server.folder
    names = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    command = ["openssl", *names.split(), "-keyout", f"{folder}/key.pem", "-out", f"{folder}/certificate.pem"]
    subprocess.run(command, check=True, capture_output=True)
    files = {"key-file": "key", "cert-file": "certificate", "ca-cert-file": "certificate"}
    settings = {f"tls-{setting}": str(folder / f"{file}.pem") for setting, file in files.items()}
    settings["tls-auth-clients"] = "no"
    with client_of(server) as client:
        for setting, value in settings.items():
            client.config_set(setting, value)
        client.config_set("port", 0)
        client.config_set("tls-port", server.port)
    return settings


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://secret@host/0", "use redis://"),
        ("redis://:secret@host:port/0", "not understood"),
        ("redis://:secret@host/0?db=first", "not understood"),
        ("redis://:secret@host/0?unknown=option", "not understood"),
        ("redis://:secret@host/0?replicas=few", "replicas=1"),
        ("redis://:secret@one,two:port/0", "not understood"),
        ("redis://:secret@host/0?patience=long", "patience=15"),
        ("redis://:secret@host/0?patience=-1", "patience=15"),
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


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Give a cluster of two nodes, each with half of the slots."""
    with clustered(primaries=2, replicas=0) as cluster:
        yield cluster


@pytest.mark.parametrize("namespace", ["one", "two", "three", "four"])
def test_a_store_finds_the_node_of_the_cluster_that_has_its_slot(namespace: str, cluster: Cluster) -> None:
    for node in cluster.nodes:
        with opened(node, namespace=namespace) as store:
            reserve(store, f"job on {node.port}", f"key on {node.port}")

    with opened(cluster.nodes[0], namespace=namespace) as store:
        assert len(store.find(Query()).items) == 2


@pytest.fixture
def servers() -> Iterator[Watched]:
    """Give a primary and its replica, which a Sentinel watches, and replaces when asked to."""
    with watched(sentinels=1, down_after_ms=30_000) as servers:
        yield servers


def fail_over(servers: Watched) -> None:
    """Have the Sentinel promote the replica, as soon as it knows enough of it."""

    def asked() -> bool:
        try:
            return bool(watcher.execute_command("SENTINEL FAILOVER", NAME))  # type: ignore[no-untyped-call]
        except RedisError:
            return False

    with client_of(servers.sentinels[0]) as watcher:
        assert eventually(asked, 30)
    servers.wait_for_failover()


def test_a_store_follows_the_primary_that_the_sentinels_name(servers: Watched) -> None:
    with closing(RedisStore(servers.url)) as store:
        accepted(store)

        fail_over(servers)

        assert isinstance(begin(store), Granted)


def test_a_finished_job_is_answered_after_the_failover(servers: Watched) -> None:
    with closing(RedisStore(f"{servers.url}&replicas=1")) as store:
        completed(store, work(durability=SAFE))
        servers.primary.kill()
        fail_over(servers)

        assert isinstance(begin(store), Finished)


def test_sentinels_have_a_password_of_their_own(private_redis7: RedisServer) -> None:
    with (
        client_of(private_redis7) as client,
        SentinelServer(private_redis7, settings="requirepass sesame", client={"password": "sesame"}) as sentinel,
    ):
        client.config_set("requirepass", "another")
        url = f"redis://:another@127.0.0.1:{sentinel.port}/0?sentinel={NAME}"
        store = RedisStore(f"{url}&sentinel_password=sesame")
        assert isinstance(reserve(store), Reserved)
        store.close()

        for wrong in (url, f"{url}&sentinel_password=wrong", f"{url}&sentinel_username=me&sentinel_password=wrong"):
            with pytest.raises(ConfigurationError, match="add sentinel_password=") as raised:
                reserve(RedisStore(wrong))
            assert "wrong" not in str(raised.value)


def test_sentinels_speak_tls_as_the_servers_do(private_redis7: RedisServer) -> None:
    certificate = speak_tls(private_redis7)
    settings = "\n".join(f"{name} {value}" for name, value in {**certificate, "tls-replication": "yes"}.items())
    client = {"ssl": True, "ssl_ca_certs": certificate["tls-ca-cert-file"]}
    with SentinelServer(private_redis7, settings=settings, client=client) as sentinel:
        url = f"rediss://127.0.0.1:{sentinel.port}/0?sentinel={NAME}&ssl_ca_certs={client['ssl_ca_certs']}"
        store = RedisStore(url)

        assert isinstance(reserve(store), Reserved)
        store.close()


@pytest.mark.parametrize(
    ("name", "says"), [("shopp", "the Sentinels know no primary named 'shopp'"), (NAME, "no Sentinel answers")]
)
def test_sentinels_that_do_not_help_are_said_to_in_one_sentence(
    name: str, says: str, private_redis7: RedisServer
) -> None:
    with SentinelServer(private_redis7) as sentinel:
        store = RedisStore(f"{sentinel.url}?sentinel={name}&patience=0")
        if name == NAME:
            sentinel.kill()

        with pytest.raises(OnceleryError, match=says) as raised:
            reserve(store)

    assert len(str(raised.value)) < 200


def test_a_cluster_has_no_other_database_than_0() -> None:
    with pytest.raises(ConfigurationError, match="database 0 only"):
        RedisStore("redis://one:7000,two:7001/1")
