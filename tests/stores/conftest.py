"""Servers for the tests of the stores."""

from __future__ import annotations

import pytest

from stores.redis_stores import AnyServer


@pytest.fixture(params=["redis7", "valkey"])
def server(request: pytest.FixtureRequest) -> AnyServer:
    """Give each server for the Redis store in turn, which all tests share."""
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


@pytest.fixture(params=["private_redis7", "private_valkey"])
def private_server(request: pytest.FixtureRequest) -> AnyServer:
    """Give each server for the Redis store in turn, for this test alone."""
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]
