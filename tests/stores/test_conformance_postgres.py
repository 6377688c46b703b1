from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg import sql

from oncelery.stores import open_store
from oncelery.testing.conformance import Opener, StoreConformance
from oncelery.testing.servers import PostgresServer

#: Where the ledger lives. It is made once and emptied for each test, which is faster than to make one each time.
NAMESPACE = "conformance"


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres.create_database(), autocommit=True) as connection:
        yield connection


class TestPostgresStore(StoreConformance):
    @pytest.fixture
    def url(self, database: psycopg.Connection) -> str:
        info = database.info
        return f"postgresql://{info.user}:{info.password}@{info.host}:{info.port}/{info.dbname}"

    @pytest.fixture
    def opener(self, database: psycopg.Connection, url: str) -> Opener:
        tables = database.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = %s AND tablename <> 'version'", (NAMESPACE,)
        ).fetchall()
        if tables:
            names = sql.SQL(", ").join(sql.Identifier(NAMESPACE, table) for (table,) in tables)
            database.execute(sql.SQL("TRUNCATE {}").format(names))
        return functools.partial(open_store, url, namespace=NAMESPACE)

    @pytest.fixture
    def connect(self, url: str) -> Callable[[], psycopg.Connection]:
        return functools.partial(psycopg.connect, url)
