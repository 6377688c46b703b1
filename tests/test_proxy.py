from __future__ import annotations

import gc
import socket
import threading
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING
from uuid import uuid4

import psycopg
import pytest
from kombu import Connection, Queue
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from oncelery.embedded.process import LOOPBACK, eventually
from oncelery.testing.proxy import FaultProxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncelery.testing.servers import PostgresServer, RabbitMQServer, ValkeyServer

#: Longer than anything here takes on a busy machine; reached only by a test that fails.
SOON = 20.0


@pytest.fixture
def proxy(valkey: ValkeyServer) -> Iterator[FaultProxy]:
    with FaultProxy(valkey.port) as proxy:
        yield proxy


@pytest.fixture
def direct(valkey: ValkeyServer) -> Iterator[Redis]:
    with Redis.from_url(valkey.url, decode_responses=True) as client:
        yield client


@pytest.fixture
def client(proxy: FaultProxy, valkey: ValkeyServer) -> Iterator[Redis]:
    with client_through(proxy, valkey) as client:
        yield client


@pytest.fixture
def counter() -> str:
    return f"test_proxy:{uuid4()}"


def client_through(proxy: FaultProxy, valkey: ValkeyServer, *, retries: int = 0, timeout: float = SOON) -> Redis:
    return Redis.from_url(
        proxy.url(valkey.url),
        decode_responses=True,
        socket_timeout=timeout,
        retry=Retry(NoBackoff(), retries),
        retry_on_error=[RedisConnectionError],
    )


def names(server: Redis) -> set[str]:
    return {connected["name"] for connected in server.client_list()}


def test_an_undisturbed_line_carries_both_ways_whatever_its_length(client: Redis, counter: str) -> None:
    value = "x" * 3_000_000

    client.set(counter, value, ex=60)

    assert client.get(counter) == value


def test_a_lost_reply_is_one_to_a_request_that_the_server_has_done(
    proxy: FaultProxy, client: Redis, direct: Redis, counter: str
) -> None:
    client.ping()
    lost = proxy.lose_reply(b"INCR")

    with pytest.raises(RedisConnectionError):
        client.incr(counter)

    assert lost.happened.is_set()
    assert direct.get(counter) == "1"


def test_a_lost_request_never_reaches_the_server(proxy: FaultProxy, client: Redis, direct: Redis, counter: str) -> None:
    lost = proxy.lose_request(b"INCR")

    with pytest.raises(RedisConnectionError):
        client.incr(counter)

    assert lost.happened.is_set()
    assert direct.get(counter) is None


def test_a_client_that_retries_after_a_lost_reply_has_asked_twice(
    proxy: FaultProxy, valkey: ValkeyServer, direct: Redis, counter: str
) -> None:
    proxy.lose_reply(b"INCR")

    with client_through(proxy, valkey, retries=1) as client:
        client.incr(counter)

    assert direct.get(counter) == "2"


def test_only_the_nth_request_that_matches_is_lost(
    proxy: FaultProxy, client: Redis, direct: Redis, counter: str
) -> None:
    lost = proxy.lose_reply(counter.encode(), nth=3)

    client.incr(counter)
    client.ping()
    client.incr(counter)
    assert not lost.happened.is_set()
    with pytest.raises(RedisConnectionError):
        client.incr(counter)

    assert direct.get(counter) == "3"


def test_a_request_is_told_by_bytes_that_come_in_two_pieces(proxy: FaultProxy, direct: Redis, counter: str) -> None:
    lost = proxy.lose_reply(counter.encode())

    with socket.create_connection((LOOPBACK, proxy.port), SOON) as line:
        line.sendall(b"PING\r\nINCR " + counter[:10].encode())
        assert line.recv(100) == b"+PONG\r\n"
        line.sendall(counter[10:].encode() + b"\r\n")
        with pytest.raises(ConnectionResetError):
            line.recv(100)

    assert lost.happened.is_set()
    assert direct.get(counter) == "1"


def test_a_cut_resets_both_ends_and_new_connections_are_taken(
    proxy: FaultProxy, client: Redis, direct: Redis, counter: str
) -> None:
    with socket.create_connection((LOOPBACK, proxy.port), SOON) as line:
        line.sendall(f"CLIENT SETNAME {counter}\r\n".encode())
        assert line.recv(100) == b"+OK\r\n"

        proxy.cut()

        with pytest.raises(ConnectionResetError):
            line.recv(100)
    assert eventually(lambda: counter not in names(direct), SOON)
    assert client.ping()


def test_a_line_that_refuses_keeps_the_connections_it_has(proxy: FaultProxy) -> None:
    with socket.create_connection((LOOPBACK, proxy.port), SOON) as line:
        line.sendall(b"PING\r\n")
        assert line.recv(100) == b"+PONG\r\n"

        proxy.refuse()

        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((LOOPBACK, proxy.port), SOON)
        line.sendall(b"PING\r\n")
        assert line.recv(100) == b"+PONG\r\n"


