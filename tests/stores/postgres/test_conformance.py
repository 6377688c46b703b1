from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import psycopg
import pytest

from oncelery.stores import open_store
from oncelery.stores.base import Store
from oncelery.testing import FakeClock
from oncelery.testing.conformance import Opener, StoreConformance
from stores.postgres.stores import empty, url_of

NAMESPACE = "conformance"


@pytest.fixture(scope="module")
def open_clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(scope="module")
def open_ledger(database: psycopg.Connection, open_clock: FakeClock) -> Iterator[Store]:
    store = open_store(url_of(database), namespace=NAMESPACE, clock=open_clock)
    yield store
    store.close()


class TestPostgresStore(StoreConformance):
    @pytest.fixture
    def opener(self, database: psycopg.Connection) -> Opener:
        empty(database, NAMESPACE)
        return functools.partial(open_store, url_of(database), namespace=NAMESPACE)

    @pytest.fixture
    def clock(self, open_clock: FakeClock) -> FakeClock:
        open_clock.now = FakeClock().now
        return open_clock

    @pytest.fixture
    def store(self, opener: Opener, clock: FakeClock, open_ledger: Store) -> Store:  # noqa: ARG002 - both set back
        """Give one store to all sentences: every new session of the server would compile the functions anew."""
        return open_ledger

    @pytest.fixture
    def connect(self, database: psycopg.Connection) -> Callable[[], psycopg.Connection]:
        return functools.partial(psycopg.connect, url_of(database))
