"""The sessions of a process: where they lead, what holds in them, and who waits for whom."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from oncelery.answers import Renewed, Settled
from oncelery.embedded.process import eventually
from oncelery.job import State
from oncelery.settlement import Complete
from oncelery.stores.postgres.address import Address
from oncelery.testing.conformance.acts import complete, running, work
from oncelery.testing.servers import PostgresServer
from stores.postgres.stores import PATIENCE_SECONDS, one, opened

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


def test_a_renewal_waits_behind_no_verb_that_waits_for_a_lock(postgres: PostgresServer, namespace: str) -> None:
    url = postgres.create_database()
    with (
        opened(url, namespace, options="connections=1") as store,
        psycopg.connect(url) as rival,
        psycopg.connect(url, autocommit=True) as admin,
        ThreadPoolExecutor() as threads,
    ):
        lease, held = running(store, work("one", "one")), running(store, work("two", "two"))
        lock = sql.SQL("SELECT FROM {}.jobs WHERE id = 'two' FOR UPDATE").format(sql.Identifier(namespace))
        rival.execute(lock)
        settling = threads.submit(complete, store, held)
        assert eventually(lambda: one(admin, WAITING) == 1, PATIENCE_SECONDS)

        (renewed,) = store.renew([lease])

        assert isinstance(renewed, Renewed)
        assert not settling.done()
        rival.rollback()
        settling.result()


def test_a_session_that_the_server_ended_for_its_idleness_is_replaced(postgres: PostgresServer, namespace: str) -> None:
    url = postgres.create_database()
    idle = "options=-c%20idle_session_timeout%3D50"
    with opened(url, namespace, options=idle) as store, psycopg.connect(url, autocommit=True) as admin:
        lease = running(store)
        sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'oncelery' AND datname = %s"
        assert eventually(lambda: one(admin, sessions, admin.info.dbname) == 0, PATIENCE_SECONDS)

        assert store.settle(lease, Complete(result=b"paid")) == Settled(State.COMPLETED)


def test_verbs_do_not_have_the_isolation_that_is_the_databases_default(
    postgres: PostgresServer, namespace: str
) -> None:
    url = postgres.create_database()
    with psycopg.connect(url, autocommit=True) as admin:
        name = sql.Identifier(admin.info.dbname)
        admin.execute(sql.SQL("ALTER DATABASE {} SET default_transaction_isolation = 'serializable'").format(name))

    with opened(url, namespace) as store, store._connections.connect() as connection:  # noqa: SLF001 - as a verb has it
        assert one(connection, "SHOW transaction_isolation") == "read committed"


@pytest.mark.parametrize("url", ["postgresql:///shop?host=/var/run/postgresql", "postgresql:///shop"])
def test_a_url_may_lead_to_a_socket(url: str) -> None:
    with_ours = f"{url}{'&' if '?' in url else '?'}connections=2"

    assert conninfo_to_dict(Address.parse(with_ours).conninfo) == conninfo_to_dict(url)
