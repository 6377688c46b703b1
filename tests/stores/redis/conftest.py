"""Servers for the Redis store, and a store on each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oncelery.stores.redis import RedisStore
from stores.redis.stores import AnyServer, opened


@pytest.fixture(params=["redis6", "redis7", "valkey"])
def server(request: pytest.FixtureRequest) -> AnyServer:
    """Give each server in turn, which all tests share."""
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


@pytest.fixture(params=["private_redis6", "private_redis7", "private_valkey"])
def private_server(request: pytest.FixtureRequest) -> AnyServer:
    """Give each server in turn, for this test alone."""
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


@pytest.fixture
def store(server: AnyServer) -> Iterator[RedisStore]:
    """Give an empty ledger on the server's clock."""
    with opened(server) as store:
        yield store
