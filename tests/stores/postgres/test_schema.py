from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.resources.abc import Traversable

import psycopg
import pytest
from psycopg import sql

from oncelery.embedded.process import eventually
from oncelery.errors import ConfigurationError
from oncelery.job import PAST_KEPT, Cause, Failure, OnDuplicate, Query, State
from oncelery.settlement import Release
from oncelery.stores.base import PUBLISH_GRACE, SLOW_CHECK
from oncelery.stores.postgres import PostgresStore, connections, schema
from oncelery.testing.conformance.acts import JOB, KEY, accepted, complete, completed, running, seen, work
from oncelery.testing.proxy import FaultProxy
from oncelery.testing.servers import PostgresServer
from stores.postgres.stores import MANY, PATIENCE_SECONDS, Connection, counter, one, opened

#: What servers out there have, noted with each release: the digest of the functions of a revision, and of a migration.
RELEASED_FUNCTIONS: dict[int, str] = {}
RELEASED_MIGRATIONS: list[str] = []


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
    assert store.find(Query(task=text, scope=text)).items == (job.summary(),)


def test_text_that_looks_escaped_is_not_the_text_it_looks_like(store: PostgresStore) -> None:
    for number, key in enumerate(["a\0", "a\\0", "a\\\\0"]):
        accepted(store, f"job {number}", key)


def test_every_byte_of_a_body_and_a_result_is_kept(store: PostgresStore) -> None:
    every_byte = bytes(range(256)) * 1000

    accepted(store, body=every_byte)
    body = seen(store).body
    completed(store, result=every_byte)

    assert (body, seen(store).result) == (every_byte, every_byte)
