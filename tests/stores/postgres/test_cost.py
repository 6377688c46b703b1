from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial

import psycopg
from psycopg import sql

from oncelery.answers import Busy, Existing, Granted, Settled
from oncelery.embedded.process import eventually
from oncelery.job import Cause, Lease, OnDuplicate, Progress, Query, Quota
from oncelery.settlement import Complete, Release, Settlement
from oncelery.stores.postgres import PostgresStore, schema
from oncelery.testing import FakeClock
from oncelery.testing.conformance.acts import (
    JOB,
    KEY,
    LARGE_JOBS,
    OTHER,
    accepted,
    begin,
    fill_with_large,
    reserve,
    running,
    seen,
    work,
)
from oncelery.testing.proxy import FaultProxy
from oncelery.testing.servers import PostgresServer
from stores.postgres.stores import PATIENCE_SECONDS, Connection, counter, one, opened

#: How each message that asks for an answer begins: the end of a prepared or parametrised statement, and a plain one.
ASKS = (b"S\0\0\0\4", b"Q\0\0\0")


# Bounds


def test_the_newest_duplicates_are_listed_and_all_are_counted(store: PostgresStore, connection: Connection) -> None:
    accepted(store)
    connection.execute("CREATE OR REPLACE FUNCTION duplicates_kept() RETURNS bigint LANGUAGE sql IMMUTABLE RETURN 3")
    connection.commit()
    since = datetime.now(UTC)
    for number in range(10):
        reserve(store, f"other {number}", caller=str(number))

    store.prune(limit=10)

    assert [duplicate.caller for duplicate in store.duplicates().items] == ["9", "8", "7"]
    assert sum(count.count for count in store.duplicate_counts(since=since)) == 10
    assert one(connection, "SELECT count(*) FROM duplicates") == 3
    store.prune(limit=10)
    assert sum(count.count for count in store.duplicate_counts(since=since, task="shop.charge")) == 10


# One round trip


def test_every_verb_is_one_round_trip(postgres: PostgresServer, url: str, namespace: str) -> None:
    with FaultProxy(postgres.port) as proxy, opened(proxy.url(url), namespace) as store:
        lease = running(store)
        verbs = every_verb(store, lease)
        for _ in range(6):
            for say in verbs.values():
                say()
        asked = [counter(proxy, ask) for ask in ASKS]
        trips = {}

        for verb, say in verbs.items():
            before = sum(count.nth for count in asked)
            say()
            trips[verb] = before - sum(count.nth for count in asked)

    assert trips == dict.fromkeys(verbs, 1)
    assert set(trips) == {file.name.removesuffix(".sql") for file in schema.functions()} - {"entry"}


def test_a_page_is_small_however_large_its_jobs_are(postgres: PostgresServer, url: str, namespace: str) -> None:
    with FaultProxy(postgres.port) as proxy, opened(proxy.url(url), namespace) as store:
        fill_with_large(store)
        before = proxy.bytes_replied

        assert len(store.find(Query(limit=200)).items) == 3 * LARGE_JOBS

        # The first call is told what the columns are.
        assert proxy.bytes_replied - before < 3 * LARGE_JOBS * 1_000 + 10_000


def every_verb(store: PostgresStore, lease: Lease) -> dict[str, Callable[[], object]]:
    return {
        "reserve": partial(reserve, store, OTHER),
        "begin": partial(begin, store, holder="second"),
        "renew": partial(store.renew, [lease, lease]),
        "settle": partial(store.settle, lease, Complete(result=b"")),
        "record": partial(store.record, lease, progress=Progress(done=1), step=("step", b"")),
        "cancel": partial(store.cancel, JOB, reason=""),
        "revive": partial(store.revive, JOB),
        "discard": partial(store.discard, JOB),
        "received": partial(store.received, JOB, limit=1),
        "due": partial(store.due, limit=10, empty_queues={"celery"}),
        "get": partial(store.get, JOB),
        "last": partial(store.last, KEY),
        "find": partial(store.find, Query()),
        "duplicates": store.duplicates,
        "duplicate_counts": partial(store.duplicate_counts, since=datetime.now(UTC)),
        "count": partial(store.count, {("task", "granted"): 1}),
        "tally": store.tally,
        "prune": partial(store.prune, limit=10),
    }


# What each verb touches


def test_a_renewal_and_a_record_leave_the_indexes_alone(store: PostgresStore, connection: Connection) -> None:
    lease = running(store)
    inside = store.within(connection)

    inside.renew([lease])
    inside.record(lease, progress=Progress(done=1))

    assert one(connection, "SELECT pg_stat_get_xact_tuples_updated('jobs'::regclass)") == 2
    assert one(connection, "SELECT pg_stat_get_xact_tuples_hot_updated('jobs'::regclass)") == 2


