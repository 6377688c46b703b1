from __future__ import annotations

import hashlib
import os
import random
import re
import subprocess
import sys
import threading
import uuid
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.resources.abc import Traversable
from typing import Any

import psycopg
import pytest
from psycopg import sql

from oncelery.answers import Busy, Existing, Fenced, Granted, Renewed, Reserved, Settled
from oncelery.embedded.process import eventually
from oncelery.errors import ConfigurationError, OnceleryError, StoreUnavailableError
from oncelery.job import PAST_KEPT, Cause, Durability, Failure, Lease, OnDuplicate, Progress, Query, State
from oncelery.settlement import Complete, Release, Settlement
from oncelery.stores.base import PUBLISH_GRACE, SLOW_CHECK, Clock
from oncelery.stores.postgres import PostgresStore, connections, schema
from oncelery.testing import FakeClock
from oncelery.testing.conformance.acts import (
    JOB,
    KEY,
    LEASE,
    OTHER,
    accepted,
    begin,
    complete,
    completed,
    lapsed,
    reserve,
    running,
    seen,
    work,
)
from oncelery.testing.proxy import FaultProxy, Loss
from oncelery.testing.servers import PostgresServer

#: What servers out there have, noted with each release: the digest of the functions of a revision, and of a migration.
RELEASED_FUNCTIONS: dict[int, str] = {}
RELEASED_MIGRATIONS: list[str] = []

#: How long to wait for what must happen.
PATIENCE_SECONDS = 60

#: How each message that asks for an answer begins: the end of a prepared or parametrised statement, and a plain one.
ASKS = (b"S\0\0\0\4", b"Q\0\0\0")

#: More than any test sends.
MANY = 1_000_000

Connection = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture(scope="module")
def url(postgres: PostgresServer) -> str:
    return postgres.create_database()


@pytest.fixture
def namespace() -> str:
    return f"ledger_{uuid.uuid4().hex}"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(url: str, namespace: str) -> Iterator[PostgresStore]:
    """Give a ledger on the server's clock."""
    with opened(url, namespace) as store:
        yield store


@pytest.fixture
def connection(url: str, namespace: str) -> Iterator[Connection]:
    """Give a connection of the caller's, with the ledger's schema as its own."""
    with psycopg.connect(url) as connection:
        connection.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(namespace)))
        connection.commit()
        yield connection
        connection.rollback()


@contextmanager
def opened(url: str, namespace: str, *, options: str = "", clock: Clock | None = None) -> Iterator[PostgresStore]:
    store = PostgresStore(f"{url}?{options}", namespace=namespace, clock=clock)
    yield store
    store.close()


def one(connection: Connection, query: str, *values: object) -> Any:  # noqa: ANN401 - whatever is asked for
    row = connection.execute(query.encode(), values).fetchone()
    assert row is not None
    return row[0]


# The schema


def test_the_check_constraint_lists_the_states(store: PostgresStore, connection: Connection) -> None:
    store.migrate()

    constraint = one(
        connection, "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'jobs_state_check'"
    )

    assert re.findall(r"'(\w+)'", constraint) == [state.value for state in State]


def test_the_functions_have_the_constants_of_the_contract(store: PostgresStore, connection: Connection) -> None:
    store.migrate()

    told = connection.execute("SELECT publish_grace(), slow_check(), past_kept()").fetchone()

    assert told == (PUBLISH_GRACE, SLOW_CHECK, PAST_KEPT)


def test_the_functions_of_a_released_revision_do_not_change() -> None:
    digest = digest_of(*schema.functions())

    assert RELEASED_FUNCTIONS.get(schema.REVISION, digest) == digest, "raise schema.REVISION"


def test_a_released_migration_does_not_change() -> None:
    digests = [digest_of(file) for file in schema.migrations()]

    assert digests[: len(RELEASED_MIGRATIONS)] == RELEASED_MIGRATIONS, "write a new migration"


