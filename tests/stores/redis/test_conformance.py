from __future__ import annotations

import functools
import uuid

import pytest

from oncelery.stores import open_store
from oncelery.testing.conformance import Opener, StoreConformance
from oncelery.testing.servers import RedisServer, ValkeyServer


class TestRedisStoreOnRedis6(StoreConformance):
    @pytest.fixture
    def opener(self, redis6: RedisServer) -> Opener:
        return functools.partial(open_store, redis6.url, namespace=uuid.uuid4().hex)


class TestRedisStoreOnRedis7(StoreConformance):
    @pytest.fixture
    def opener(self, redis7: RedisServer) -> Opener:
        return functools.partial(open_store, redis7.url, namespace=uuid.uuid4().hex)


class TestRedisStoreOnValkey9(StoreConformance):
    @pytest.fixture
    def opener(self, valkey: ValkeyServer) -> Opener:
        return functools.partial(open_store, valkey.url, namespace=uuid.uuid4().hex)
