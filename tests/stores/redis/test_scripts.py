from __future__ import annotations

import re
import secrets
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from redis import Redis
from redis.crc import key_slot

from oncelery.answers import Granted, Reserved
from oncelery.errors import StoreUnavailableError
from oncelery.job import Lease, Progress, Query, Quota, State
from oncelery.settlement import Complete
from oncelery.stores.base import Store
from oncelery.stores.redis import RedisStore, scripts
from oncelery.stores.redis.wire import Connection, Wire
from oncelery.testing import FakeClock
from oncelery.testing.conformance.acts import (
    LARGE_JOBS,
    accepted,
    begin,
    buried,
    complete,
    completed,
    fill_with_large,
    reserve,
    running,
    seen,
    work,
)
from oncelery.testing.proxy import FaultProxy
from oncelery.testing.servers import RedisServer, ValkeyServer
from stores.redis.stores import NO_LEASE, SAFE, AnyServer, client_of, opened

#: The most that a completed job may take, with everything that is kept of it, when there are many.
BYTES_PER_JOB = 260


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


def keys_in(client: Redis) -> list[bytes]:
    return [bytes(key) for key in client.scan_iter()]


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
    opened = Wire.__init__

    def noted(wire: Wire, connection: Connection) -> None:
        opened(wire, connection)
        send = wire.send

        def send_noted(packet: bytes) -> None:
            packets.append(packet)
            send(packet)

        wire.send = send_noted

    monkeypatch.setattr(Wire, "__init__", noted)
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
        accepted(store, "paced", "paced", scope="acme", quota=Quota(per_minute=6))
        for job in ("queued", "running", "paced"):
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
    with Redis.from_url(redis7.url, protocol=3) as client:
        since = {
            command: client.execute_command("COMMAND DOCS", command)[command.lower().encode()][b"since"]
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
        # Of these, only what has something to write is refused by a Redis that is older than flags.
        unharmed = {*scripts.FLAGS, "due"}
        refused = {verb: say for verb, say in verbs(store, lease).items() if verb not in unharmed}
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


# Reading


def test_a_page_is_small_however_large_its_jobs_are(server: AnyServer) -> None:
    with FaultProxy(server.port) as proxy:
        store = RedisStore(proxy.url(server.url), namespace=uuid.uuid4().hex)
        fill_with_large(store)
        before = proxy.bytes_replied

        assert len(store.find(Query(limit=200)).items) == 3 * LARGE_JOBS

        assert proxy.bytes_replied - before < 3 * LARGE_JOBS * 1_000
        store.close()


def test_counts_of_one_tenant_cost_nothing_for_those_of_others(server: AnyServer) -> None:
    clock = FakeClock()
    with FaultProxy(server.port) as proxy:
        store = RedisStore(proxy.url(server.url), namespace=uuid.uuid4().hex, clock=clock)
        for number in range(100):
            reserve(store, f"job {number}", f"key {number}", scope=f"tenant {number % 50}")
            reserve(store, f"other {number}", f"key {number}", scope=f"tenant {number % 50}")
        before = proxy.bytes_replied

        (count,) = store.duplicate_counts(since=clock.now, scope="tenant 7")

        assert (count.scope, count.count) == ("tenant 7", 2)
        assert proxy.bytes_replied - before < 200
        store.close()


def test_counts_of_many_are_read_in_parts(server: AnyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(scripts.CONSTANTS, "EXAMINED_AT_ONCE", 3)
    for library in (scripts.FLAGGED, scripts.UNFLAGGED):
        monkeypatch.delitem(library, "duplicate_counts", raising=False)
    clock = FakeClock()
    with opened(server, clock=clock) as store, client_of(server) as client:
        start = clock.now
        reserve(store)
        for hour in range(12):
            reserve(store, f"other {hour}")
            clock.advance(hours=1)
        asked = client.info("commandstats")["cmdstat_evalsha"]["calls"]

        assert [count.count for count in store.duplicate_counts(since=start)] == [1] * 12

        assert client.info("commandstats")["cmdstat_evalsha"]["calls"] - asked > 3
    for library in (scripts.FLAGGED, scripts.UNFLAGGED):
        library.pop("duplicate_counts", None)


def test_a_job_that_is_pruned_leaves_nothing_of_what_was_large(server: AnyServer) -> None:
    clock = FakeClock()
    with opened(server, clock=clock) as store, client_of(server) as client:
        completed(store, work(retention=timedelta(0), history=timedelta(0)), result=b"x" * 10_000)
        assert any(b"apart:" in key for key in client.scan_iter(f"{{{store.namespace}}}:*"))

        clock.advance(seconds=1)

        assert store.prune(limit=10) == 1
        assert not any(b"apart:" in key for key in client.scan_iter(f"{{{store.namespace}}}:*"))


def test_a_clock_that_is_set_back_loses_no_finished_job(server: AnyServer) -> None:
    clock = FakeClock()
    with opened(server, clock=clock) as store:
        completed(store, work("first", "first"))
        clock.advance(hours=-1)
        completed(store, work("second", "second"))

        assert seen(store, "second").settled_at == clock.now
        assert [job.id for job in store.find(Query()).items] == ["second", "first"]