def digest_of(*files: Traversable) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def test_eight_processes_that_start_at_once_make_one_ledger(url: str, namespace: str, connection: Connection) -> None:
    program = f"from oncelery.stores import open_store; print(open_store({url!r}, namespace={namespace!r}).get('x'))"
    connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('oncelery:migrate:' || %s, 0))", (namespace,))
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"

    processes = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) for _ in range(8)]
    assert eventually(lambda: one(connection, waiting) == len(processes), PATIENCE_SECONDS)
    connection.commit()

    assert [process.communicate(timeout=PATIENCE_SECONDS)[0] for process in processes] == [b"None\n"] * 8
    assert [process.returncode for process in processes] == [0] * 8
    assert connection.execute("SELECT migration, revision FROM version").fetchall() == [(1, schema.REVISION)]


def test_a_migration_may_take_longer_than_a_verb(
    store: PostgresStore, url: str, namespace: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "SILENCE_SECONDS", 1)
    connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('oncelery:migrate:' || %s, 0))", (namespace,))
    waiting = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE wait_event = 'advisory' AND clock_timestamp() - query_start > interval '1.5 seconds'"
    )

    with psycopg.connect(url, autocommit=True) as admin, ThreadPoolExecutor(1) as thread:
        migration = thread.submit(store.migrate)
        assert eventually(lambda: one(admin, waiting) == 1, PATIENCE_SECONDS)
        connection.commit()

        migration.result(PATIENCE_SECONDS)

    assert one(connection, "SELECT revision FROM version") == schema.REVISION


def test_the_functions_of_a_newer_version_are_left_alone(
    store: PostgresStore, url: str, namespace: str, connection: Connection
) -> None:
    store.migrate()
    connection.execute("UPDATE version SET revision = 99; ALTER FUNCTION get RENAME TO newer_get")
    connection.commit()

    with opened(url, namespace) as older:
        older.last(KEY)

    assert one(connection, "SELECT revision FROM version") == 99
    assert one(connection, "SELECT to_regproc('get')") is None


def test_the_functions_of_an_older_version_are_replaced(
    store: PostgresStore, url: str, namespace: str, connection: Connection
) -> None:
    store.migrate()
    connection.execute("UPDATE version SET revision = 0; ALTER FUNCTION get RENAME TO older_get")
    connection.commit()

    with opened(url, namespace) as newer:
        assert newer.get(JOB) is None

    assert one(connection, "SELECT revision FROM version") == schema.REVISION


def test_a_ledger_that_may_not_be_made_here_is_asked_for(url: str, namespace: str) -> None:
    with opened(url, namespace, options="migrate=false") as store:
        with pytest.raises(ConfigurationError, match="has no ledger: run `oncelery migrate`"):
            store.get(JOB)

        store.migrate()
        assert store.get(JOB) is None


def test_an_old_ledger_that_may_not_be_changed_here_is_told(
    store: PostgresStore, url: str, namespace: str, connection: Connection
) -> None:
    store.migrate()
    connection.execute("UPDATE version SET revision = 0")
    connection.commit()

    with (
        opened(url, namespace, options="migrate=false") as later,
        pytest.raises(ConfigurationError, match="older version: run `oncelery migrate`"),
    ):
        later.get(JOB)


def test_a_user_who_may_not_make_a_schema_is_told_and_may_use_one_that_is_made(
    url: str, namespace: str, postgres: PostgresServer
) -> None:
    theirs = url.replace(f"postgres:{postgres.password}", f"{namespace}:secret")
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'secret'").format(sql.Identifier(namespace)))

        with opened(theirs, namespace) as store, pytest.raises(ConfigurationError, match="permission denied"):
            store.get(JOB)

        admin.execute(sql.SQL("CREATE SCHEMA {0} AUTHORIZATION {0}").format(sql.Identifier(namespace)))
        with opened(theirs, namespace) as store:
            assert accepted(store) == seen(store)


def test_ledgers_of_two_namespaces_know_nothing_of_each_other(store: PostgresStore, url: str, namespace: str) -> None:
    accepted(store)

    with opened(url, f"{namespace}_2") as other:
        assert accepted(other) != seen(store)
        complete(other, running(other))

    assert seen(store).state is State.QUEUED


