"""Databases with a table of tickets, and the ways to it; databases with the books of a shop, and with its ledger."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from faults.brokers import fresh_database
from guarded.books import Books
from guarded.hand import Hand
from psycopg.rows import dict_row
from sqlalchemy import orm

from oncelery.ledger import Ledger
from oncelery.sql import batches, inbox
from oncelery.stores import open_store
from oncelery.testing.servers import PostgresServer
from sql.shop import Shop
from sql.tickets import Desk, metadata, tickets


@pytest.fixture(scope="module")
def postgres_engine(postgres: PostgresServer) -> Iterator[sa.Engine]:
    engine = sa.create_engine(postgres.create_database().replace("postgresql:", "postgresql+psycopg:"))
    metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def sqlite_engine() -> Iterator[sa.Engine]:
    engine = sa.create_engine("sqlite://")
    metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def connection(postgres_engine: sa.Engine) -> Iterator[sa.Connection]:
    """Give a connection whose work is rolled back at the end."""
    with postgres_engine.connect() as connection:
        yield connection


@pytest.fixture
def raw(connection: sa.Connection) -> psycopg.Connection[Any]:
    """Give the same connection as psycopg knows it."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    return driver


WAYS: dict[str, Callable[[sa.Connection], Any]] = {
    "psycopg, as parameters": lambda connection: connection.connection.driver_connection,
    "psycopg, by copy": lambda connection: connection.connection.driver_connection,
    "a cursor": lambda connection: connection.connection.driver_connection.cursor(row_factory=dict_row),  # type: ignore[union-attr]
    "SQLAlchemy's connection": lambda connection: connection,
    "SQLAlchemy's session": orm.Session,
    "SQLAlchemy's session, scoped": lambda connection: orm.scoped_session(orm.sessionmaker(connection)),
    "SQLAlchemy's table": lambda connection: connection,
    "SQLite": lambda connection: connection,
    "SQLite, SQLAlchemy's table": orm.Session,
}


@pytest.fixture(params=WAYS)
def desk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """Give each way to a table of tickets that is empty."""
    way = request.param
    if "copy" in way:
        monkeypatch.setattr(batches, "FEW_VALUES", 0)
    engine = request.getfixturevalue("sqlite_engine" if "SQLite" in way else "postgres_engine")
    with engine.connect() as connection:
        if "SQL" not in way:
            connection.begin()  # SQLAlchemy does not see what psycopg does, and would roll nothing back
        table = tickets if "table" in way else "tickets"
        yield Desk(target=WAYS[way](connection), connection=connection, table=table)


@pytest.fixture(autouse=True)
def _no_row_is_pruned_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "PRUNE_EVERY", math.inf)


@pytest.fixture(scope="module")
def databases(postgres: PostgresServer) -> dict[str, str]:
    """Give two databases that the tests of this module share, each with a ledger."""
    return {"same database": postgres.create_database(), "another database": postgres.create_database()}


@pytest.fixture(params=["same database", "redis"])
def shop(request: pytest.FixtureRequest, hand: Hand, databases: dict[str, str]) -> Iterator[Shop]:
    yield from shop_of(request, hand, databases, request.param)


@pytest.fixture(params=["redis", "another database"])
def apart(request: pytest.FixtureRequest, hand: Hand, databases: dict[str, str]) -> Iterator[Shop]:
    """Give the shop whose ledger is not in the books' database."""
    yield from shop_of(request, hand, databases, request.param)


def shop_of(request: pytest.FixtureRequest, hand: Hand, databases: dict[str, str], where: str) -> Iterator[Shop]:
    books = Books(databases["same database"])
    books.open()
    inbox.create(books.url)
    url = databases[where] if where in databases else fresh_database(request.getfixturevalue("valkey"))
    ledger = Ledger(open_store(url, clock=hand.clock))
    ledger.get("-")  # its tables are there, also after a test that does not use it
    yield Shop(hand, books, ledger, url)
    ledger.store.close()
    books.close()
    if where in databases:
        with psycopg.connect(url) as connection:
            connection.execute("TRUNCATE oncelery.jobs CASCADE")
