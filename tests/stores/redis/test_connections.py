from __future__ import annotations

import itertools
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType

import pytest
from redis import exceptions as driver

from oncelery.answers import Cancelled, Granted, Reserved, Settled
from oncelery.errors import ConfigurationError, StoreUnavailableError
from oncelery.job import OnDuplicate, Query, State
from oncelery.settlement import Complete
from oncelery.stores.redis import RedisStore, connections
from oncelery.testing.conformance.acts import JOB, accepted, begin, complete, reserve, running, seen, work
from oncelery.testing.proxy import FaultProxy
from oncelery.testing.servers import ValkeyServer
from stores.redis.stores import AnyServer, client_of, opened

# The way to the server


def test_a_forked_child_uses_a_connection_of_its_own(server: AnyServer) -> None:
    # In a process of its own, because this one has threads.
    program = """
import os, sys
from redis import Redis, RedisError
from oncelery.stores.redis import RedisStore

store, name = RedisStore(sys.argv[1] + "?client_name=" + sys.argv[2]), sys.argv[2]
store.get("x")
connected, go_on = os.pipe(), os.pipe()
if os.fork() == 0:
    store.get("x")
    os.write(connected[1], b".")
    os.read(go_on[0], 1)
    store.get("x")
    os._exit(0)
os.read(connected[0], 1)
names = [client["name"] for client in Redis.from_url(sys.argv[1]).client_list()]
store.get("x")
os.write(go_on[1], b".")
print(names.count(name), os.waitstatus_to_exitcode(os.wait()[1]))
"""
    command = [sys.executable, "-c", program, server.url, uuid.uuid4().hex]

    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    assert told.split() == ["2", "0"]