@pytest.mark.parametrize("name", ["", "Upper", "1st", "a-b", 'a"; DROP TABLE x; --', "n" * 64, "a\0"])
def test_a_namespace_that_is_no_plain_name_is_refused(url: str, name: str) -> None:
    with pytest.raises(ConfigurationError, match="namespace"):
        PostgresStore(url, namespace=name)


# The URL


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:s3cret/x@host/database",
        "postgresql://user:s3cret@host:port/database",
        "postgresql://user:s3cret@host/database?no_such_option=1",
        "postgresql://user:s3cret@host/database?migrate=perhaps",
        "postgresql://user:s3cret@host/database?connections=0",
        "postgresql://user:s3cret@host/database?connections=many",
        "postgresql://user:s3cret%@host/database",
    ],
)
def test_a_url_that_cannot_be_read_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        PostgresStore(url)

    assert "s3cret" not in f"{refused.value}{refused.value.__cause__}"
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


@pytest.mark.parametrize("part", ["password", "user", "database"])
def test_a_wrong_part_of_the_url_is_a_matter_of_configuration(url: str, postgres: PostgresServer, part: str) -> None:
    database = url.rpartition("/")[2]
    wrong = {
        "password": url.replace(postgres.password, "s3cret"),
        "user": url.replace("postgres:", "nobody_here:"),
        "database": url.replace(database, "nowhere"),
    }[part]

    with opened(wrong, "oncelery") as store, pytest.raises(ConfigurationError) as refused:
        store.get(JOB)

    assert not {"s3cret", postgres.password} & set(re.findall(r"\w+", str(refused.value)))