def test_a_line_that_accepts_again_does_so_on_its_port(proxy: FaultProxy, client: Redis) -> None:
    proxy.refuse()

    proxy.accept()

    assert client.ping()


def test_a_frozen_line_is_silent_and_thawed_carries_what_was_held_back(
    proxy: FaultProxy, valkey: ValkeyServer, direct: Redis, counter: str
) -> None:
    with socket.create_connection((LOOPBACK, proxy.port), SOON) as line:
        line.sendall(b"PING\r\n")
        assert line.recv(100) == b"+PONG\r\n"
        proxy.freeze()

        line.sendall(f"INCR {counter}\r\n".encode())
        with client_through(proxy, valkey, timeout=0.1) as client, pytest.raises(RedisTimeoutError):
            client.ping()
        assert direct.get(counter) is None
        proxy.thaw()

        assert line.recv(100) == b":1\r\n"


def test_a_frozen_line_can_be_cut(proxy: FaultProxy) -> None:
    with socket.create_connection((LOOPBACK, proxy.port), SOON) as line:
        line.sendall(b"PING\r\n")
        assert line.recv(100) == b"+PONG\r\n"
        proxy.freeze()

        proxy.cut()

        with pytest.raises(ConnectionResetError):
            line.recv(100)


def test_a_slow_line_takes_its_time_each_way(proxy: FaultProxy, client: Redis) -> None:
    client.ping()
    proxy.delay = 0.05

    started = time.monotonic()
    client.ping()

    assert time.monotonic() - started >= 0.1


def test_a_line_in_single_bytes_carries_the_same(proxy: FaultProxy, client: Redis, counter: str) -> None:
    proxy.piece = 1

    client.set(counter, "value", ex=60)

    assert client.get(counter) == "value"


def test_a_server_that_is_down_resets_the_client() -> None:
    with (
        FaultProxy(target_port=1) as proxy,
        pytest.raises(ConnectionResetError),
        socket.create_connection((LOOPBACK, proxy.port), SOON) as line,
    ):
        line.recv(100)


def test_a_client_that_leaves_is_gone_from_the_server_too(client: Redis, direct: Redis, counter: str) -> None:
    client.client_setname(counter)

    client.close()

    assert eventually(lambda: counter not in names(direct), SOON)


def test_a_lost_reply_to_a_commit_leaves_the_row_written(postgres: PostgresServer) -> None:
    database = postgres.create_database()
    with FaultProxy(postgres.port) as proxy, psycopg.connect(database) as direct:
        direct.execute("CREATE TABLE written (id int)")
        direct.commit()
        with closing(psycopg.connect(proxy.url(database))) as connection:
            connection.execute("INSERT INTO written VALUES (42)")
            lost = proxy.lose_reply(b"COMMIT")

            with pytest.raises(psycopg.OperationalError):
                connection.commit()

        assert lost.happened.is_set()
        assert direct.execute("SELECT id FROM written").fetchall() == [(42,)]


def test_a_lost_confirmation_leaves_the_message_in_the_queue(rabbitmq: RabbitMQServer) -> None:
    vhost = rabbitmq.create_vhost()
    with FaultProxy(rabbitmq.port) as proxy, Connection(vhost) as direct:
        queue = Queue("letters", channel=direct.channel())
        queue.declare()
        with Connection(proxy.url(vhost), transport_options={"confirm_publish": True}) as connection:
            producer = connection.Producer()
            lost = proxy.lose_reply(b"dear reader")

            with pytest.raises(connection.connection_errors):
                producer.publish("dear reader", routing_key="letters", serializer="raw")

        assert lost.happened.is_set()
        letter = queue.get(no_ack=True)
        assert letter is not None
        assert letter.body == "dear reader"


def test_connections_that_are_just_being_accepted_are_closed_with_the_proxy(valkey: ValkeyServer) -> None:
    for _ in range(20):
        with FaultProxy(valkey.port) as proxy:
            clients = [socket.create_connection((LOOPBACK, proxy.port)) for _ in range(5)]
        for client in clients:
            client.close()
    # One that was forgotten would complain now.
    gc.collect()


def test_connections_that_come_while_the_line_is_cut_are_closed_as_well(valkey: ValkeyServer) -> None:
    def connect() -> None:
        while not over.is_set():
            with suppress(OSError), socket.create_connection((LOOPBACK, proxy.port)):
                pass

    over = threading.Event()
    with FaultProxy(valkey.port) as proxy:
        client = threading.Thread(target=connect)
        client.start()
        for _ in range(100):
            proxy.cut()
        over.set()
        client.join(SOON)
    # One that was forgotten would complain now.
    gc.collect()
