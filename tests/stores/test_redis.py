from __future__ import annotations

import itertools
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import FrameType

import pytest
from msgspec.structs import replace
from redis import Redis, RedisError
from redis.connection import AbstractConnection
from redis.crc import key_slot

from oncelery.answers import Absent, Cancelled, Finished, Granted, Recorded, Renewed, Reserved, Settled
from oncelery.embedded.process import eventually
from oncelery.errors import ConfigurationError, StoreUnavailableError
from oncelery.job import Durability, Lease, OnDuplicate, Progress, Query, State
from oncelery.settlement import Complete
from oncelery.stores.base import Clock, Store
from oncelery.stores.redis import RedisStore, scripts
from oncelery.testing import FakeClock
from oncelery.testing.conformance.acts import (
    JOB,
    accepted,
    begin,
    buried,
    complete,
    completed,
    reserve,
    running,
    seen,
    work,
)
from oncelery.testing.proxy import FaultProxy
from oncelery.testing.servers import RedisServer, ValkeyServer

#: The most that a completed job may take, with everything that is kept of it, when there are many.
BYTES_PER_JOB = 260

SAFE = Durability.SAFE

#: Long enough to wait for a reply on a busy machine, and short enough to wait for one in vain.
IMPATIENT = "socket_timeout=2"

AnyServer = RedisServer | ValkeyServer


@pytest.fixture(params=["redis7", "valkey"])
def server(request: pytest.FixtureRequest) -> AnyServer:
    """Give each server in turn, which all tests share."""
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


@pytest.fixture(params=["private_redis7", "private_valkey"])
def private_server(request: pytest.FixtureRequest) -> AnyServer:
    """Give each server in turn, for this test alone."""
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


@pytest.fixture
def store(server: AnyServer) -> Iterator[RedisStore]:
    with opened(server) as store:
        yield store


@contextmanager
def opened(
    server: AnyServer, options: str = "", *, namespace: str = "", clock: Clock | None = None
) -> Iterator[RedisStore]:
    store = RedisStore(f"{server.url}?{options}", namespace=namespace or uuid.uuid4().hex, clock=clock)
    yield store
    store.close()


@contextmanager
def client_of(server: AnyServer) -> Iterator[Redis]:
    with Redis.from_url(server.url) as client:
        yield client


def keys_in(client: Redis) -> list[bytes]:
    return [bytes(key) for key in client.scan_iter()]


def fill(store: Store) -> Lease:
    """Leave a job in each state and every kind of key in the server; give the lease of the running one."""
    completed(store, work("completed", "key 1", scope="tenant"))
    reserve(store, "duplicate", "key 1")
    buried(store, work("buried", "key 2", scope="tenant"))
    accepted(store, "cancelled", "key 3")
    store.cancel("cancelled", reason="no")
    accepted(store, "queued", "key 4", delay=timedelta(seconds=9))
    accepted(store, "running", "key 5")
    lease = running(store, work("running", "key 5"))
    store.record(lease, progress=Progress(done=1), step=("step", b"value"))
    store.count({("shop.charge", "granted"): 1})
    return lease


# One round trip


