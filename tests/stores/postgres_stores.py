"""Stores in PostgreSQL, and what a test asks of their database and of the line to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

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
