"""Stores in PostgreSQL, and what a test asks of their database and of the line to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql

from oncelery.stores.base import Clock
from oncelery.stores.postgres import PostgresStore
from oncelery.testing.proxy import FaultProxy, Loss

#: How long to wait for what must happen.
PATIENCE_SECONDS = 60

#: More than any test sends.
MANY = 1_000_000

Connection = psycopg.Connection[tuple[Any, ...]]


@contextmanager
def opened(url: str, namespace: str, *, options: str = "", clock: Clock | None = None) -> Iterator[PostgresStore]:
    store = PostgresStore(f"{url}?{options}", namespace=namespace, clock=clock)
    yield store
    store.close()


def one(connection: Connection, query: str, *values: object) -> Any:  # noqa: ANN401 - whatever is asked for
    row = connection.execute(query.encode(), values).fetchone()
    assert row is not None
    return row[0]


def namespace_of(connection: Connection) -> str:
    return str(one(connection, "SHOW search_path"))


def counter(proxy: FaultProxy, matching: bytes) -> Loss:
    """Count down how often these bytes are sent."""
    return proxy.lose_request(matching, nth=MANY)


def url_of(database: psycopg.Connection) -> str:
    """Tell where a database is, as a store is told."""
    info = database.info
    return f"postgresql://{info.user}:{info.password}@{info.host}:{info.port}/{info.dbname}"


def empty(database: psycopg.Connection, namespace: str) -> None:
    """Take everything out of a ledger, if there is one, which is faster than to make a new one for each test."""
    tables = database.execute(
        "SELECT tablename FROM pg_tables WHERE schemaname = %s AND tablename <> 'version'", (namespace,)
    ).fetchall()
    # Not TRUNCATE: it makes new files for every table and index, which takes fifty times as long.
    for (table,) in tables:
        database.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(namespace, table)))
