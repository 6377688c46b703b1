from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from celery.exceptions import SoftTimeLimitExceeded
from psycopg import sql
from psycopg_pool import ConnectionPool

from oncelery.answers import Granted, Renewed, Reserved, Revived, Settled
from oncelery.embedded.process import eventually
from oncelery.errors import OnceleryError, StoreUnavailableError
from oncelery.job import Durability, Failure, Lease, OnDuplicate, Query, Reason, State
from oncelery.settlement import Bury, Complete
from oncelery.stores.postgres import PostgresStore, connections
from oncelery.stores.postgres.address import Address
from oncelery.testing.conformance.acts import (
    JOB,
    OTHER,
    accepted,
    begin,
    complete,
    completed,
    reserve,
    running,
    seen,
    work,
)
from oncelery.testing.proxy import FaultProxy
from oncelery.testing.servers import PostgresServer
from stores.postgres.stores import PATIENCE_SECONDS, Connection, namespace_of, one, opened

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


def test_connections_lost_to_an_exception_of_a_signal_are_replaced(
    url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "BUSY_SECONDS", 1)
    with opened(url, namespace, options="connections=2") as store, ExitStack() as lost:
        accepted(store)

        with monkeypatch.context() as struck:
            take = ConnectionPool.getconn

            def take_and_be_struck(pool: connections.Pool) -> None:
                lost.callback(take(pool).close)
                raise SoftTimeLimitExceeded

            struck.setattr(ConnectionPool, "getconn", take_and_be_struck)
            for _ in range(2):
                with pytest.raises(SoftTimeLimitExceeded):
                    store.get(JOB)

        assert seen(store).id == JOB


def test_connections_that_are_all_busy_are_waited_for_and_kept(
    store: PostgresStore, url: str, namespace: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "BUSY_SECONDS", 1)
    accepted(store.within(connection))
    with opened(url, namespace, options="connections=1") as other, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(reserve, other, OTHER)
        with psycopg.connect(url, autocommit=True) as admin:
            query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            assert eventually(lambda: one(admin, query) == 1, PATIENCE_SECONDS)

        with pytest.raises(StoreUnavailableError, match="couldn't get a connection"):
            other.get(JOB)

        connection.rollback()
        assert isinstance(waiting.result(), Reserved)


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


def test_what_a_process_has_counted_last_is_in_the_ledger_when_it_has_ended(
    store: PostgresStore, url: str, namespace: str
) -> None:
    program = f"""
from oncelery.job import Submission
from oncelery.ledger import Ledger
from oncelery.stores import open_store
from oncelery.telemetry.counting import Counting

ledger = Ledger(open_store({url!r}, namespace={namespace!r}))
ledger.events.subscribe(Counting(ledger.count))
ledger.reserve(Submission(id="job", key="0" * 64, task="charge", body=b""))
"""

    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, text=True, timeout=PATIENCE_SECONDS
    )

    assert process.stdout + process.stderr == ""
    assert store.tally().decisions == {("charge", "accepted"): 1}


def test_a_closed_store_opens_again(store: PostgresStore) -> None:
    accepted(store)

    store.close()

    assert seen(store).id == JOB


def test_a_dead_letter_with_a_nul_in_its_error_is_revived_again_and_again(store: PostgresStore) -> None:
    failure = Failure(type="ValueError", message="a \0 in it")
    for _ in range(3):
        store.settle(running(store), Bury(reason=Reason.FAILED, error=failure))

        assert isinstance(store.revive(JOB), Revived)

    assert [attempt.error for attempt in seen(store).past] == [failure] * 3


def test_a_dump_of_the_ledger_and_of_what_is_beside_it_can_be_restored_by_psql(
    postgres: PostgresServer, namespace: str
) -> None:
    url, other = postgres.create_database(), postgres.create_database()
    with opened(url, namespace) as store, psycopg.connect(url, autocommit=True) as admin:
        completed(store)
        admin.execute("CREATE TABLE public.orders AS SELECT 7 AS number")

    dump = subprocess.run([postgres.programs / "pg_dump", url], check=True, capture_output=True).stdout
    restore: list[str | Path] = [postgres.programs / "psql", "-v", "ON_ERROR_STOP=1", other]
    subprocess.run(restore, input=dump, check=True, capture_output=True)

    with opened(other, namespace) as restored, psycopg.connect(other, autocommit=True) as admin:
        assert seen(restored).state is State.COMPLETED
        assert one(admin, "SELECT number FROM public.orders") == 7


def test_closing_does_not_wait_for_a_server_that_does_not_answer(url: str) -> None:
    asked, answer = threading.Event(), threading.Event()

    def check(connection: object, *, migrate: bool) -> None:  # noqa: ARG001
        asked.set()
        answer.wait(10)

    opening = connections.Connections(Address.parse(url), check=check)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(opening.fetch, b"SELECT 1", ())
        assert asked.wait(10)

        opening.close()

        assert not waiting.done()
        answer.set()
        assert waiting.result() == [(1,)]
    opening.close()


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
            lambda: store.record(leases[0], step=("one", b"done")),
            lambda: complete(store, leases[0]),
        ]
        leases: list[Lease] = []
        on_disk = []

        for step in steps:
            step()
            on_disk.append(one(admin, "SELECT pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()"))

    assert on_disk == [flushed] * 4


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