def verbs(store: Store, lease: Lease) -> dict[str, Callable[[], object]]:
    """Give each verb, as it is said to a filled store."""
    return {
        "reserve": lambda: reserve(store, "new", "new"),
        "begin": lambda: begin(store, work("queued again", "new")),
        "renew": lambda: store.renew([lease, lease]),
        "record": lambda: store.record(lease, step=("other", b"value")),
        "settle": lambda: store.settle(lease, Complete(result=b"")),
        "cancel": lambda: store.cancel("queued", reason="no"),
        "revive": lambda: store.revive("buried"),
        "discard": lambda: store.discard("buried"),
        "received": lambda: store.received("queued", limit=3),
        "due": lambda: store.due(limit=10, empty_queues=["celery"]),
        "get": lambda: store.get("completed"),
        "last": lambda: store.last("key 1"),
        "find": lambda: store.find(Query()),
        "duplicates": store.duplicates,
        "duplicate_counts": lambda: store.duplicate_counts(since=datetime.now(UTC)),
        "count": lambda: store.count({("shop.charge", "granted"): 1}),
        "tally": store.tally,
        "prune": lambda: store.prune(limit=10),
    }


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Give the list to which every packet is added that is sent to a server."""
    packets: list[bytes] = []
    send = AbstractConnection.send_packed_command

    def noted(connection: AbstractConnection, command: list[bytes], check_health: bool = True) -> None:  # noqa: FBT001, FBT002
        packets.extend(command)
        send(connection, command, check_health)  # type: ignore[no-untyped-call]

    monkeypatch.setattr(AbstractConnection, "send_packed_command", noted)
    return packets


def test_every_verb_is_one_packet_and_one_command(store: RedisStore, sent: list[bytes]) -> None:
    each = verbs(store, fill(store))
    for say in each.values():
        say()

    for verb, say in each.items():
        sent.clear()
        say()

        assert [packet.count(b"EVALSHA") for packet in sent] == [1], verb


def test_every_script_is_said_by_a_verb() -> None:
    included = {"shared", "reading", "ending", "changes", "accept", "duplicate"}

    files = {path.stem for path in Path(scripts.__file__).parent.glob("*.lua")}

    assert files - included == set(verbs(RedisStore("redis://"), NO_LEASE))


NO_LEASE = Lease(
    job_id="none",
    key="none",
    task="none",
    scope="",
    holder="none",
    fence=1,
    attempt=1,
    crashes=0,
    until=datetime.now(UTC),
    duration=timedelta(seconds=30),
)


def test_a_safe_verb_is_one_packet_with_its_barrier(valkey: ValkeyServer, sent: list[bytes]) -> None:
    with opened(valkey) as store:
        for name in ("first", "second"):
            sent.clear()
            accepted(store, name, name, durability=SAFE)
            answer = begin(store, work(name, name, durability=SAFE))
            assert isinstance(answer, Granted)
            complete(store, answer.lease)

    assert [(packet.count(b"EVALSHA"), packet.count(b"WAITAOF")) for packet in sent] == [(1, 1)] * 3


def test_a_script_that_the_server_has_forgotten_is_sent_whole(store: RedisStore, server: AnyServer) -> None:
    accepted(store)
    with client_of(server) as client:
        client.script_flush()

    assert isinstance(begin(store), Granted)


def test_a_safe_script_that_the_server_has_forgotten_is_sent_whole(valkey: ValkeyServer) -> None:
    with opened(valkey) as store, client_of(valkey) as client:
        accepted(store, durability=SAFE)
        client.script_flush()

        assert isinstance(begin(store, work(durability=SAFE)), Granted)


# The keys


def test_all_keys_are_in_one_slot(private_server: AnyServer) -> None:
    with opened(private_server, namespace="mine") as store, client_of(private_server) as client:
        fill(store)

        assert {key_slot(key) for key in keys_in(client)} == {key_slot(b"mine")}


def test_no_key_expires_of_its_own(private_server: AnyServer) -> None:
    with opened(private_server) as store, client_of(private_server) as client:
        fill(store)

        assert {client.ttl(key) for key in keys_in(client)} == {-1}


def test_ledgers_of_two_namespaces_do_not_meet(server: AnyServer) -> None:
    with opened(server) as one, opened(server) as other:
        completed(one)

        assert isinstance(reserve(other), Reserved)


def test_what_is_over_and_pruned_leaves_nothing_behind(private_server: AnyServer) -> None:
    clock = FakeClock()
    with opened(private_server, clock=clock, namespace="mine") as store, client_of(private_server) as client:
        fill(store)
        for job in ("queued", "running"):
            store.cancel(job, reason="over", force=True)
        store.discard("buried")
        clock.advance(days=365)
        store.prune(limit=1000)

        left = {key.decode().removeprefix("{mine}:") for key in keys_in(client)}

    assert left == {"endings", "duplicates", "decisions"}


def test_lua_and_python_know_the_same_states() -> None:
    line = re.search(r"^local QUEUED, .* = (.*)$", scripts.read_script("get", flagged=True), flags=re.MULTILINE)

    assert line
    assert set(re.findall(r"'(\w+)'", line[1])) == {*State}


def test_the_scripts_use_no_command_that_is_newer_than_redis_6_2(redis7: RedisServer) -> None:
    text = "".join(path.read_text() for path in Path(scripts.__file__).parent.glob("*.lua"))
    used = set(re.findall(r"call\('([A-Z]+)'", text))
    with client_of(redis7) as client:
        since = {
            command: client.execute_command("COMMAND DOCS", command)[command.lower().encode()][b"since"]  # type: ignore[no-untyped-call]
            for command in used
        }

    newer = {command for command, version in since.items() if tuple(map(int, version.split(b"."))) > (6, 2, 0)}

    assert len(used) > 20
    assert newer == set()


def test_a_completed_job_takes_little_memory(private_redis7: RedisServer) -> None:
    count = 20_000
    private_redis7.options["appendonly"] = "no"
    private_redis7.restart()
    with opened(private_redis7) as store, client_of(private_redis7) as client:
        complete_a_job(store)
        before = client.info("memory")["used_memory"]

        for _ in range(count):
            complete_a_job(store)

        assert (client.info("memory")["used_memory"] - before) / count <= BYTES_PER_JOB


def complete_a_job(store: Store) -> None:
    offer = work(str(uuid.uuid4()), secrets.token_hex(32), body=b"x" * 200)
    accepted(store, offer.id, offer.key, body=offer.body)
    complete(store, running(store, offer, holder=secrets.token_hex(16), worker="celery@web-1:431"), result=b"null")


def test_any_text_may_be_an_id_a_key_and_a_holder(store: RedisStore) -> None:
    uuid4 = str(uuid.uuid4())
    names = ["", "a-b", "é\n", uuid4, uuid4.upper(), uuid4.replace("-", ""), f"{uuid4[:-1]}-{uuid4[-1]}", "-" * 36]
    names += [text * size for text in ("x", "0", "A") for size in (15, 16, 31, 32, 64)]

    for number, name in enumerate(names):
        lease = running(store, work(name, f"{name}{number}"), holder=name or "h")
        complete(store, lease)

        job = seen(store, name)
        assert (job.id, job.key, job.holder) == (name, f"{name}{number}", name or "h")


# When memory runs out


def test_a_full_server_refuses_a_verb_whole(private_server: AnyServer) -> None:
    with opened(private_server) as store, client_of(private_server) as client:
        lease = fill(store)
        refused = {verb: say for verb, say in verbs(store, lease).items() if verb not in scripts.FLAGS}
        client.config_set("maxmemory", 1)
        before = everything_in(client)

        for verb, say in refused.items():
            with pytest.raises(StoreUnavailableError):
                say()
            assert everything_in(client) == before, verb


def test_a_full_server_still_reads_and_forgets(private_server: AnyServer) -> None:
    with opened(private_server) as store, client_of(private_server) as client:
        fill(store)
        client.config_set("maxmemory", 1)

        assert store.prune(limit=10) == 0
        assert seen(store, "running").state is State.RUNNING
        assert store.find(Query()).items
        assert store.tally().states[State.BURIED] == 1


def everything_in(client: Redis) -> dict[bytes, bytes | None]:
    return {key: client.dump(key) for key in keys_in(client)}


# Time


def test_without_a_clock_the_servers_own_decides(store: RedisStore, server: AnyServer) -> None:
    with client_of(server) as client:
        earlier = client.time()
        job = accepted(store)
        later = client.time()

    assert earlier <= (int(job.created_at.timestamp()), job.created_at.microsecond) <= later


def test_a_clock_that_is_set_back_loses_no_finished_job(server: AnyServer) -> None:
    clock = FakeClock()
    with opened(server, clock=clock) as store:
        completed(store, work("first", "first"))
        clock.advance(hours=-1)
        completed(store, work("second", "second"))

        assert seen(store, "second").settled_at == clock.now
        assert [job.id for job in store.find(Query()).items] == ["second", "first"]


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


def test_an_answer_that_nobody_waits_for_is_not_taken_for_another(store: RedisStore) -> None:
    accepted(store)
    for number in range(3):
        store.reserving(work(f"left {number}", f"key {number}"), on_duplicate=OnDuplicate.JOIN)

    assert isinstance(store.cancel(JOB, reason="no"), Cancelled)
    assert seen(store).state is State.CANCELLED


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


# Durability


def test_safe_waits_for_the_disk(private_valkey: ValkeyServer) -> None:
    with opened(private_valkey) as store:
        completed(store, work(durability=SAFE))

    with client_of(private_valkey) as client:
        persistence = client.info("persistence")

    assert persistence["aof_enabled"]
    assert persistence["aof_pending_bio_fsync"] == 0


def test_safe_is_refused_while_the_disk_does_not_confirm(private_valkey: ValkeyServer) -> None:
    private_valkey.options["appendfsync"] = "no"
    private_valkey.restart()
    with opened(private_valkey, IMPATIENT) as store, client_of(private_valkey) as client:
        with pytest.raises(StoreUnavailableError, match="not safe yet: 0 of 1 disks"):
            reserve(store, durability=SAFE)
        client.config_set("appendfsync", "always")

        assert isinstance(reserve(store, durability=SAFE), Reserved)


@pytest.mark.parametrize("verb", ["reserve", "begin", "settle"])
def test_safe_on_a_server_that_cannot_tell_is_an_error_that_says_what_to_write(
    verb: str, private_server: AnyServer
) -> None:
    private_server.options["appendonly"] = "no"
    private_server.restart()
    with opened(private_server) as store:
        lease = running(store, work("running", "running"))
        before = store.find(Query())

        with pytest.raises(ConfigurationError, match=r"appendonly yes.*\?replicas=1"):
            say_safely(store, verb, lease)

        assert store.find(Query()) == before, "nothing was written"


def test_an_old_server_that_always_syncs_is_safe(private_redis7: RedisServer) -> None:
    with opened(private_redis7) as store, client_of(private_redis7) as client:
        with pytest.raises(ConfigurationError):
            reserve(store, durability=SAFE)
        client.config_set("appendfsync", "always")

        assert isinstance(reserve(store, durability=SAFE), Reserved)


@pytest.fixture
def replica(private_server: AnyServer) -> Iterator[AnyServer]:
    """Give a replica of the private server, which keeps nothing on disk itself: only the replica makes it safe."""
    private_server.options |= {"appendonly": "no", "repl-diskless-sync-delay": "0"}
    private_server.restart()
    with type(private_server)(options={"appendonly": "no"}) as replica:
        follow(replica, private_server)
        yield replica


def follow(replica: AnyServer, primary: AnyServer) -> None:
    """Make one server a replica of the other, and wait until it has what is written."""
    with client_of(replica) as one, client_of(primary) as other:
        one.replicaof("127.0.0.1", primary.port)
        assert eventually(lambda: other.incr("written") > 0 and other.wait(1, 100) == 1, 30)


def say_safely(store: Store, verb: str, lease: Lease) -> object:
    """Say a verb that waits, in a way that can be said again."""
    match verb:
        case "reserve":
            return reserve(store, "reserved", "reserved", durability=SAFE)
        case "begin":
            return begin(store, work("begun", "begun", durability=SAFE))
        case _:
            return store.settle(replace(lease, durability=SAFE), Complete(result=b"done"))


@pytest.mark.parametrize("verb", ["reserve", "begin", "settle"])
def test_safe_waits_for_the_replica_and_then_gives_the_same_answer(
    verb: str, private_server: AnyServer, replica: AnyServer
) -> None:
    with opened(private_server, f"replicas=1&{IMPATIENT}") as store:
        lease = running(store, work("running", "running"))
        say_safely(store, "reserve", lease)
        replica.pause()
        with pytest.raises(StoreUnavailableError, match=r"not safe yet.*0 of 1 replicas"):
            say_safely(store, verb, lease)
        replica.resume()

        answer = say_safely(store, verb, lease)

        assert isinstance(answer, (Reserved, Granted, Settled))
        assert answer == say_safely(store, verb, lease)


def test_a_safe_answer_waits_also_where_another_connection_wrote(private_server: AnyServer, replica: AnyServer) -> None:
    options = f"replicas=1&{IMPATIENT}"
    with (
        opened(private_server, options, namespace="one") as store,
        opened(private_server, options, namespace="one") as other,
    ):
        say_safely(other, "reserve", NO_LEASE)
        replica.pause()
        running(store, work("begun", "begun"))

        with pytest.raises(StoreUnavailableError, match="not safe yet"):
            say_safely(other, "begin", NO_LEASE)
        replica.resume()


def test_renew_and_record_wait_for_nobody(private_server: AnyServer, replica: AnyServer) -> None:
    with opened(private_server, f"replicas=1&{IMPATIENT}") as store:
        lease = running(store, work(durability=SAFE))
        replica.pause()

        (renewed,) = store.renew([lease])
        recorded = store.record(lease, progress=Progress(done=1))
        replica.resume()

    assert isinstance(renewed, Renewed)
    assert isinstance(recorded, Recorded)


# Errors


def test_a_replica_is_no_store(replica: AnyServer) -> None:
    with opened(replica) as store, pytest.raises(StoreUnavailableError, match="read only"):
        reserve(store)


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
