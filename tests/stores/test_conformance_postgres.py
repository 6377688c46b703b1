from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import ledgers
import psycopg
import pytest

from oncelery.stores import open_store
from oncelery.testing.conformance import Opener, StoreConformance
from oncelery.testing.servers import PostgresServer

NAMESPACE = "conformance"


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres.create_database(), autocommit=True) as connection:
        yield connection


class TestPostgresStore(StoreConformance):
    @pytest.fixture
    def opener(self, database: psycopg.Connection) -> Opener:
        ledgers.empty(database, NAMESPACE)
        return functools.partial(open_store, ledgers.url_of(database), namespace=NAMESPACE)

    @pytest.fixture
    def connect(self, database: psycopg.Connection) -> Callable[[], psycopg.Connection]:
        return functools.partial(psycopg.connect, ledgers.url_of(database))