def test_a_plan_made_for_an_empty_ledger_does_not_read_all_of_a_full_one(
    store: PostgresStore, url: str, namespace: str, connection: Connection
) -> None:
    accepted(store)
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(sql.SQL("VACUUM ANALYZE {0}.jobs, {0}.steps").format(sql.Identifier(namespace)))
    verbs = every_verb(store.within(connection), running(store))
    for _ in range(6):
        for say in verbs.values():
            say()
    before = [one(connection, f"SELECT pg_stat_get_xact_numscans('{table}'::regclass)") for table in ("jobs", "steps")]

    for verb, say in verbs.items():
        # A page of all jobs, and the sum of all, read all.
        if verb not in ("tally", "find"):
            say()

    after = [one(connection, f"SELECT pg_stat_get_xact_numscans('{table}'::regclass)") for table in ("jobs", "steps")]
    assert after == before


def test_sweeping_touches_none_but_the_jobs_it_gives(
    url: str, namespace: str, clock: FakeClock, connection: Connection
) -> None:
    with opened(url, namespace, clock=clock) as store:
        accepted(store, "lost", "key 0")
        clock.advance(seconds=20)
        for number in range(50):
            accepted(store, f"waiting {number}", f"key {number + 1}")
        running(store, work("waiting 0", "key 1"))
        clock.advance(seconds=10)
        inside = store.within(connection)

        assert [job.id for job in inside.due(limit=100)] == ["lost"]

    assert one(connection, "SELECT pg_stat_get_xact_tuples_updated('jobs'::regclass)") == 1


# Races


def test_of_twenty_that_begin_at_once_one_is_granted(url: str, namespace: str) -> None:
    with opened(url, namespace, options="connections=20") as store, ThreadPoolExecutor(20) as threads:
        start = threading.Barrier(20)

        def race(number: int) -> object:
            start.wait(PATIENCE_SECONDS)
            return begin(store, holder=str(number))

        answers = list(threads.map(race, range(20)))

    assert sorted(type(answer).__name__ for answer in answers) == ["Busy"] * 19 + ["Granted"]


def test_verbs_that_meet_in_every_order_never_wait_for_each_other(postgres: PostgresServer, namespace: str) -> None:
    url = postgres.create_database()
    with opened(url, namespace, options="connections=10") as store, ThreadPoolExecutor(8) as threads:
        told = list(threads.map(partial(mingle, store), range(8)))

    with psycopg.connect(url) as admin:
        deadlocks = one(admin, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
    assert deadlocks == 0
    assert sum(told) > 0


def mingle(store: PostgresStore, seed: int) -> int:
    """Say verbs at random on a few keys; give how many runs were completed."""
    chance, leases, ended = random.Random(seed), list[Lease](), 0
    for turn in range(150):
        offer = work(f"{seed}/{turn}", f"key {chance.randrange(3)}", retention=timedelta(0))
        store.reserve(offer, on_duplicate=chance.choice(list(OnDuplicate)))
        match begin(store, offer, holder=offer.id, lease=timedelta(microseconds=chance.choice([1, 10**8]))):
            case Granted(lease):
                leases.append(lease)
            case Busy(job) if chance.random() < 0.5:
                store.cancel(job.id, reason="in the way", force=chance.random() < 0.5)
        store.renew(chance.sample(leases, min(len(leases), 5)))
        store.received(offer.id, limit=chance.randrange(3))
        store.due(limit=5, empty_queues=["celery"])
        if leases:
            lease = leases.pop(chance.randrange(len(leases)))
            store.record(lease, step=("step", b""))
            ending: Settlement = Complete(result=b"") if chance.random() < 0.5 else Release(cause=Cause.CRASH)
            ended += isinstance(store.settle(lease, ending), Settled)
        store.prune(limit=5)
    return ended


def test_the_times_of_scopes_are_kept_no_longer_than_they_count(
    url: str, namespace: str, clock: FakeClock, connection: Connection
) -> None:
    with opened(url, namespace, clock=clock) as store:
        accepted(store, scope="acme", quota=Quota(per_minute=6))
        store.prune(limit=10)
        assert one(connection, "SELECT count(*) FROM paces") == 1

        clock.advance(hours=1)
        store.prune(limit=10)
        connection.commit()

        assert one(connection, "SELECT count(*) FROM paces") == 0


def test_two_who_submit_a_new_key_at_once_get_one_job(store: PostgresStore, connection: Connection) -> None:
    accepted(store.within(connection))
    with ThreadPoolExecutor(1) as other:
        answer = other.submit(reserve, store, OTHER)
        waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        assert eventually(lambda: one(connection, waits) == 1, PATIENCE_SECONDS)

        connection.commit()

        assert answer.result(PATIENCE_SECONDS) == Existing(seen(store))