def test_threads_do_not_share_a_connection(store: RedisStore) -> None:
    wrong: list[str] = []

    def ask(number: int) -> None:
        accepted(store, f"job {number}", f"key {number}")
        keys = [seen(store, f"job {number}").key for _ in range(50)]
        wrong.extend(key for key in keys if key != f"key {number}")

    threads = [threading.Thread(target=ask, args=[number]) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []


def test_a_closed_store_opens_anew(store: RedisStore) -> None:
    accepted(store)

    store.close()

    assert seen(store).state is State.QUEUED


def test_connections_that_the_server_has_closed_are_replaced(private_server: AnyServer) -> None:
    with opened(private_server) as store:
        accepted(store)
        private_server.restart()

        assert seen(store).state is State.QUEUED


def test_a_reply_that_is_lost_is_asked_for_again(server: AnyServer) -> None:
    with FaultProxy(server.port) as proxy:
        store = RedisStore(proxy.url(server.url), namespace=uuid.uuid4().hex)
        lease = running(store)
        lost = proxy.lose_reply(b"complete")

        answer = store.settle(lease, Complete(result=b""))
        store.close()

    assert lost.happened.is_set()
    assert answer == Settled(State.COMPLETED)


def test_an_answer_that_is_lost_while_something_else_is_done_is_asked_for_again(server: AnyServer) -> None:
    with FaultProxy(server.port) as proxy:
        store = RedisStore(proxy.url(server.url), namespace=uuid.uuid4().hex)
        accepted(store, "before", "another key")
        lost = proxy.lose_reply(b"lost on its way")

        wait = store.reserving(work(body=b"lost on its way"), on_duplicate=OnDuplicate.JOIN)
        assert lost.happened.wait(10)
        answer = wait()
        store.close()

    assert isinstance(answer, Reserved)


def test_a_verb_is_sent_no_more_often_if_its_answer_is_waited_for_later(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepted(store, "before", "another key")
    failed: list[str] = []

    def fail(way: str) -> Callable[..., None]:
        def failing(*_: object, **__: object) -> None:
            failed.append(way)
            raise driver.ConnectionError

        return failing

    monkeypatch.setattr(connections.Link, "receive", fail("receive"))
    monkeypatch.setattr(connections.Link, "run", fail("run"))

    wait = store.reserving(work(), on_duplicate=OnDuplicate.JOIN)
    with pytest.raises(StoreUnavailableError):
        wait()

    assert failed == ["receive"] + ["run"] * (connections.SENDS - 1)


def test_an_answer_that_nobody_waits_for_is_not_taken_for_another(store: RedisStore) -> None:
    accepted(store)
    for number in range(3):
        store.reserving(work(f"left {number}", f"key {number}"), on_duplicate=OnDuplicate.JOIN)

    assert isinstance(store.cancel(JOB, reason="no"), Cancelled)
    assert seen(store).state is State.CANCELLED


@pytest.mark.parametrize("ask", ["reserve", "reserving"])
def test_a_connection_on_which_a_command_was_cut_short_is_used_no_more(
    server: AnyServer, monkeypatch: pytest.MonkeyPatch, ask: str
) -> None:
    name = uuid.uuid4().hex
    with client_of(server) as client, opened(server, f"client_name={name}") as store:
        accepted(store, "before", "another key")
        connected = {line["id"] for line in client.client_list() if line["name"] == name}
        [link] = store._server._idle  # noqa: SLF001 - a socket that breaks half-way cannot be had from outside
        wire = link._wire  # noqa: SLF001
        monkeypatch.setattr(wire, "send", half_of(wire.send))

        with pytest.raises(TimeIsUp):
            getattr(store, ask)(work(), on_duplicate=OnDuplicate.JOIN)

        assert isinstance(reserve(store), Reserved)
        now = {line["id"] for line in client.client_list() if line["name"] == name}
        assert len(now) == 1
        assert now.isdisjoint(connected)


class TimeIsUp(BaseException):
    """As a time limit, of which nobody here knows."""


def half_of(send: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """Give what sends half of what it is given, and then fails."""

    def send_half(command: bytes) -> None:
        send(command[: len(command) // 2])
        raise TimeIsUp

    return send_half


def test_a_server_that_is_away_is_unavailable_and_then_back(private_server: AnyServer) -> None:
    with opened(private_server) as store:
        accepted(store)
        private_server.kill()
        with pytest.raises(StoreUnavailableError):
            begin(store)
        private_server.restart()

        assert isinstance(begin(store), Granted)


def test_a_server_that_is_silent_is_unavailable(private_server: AnyServer) -> None:
    with opened(private_server, "socket_timeout=0.3") as store:
        accepted(store)
        private_server.pause()
        with pytest.raises(StoreUnavailableError):
            begin(store)
        private_server.resume()

        assert isinstance(begin(store), Granted)


class TimeLimitError(Exception):
    pass


def test_a_time_limit_between_a_command_and_its_reply_leaves_no_reply_to_the_next(private_valkey: ValkeyServer) -> None:
    def strike(_signal: int, _frame: FrameType | None) -> None:
        private_valkey.resume()
        raise TimeLimitError

    with opened(private_valkey) as store:
        accepted(store, "one", "one")
        accepted(store, "two", "two")
        before = signal.signal(signal.SIGALRM, strike)
        private_valkey.pause()
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            with pytest.raises(TimeLimitError):
                store.get("one")
        finally:
            signal.signal(signal.SIGALRM, before)

        assert seen(store, "two").key == "two"


def test_no_acknowledged_transition_is_lost_when_the_server_is_killed(private_server: AnyServer) -> None:
    acknowledged: dict[str, State] = {}
    enough = threading.Event()

    with opened(private_server) as store:

        def work_on(number: int) -> None:
            name = f"job {number}"
            accepted(store, name, name)
            acknowledged[name] = State.QUEUED
            lease = running(store, work(name, name))
            acknowledged[name] = State.RUNNING
            complete(store, lease)
            acknowledged[name] = State.COMPLETED
            if number == 200:
                enough.set()

        def work_until_it_dies() -> None:
            with suppress(StoreUnavailableError):
                for number in itertools.count():
                    work_on(number)

        worker = threading.Thread(target=work_until_it_dies)
        worker.start()
        enough.wait()
        private_server.kill()
        worker.join()
        private_server.restart()

        order = [State.QUEUED, State.RUNNING, State.COMPLETED]
        lost = {
            name: state
            for name, state in acknowledged.items()
            if order.index(seen(store, name).state) < order.index(state)
        }

    assert len(acknowledged) > 200
    assert lost == {}


# Errors


def test_a_server_without_the_replicas_it_needs_is_unavailable(private_server: AnyServer) -> None:
    with opened(private_server) as store, client_of(private_server) as client:
        client.config_set("min-replicas-to-write", 1)

        with pytest.raises(StoreUnavailableError, match="replicas"):
            reserve(store)


def test_a_cluster_that_is_down_is_unavailable(private_server: AnyServer) -> None:
    private_server.options |= {"cluster-enabled": "yes"}
    private_server.restart()

    with opened(private_server) as store, pytest.raises(StoreUnavailableError):
        reserve(store)


def test_a_wrong_password_is_an_error_of_the_configuration_and_is_not_told(private_server: AnyServer) -> None:
    with client_of(private_server) as client:
        client.config_set("requirepass", "right")
        for credentials in ("", ":wrong-password@"):
            store = RedisStore(private_server.url.replace("//", f"//{credentials}"))
            with pytest.raises(ConfigurationError) as raised:
                reserve(store)
            assert "wrong-password" not in str(raised.value)
        store = RedisStore(private_server.url.replace("//", "//:right@"))

        assert isinstance(reserve(store), Reserved)
        store.close()


def test_a_user_who_may_not_is_an_error_of_the_configuration(private_server: AnyServer) -> None:
    with client_of(private_server) as client:
        client.acl_setuser("guest", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-hset"])
        store = RedisStore(private_server.url.replace("//", "//guest:any@"))

        with pytest.raises(ConfigurationError, match="does not let us"):
            reserve(store)
        store.close()


@pytest.fixture
def refusing() -> Iterator[tuple[str, list[bytes]]]:
    """Give the URL of a server that greets as the version, and refuses with the error, that stand in the list."""
    words: list[bytes] = []

    def serve(client: socket.socket) -> None:
        with client:
            while request := client.recv(65_536):
                version, error = words
                greeting = b"%%2\r\n+version\r\n+%b\r\n+proto\r\n:3\r\n" % version
                client.sendall(greeting if b"HELLO" in request else b"-%b\r\n" % error)

    def listen() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=[client], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=listen)
        thread.start()
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0", words
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize(
    "error",
    [
        "LOADING Redis is loading the dataset in memory",
        "MASTERDOWN Link with MASTER is down",
        "CLUSTERDOWN Hash slot not served",
        "MISCONF Redis is configured to save RDB snapshots",
        "BUSY Redis is busy running a script",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "ERR max number of clients reached",
        "ERR user_script:1: anything",
    ],
)
def test_whatever_goes_wrong_in_the_server_never_means_yes(error: str, refusing: tuple[str, list[bytes]]) -> None:
    url, words = refusing
    words += [b"7.0.0", error.encode()]
    store = RedisStore(url)

    with pytest.raises(StoreUnavailableError):
        reserve(store)
    store.close()


def test_a_server_that_is_too_old_is_told_so(refusing: tuple[str, list[bytes]]) -> None:
    url, words = refusing
    words += [b"6.0.16", b"ERR unknown"]

    with pytest.raises(ConfigurationError, match=r"6\.2 or newer.*6\.0\.16"):
        reserve(RedisStore(url))


@pytest.mark.parametrize("cursor", ["x", "1", "1/", "1-1", "1/zz", "-/00"])
def test_a_cursor_that_is_none_of_ours_is_refused(cursor: str, store: RedisStore) -> None:
    with pytest.raises(ValueError, match="cursor"):
        store.find(Query(cursor=cursor))


def test_a_cursor_of_the_audit_that_is_none_of_ours_is_refused(store: RedisStore) -> None:
    with pytest.raises(ValueError, match="cursor"):
        store.duplicates(cursor="1/00")