def test_settings_of_the_server_in_the_url_are_heeded(url: str, namespace: str) -> None:
    settings = "application_name=mine&connections=2&connect_timeout=3"

    with opened(url, namespace, options=settings) as store, psycopg.connect(url) as admin:
        store.get(JOB)
        names = one(admin, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'mine'")

    assert names == 1


def test_behind_pgbouncer_nothing_is_prepared(postgres: PostgresServer, url: str, namespace: str) -> None:
    with (
        FaultProxy(postgres.port) as proxy,
        opened(proxy.url(url), namespace, options="pgbouncer=true") as store,
        opened(proxy.url(url), namespace) as usual,
    ):
        store.get(JOB)
        usual.get(JOB)
        prepared = counter(proxy, b"_pg3_")

        for _ in range(10):
            store.get(JOB)
        without = MANY - prepared.nth
        for _ in range(10):
            usual.get(JOB)

    assert without == 0
    assert MANY - prepared.nth > 0


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


def counter(proxy: FaultProxy, matching: bytes) -> Loss:
    """Count down how often these bytes are sent."""
    return proxy.lose_request(matching, nth=MANY)


# Trouble


def test_a_statement_whose_reply_is_lost_is_sent_again(postgres: PostgresServer, url: str, namespace: str) -> None:
    with FaultProxy(postgres.port) as proxy, opened(proxy.url(url), namespace) as store:
        lease = running(store)
        lost = proxy.lose_reply(b"settle")

        assert store.settle(lease, Complete(result=b"paid")) == Settled(State.COMPLETED)
        assert lost.happened.is_set()
        assert seen(store).result == b"paid"


def test_a_session_ended_by_the_server_is_replaced(postgres: PostgresServer, namespace: str) -> None:
    url = postgres.create_database()
    with opened(url, namespace) as store, psycopg.connect(url, autocommit=True) as admin:
        lease = running(store)

        assert one(admin, "SELECT pg_terminate_backend(%s, 10000)", its_session(admin))

        assert store.settle(lease, Complete(result=b"paid")) == Settled(State.COMPLETED)


def test_a_lost_line_is_told_within_bounds_and_found_again(postgres: PostgresServer, url: str, namespace: str) -> None:
    with FaultProxy(postgres.port) as proxy, opened(proxy.url(url), namespace) as store:
        lease = running(store)
        proxy.refuse()
        proxy.cut()

        with pytest.raises(StoreUnavailableError):
            store.settle(lease, Complete(result=b"paid"))

        proxy.accept()
        assert store.settle(lease, Complete(result=b"paid")) == Settled(State.COMPLETED)


def test_a_frozen_server_is_not_waited_for_without_end(
    private_postgres: PostgresServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(private_postgres.url, namespace, options="connect_timeout=2") as store:
        lease = running(store)
        private_postgres.pause()

        with monkeypatch.context() as impatient:
            impatient.setattr(connections, "SILENCE_SECONDS", 1)
            impatient.setattr(connections, "PATIENCE_SECONDS", 1)
            with pytest.raises(StoreUnavailableError, match="no answer for 1 seconds"):
                store.settle(lease, Complete(result=b"paid"))

        private_postgres.resume()
        assert store.settle(lease, Complete(result=b"paid")) == Settled(State.COMPLETED)


def test_a_server_that_may_not_write_is_unavailable(store: PostgresStore, url: str, namespace: str) -> None:
    accepted(store)

    with opened(url, namespace, options="options=-c%20default_transaction_read_only%3Don") as standby:
        assert seen(standby).id == JOB
        with pytest.raises(StoreUnavailableError, match="read-only"):
            begin(standby)

    assert isinstance(begin(store), Granted)


@pytest.mark.parametrize("limit", ["lock_timeout", "statement_timeout"])
def test_a_lock_that_is_kept_too_long_is_not_waited_for(
    store: PostgresStore, url: str, namespace: str, connection: Connection, limit: str
) -> None:
    accepted(store.within(connection))
    connection.execute("SAVEPOINT held")
    if limit == "lock_timeout":
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(
                sql.SQL("ALTER FUNCTION {}.reserve SET lock_timeout = '10ms'").format(sql.Identifier(namespace))
            )

    with opened(url, namespace, options="options=-c%20statement_timeout%3D300") as other:
        with pytest.raises(StoreUnavailableError, match=limit.replace("_", " ")):
            reserve(other, OTHER)

        connection.rollback()
        assert isinstance(reserve(other, OTHER), Reserved)


def test_a_rival_that_was_sent_back_goes_again(store: PostgresStore, connection: Connection) -> None:
    refuse_once(store, connection, "40001")

    assert isinstance(reserve(store), Reserved)

    assert one(connection, "SELECT last_value FROM refusals") == 2


def test_within_a_transaction_nothing_is_sent_again(store: PostgresStore, connection: Connection) -> None:
    refuse_once(store, connection, "40001")

    with pytest.raises(StoreUnavailableError):
        reserve(store.within(connection))

    connection.rollback()
    assert one(connection, "SELECT last_value FROM refusals") == 1


def test_values_that_the_database_refuses_are_not_tried_again(store: PostgresStore) -> None:
    with pytest.raises(OnceleryError, match="refuses these values") as refused:
        accepted(store, delay=timedelta(days=365 * 300_000))

    assert not isinstance(refused.value, StoreUnavailableError)


def test_a_killed_server_forgets_nothing_it_has_acknowledged(private_postgres: PostgresServer, namespace: str) -> None:
    with opened(private_postgres.url, namespace) as store:
        for number in range(20):
            completed(store, work(f"completed {number}", f"key {number}"), result=b"paid")
        accepted(store, "queued", "another key")
        lease = running(store)
        store.record(lease, step=("charge", b"charged"))
        before = store.find(Query()).items

        private_postgres.kill()
        private_postgres.restart()

        assert store.find(Query()).items == before
        assert isinstance(store.renew([lease])[0], Renewed)


def test_a_forked_child_has_connections_of_its_own(postgres: PostgresServer, namespace: str) -> None:
    url = postgres.create_database()
    with opened(url, namespace) as store, psycopg.connect(url, autocommit=True) as admin:
        lease = running(store)
        before = its_session(admin)

        status = in_forked_child(lambda: complete(store, lease, result=b"paid"))

        assert status == 0
        assert seen(store).result == b"paid"
        assert its_session(admin) == before, "the parent goes on in the session it had"


def test_a_store_that_nobody_closed_lets_its_process_end_in_silence(url: str, namespace: str) -> None:
    program = f"from oncelery.stores import open_store; open_store({url!r}, namespace={namespace!r}).get('x')"

    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, text=True, timeout=PATIENCE_SECONDS
    )

    assert process.stdout + process.stderr == ""


def test_a_closed_store_opens_again(store: PostgresStore) -> None:
    accepted(store)

    store.close()

    assert seen(store).id == JOB


# The caller's transaction


def test_a_connection_without_a_transaction_is_refused(store: PostgresStore, connection: Connection) -> None:
    connection.commit()
    connection.autocommit = True

    with pytest.raises(ConfigurationError, match="transaction"):
        store.within(connection)

    with connection.transaction():
        accepted(store.within(connection))
    assert seen(store).id == JOB


def test_closing_the_store_within_leaves_the_callers_connection_open(
    store: PostgresStore, connection: Connection
) -> None:
    inside = store.within(connection)
    accepted(inside)

    inside.close()

    connection.commit()
    assert seen(store).id == JOB


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_run_superseded_after_a_strict_transaction_began_cannot_commit_in_it(
    url: str, namespace: str, clock: FakeClock, connection: Connection, level: str
) -> None:
    with opened(url, namespace, clock=clock) as store:
        ghost = lapsed(store, clock)
        connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        inside = store.within(connection)
        assert seen(inside).state is State.RUNNING
        running(store, holder="second")

        with pytest.raises(StoreUnavailableError):
            inside.settle(ghost, Complete(result=b"late"))

        connection.rollback()
        assert inside.settle(ghost, Complete(result=b"late")) == Fenced(State.RUNNING)


def test_a_transaction_that_holds_one_job_does_not_let_the_other_leases_lapse(
    url: str, namespace: str, clock: FakeClock, connection: Connection
) -> None:
    with opened(url, namespace, clock=clock) as store:
        leases = [running(store, work(job_id, f"key of {job_id}")) for job_id in ("a", "b", "c")]
        store.within(connection).settle(leases[1], Complete(result=b"paid"))
        clock.advance(seconds=10)

        answers = store.renew(leases)

        later = Renewed(clock.now + LEASE, cancel_requested=False)
        as_it_was = Renewed(leases[1].until, cancel_requested=False)
        assert answers == [later, as_it_was, later]
        connection.commit()
        assert store.renew(leases)[1] == Fenced(State.COMPLETED)


def test_the_time_is_that_of_the_verb_not_of_the_transaction(store: PostgresStore, connection: Connection) -> None:
    began_at = one(connection, "SELECT now()")
    inside = store.within(connection)

    first = accepted(inside)
    second = accepted(inside, OTHER, "another key")

    assert began_at < first.created_at < second.created_at
    assert one(connection, "SELECT now()") == began_at


def test_a_day_has_24_hours_in_every_time_zone(store: PostgresStore, connection: Connection) -> None:
    # The night in which the clocks of Berlin are set forward.
    before = datetime(2030, 3, 30, 12, tzinfo=UTC)
    connection.execute("SET TIME ZONE 'Europe/Berlin'")
    clocked = PostgresStore(url_of(connection), namespace=namespace_of(connection), clock=lambda: before)
    store.migrate()

    inside = clocked.within(connection)
    lease = running(inside, work(retention=timedelta(days=1)))
    inside.settle(lease, Release(cause=Cause.RETRY))
    complete(inside, running(inside, holder="second"))

    job = seen(inside)
    assert job.retained_until == before + timedelta(hours=24)
    assert {job.created_at.tzinfo, job.past[0].begun_at.tzinfo} == {UTC}


# Text and bytes


@pytest.mark.parametrize("text", ["a\0b", "back\\slash", "\\0", "\\\\u0000", "caf\udce9", "\ud83d", "", "\n\t", "😀"])
def test_any_text_comes_back_as_it_was(store: PostgresStore, text: str) -> None:
    failure = Failure(type="ValueError", message=text.encode("utf-8", "replace").decode(), traceback="\0")
    offer = work(f"job {text}", f"key {text}", task=text, scope=text, queue=text, caller=text, digest=text)
    store.reserve(offer, on_duplicate=OnDuplicate.JOIN)

    lease = running(store, offer, holder=f"holder {text}", worker=text)
    store.record(lease, step=(text, text.encode("utf-8", "surrogatepass")))
    store.settle(lease, Release(cause=Cause.RETRY, error=failure))
    store.cancel(offer.id, reason=text)

    job = seen(store, offer.id)
    assert (job.id, job.key, job.holder) == (f"job {text}", f"key {text}", "")
    assert {job.task, job.scope, job.queue, job.caller, job.digest, job.worker, job.reason, *job.steps} == {text}
    assert (job.past[0].worker, job.error, job.past[0].error) == (text, failure, failure)
    assert store.last(offer.key) == job
    assert store.find(Query(task=text, scope=text)).items == (job,)


def test_text_that_looks_escaped_is_not_the_text_it_looks_like(store: PostgresStore) -> None:
    for number, key in enumerate(["a\0", "a\\0", "a\\\\0"]):
        accepted(store, f"job {number}", key)


def test_every_byte_of_a_body_and_a_result_is_kept(store: PostgresStore) -> None:
    every_byte = bytes(range(256)) * 1000

    accepted(store, body=every_byte)
    body = seen(store).body
    completed(store, result=every_byte)

    assert (body, seen(store).result) == (every_byte, every_byte)


# Durability


@pytest.mark.parametrize(("durability", "flushed"), [(Durability.FAST, False), (Durability.SAFE, True)])
def test_what_is_safe_is_on_disk_also_where_sessions_do_not_wait_for_it(
    namespace: str,
    durability: Durability,
    flushed: bool,  # noqa: FBT001
) -> None:
    # The server itself writes to disk every ten seconds only, and nobody else writes.
    options = {"wal_writer_delay": "10s", "autovacuum": "off", "bgwriter_delay": "10s"}
    with (
        PostgresServer(options=options) as server,
        opened(server.url, namespace, options="options=-c%20synchronous_commit%3Doff") as store,
        psycopg.connect(server.url, autocommit=True) as admin,
    ):
        store.migrate()
        offer = work(durability=durability)
        steps: list[Callable[[], object]] = [
            lambda: store.reserve(offer, on_duplicate=OnDuplicate.JOIN),
            lambda: leases.append(running(store, offer)),
            lambda: complete(store, leases[0]),
        ]
        leases: list[Lease] = []
        on_disk = []

        for step in steps:
            step()
            on_disk.append(one(admin, "SELECT pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()"))

    assert on_disk == [flushed] * 3


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


def test_two_who_submit_a_new_key_at_once_get_one_job(store: PostgresStore, connection: Connection) -> None:
    accepted(store.within(connection))
    with ThreadPoolExecutor(1) as other:
        answer = other.submit(reserve, store, OTHER)
        waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        assert eventually(lambda: one(connection, waits) == 1, PATIENCE_SECONDS)

        connection.commit()

        assert answer.result(PATIENCE_SECONDS) == Existing(seen(store))


def its_session(admin: Connection) -> int:
    """Give the session of the one store in this database, when those that are being closed are gone."""
    query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'oncelery'"
    assert eventually(lambda: len(admin.execute(query.encode()).fetchall()) == 1, PATIENCE_SECONDS)
    return int(one(admin, query))


def refuse_once(store: PostgresStore, connection: Connection, code: str) -> None:
    """Let the next insert of a job fail, and no other."""
    store.migrate()
    connection.execute(
        f"""
        CREATE SEQUENCE refusals;
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
          IF nextval('{namespace_of(connection)}.refusals') = 1 THEN
            RAISE EXCEPTION 'refused' USING ERRCODE = '{code}';
          END IF;
          RETURN NEW;
        END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON jobs FOR EACH ROW EXECUTE FUNCTION refuse();
    """.encode()
    )
    connection.commit()


def url_of(connection: Connection) -> str:
    info = connection.info
    return f"postgresql://{info.user}:{info.password}@{info.host}:{info.port}/{info.dbname}"


def namespace_of(connection: Connection) -> str:
    return str(one(connection, "SHOW search_path"))


def in_forked_child(act: Callable[[], object]) -> int:
    """Do something in a copy of this process; give its exit status."""
    with warnings.catch_warnings():
        # That there are threads is the point.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            act()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
