"""A database, a store in it, and a connection to look into it beside the store."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from oncelery.stores.postgres import PostgresStore
from oncelery.testing import FakeClock
from oncelery.testing.servers import PostgresServer
from stores.postgres.stores import Connection, opened


@pytest.fixture(scope="module")
def url(postgres: PostgresServer) -> str:
    return postgres.create_database()


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> Iterator[psycopg.Connection]:
    """Give a connection to a database of its own, which commits each statement."""
    with psycopg.connect(postgres.create_database(), autocommit=True) as connection:
        yield connection


@pytest.fixture
def namespace() -> str:
    return f"ledger_{uuid.uuid4().hex}"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(url: str, namespace: str) -> Iterator[PostgresStore]:
    """Give an empty ledger on the server's clock."""
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
