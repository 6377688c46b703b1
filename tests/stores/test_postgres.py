from __future__ import annotations

import functools
import uuid

import pytest

from oncelery.stores import open_store
from oncelery.testing.conformance import Opener, StoreConformance
from oncelery.testing.servers import PostgresServer


class TestPostgresStore(StoreConformance):
    @pytest.fixture
    def opener(self, postgres: PostgresServer) -> Opener:
        return functools.partial(open_store, postgres.url, namespace=f"test_{uuid.uuid4().hex}")
