"""Servers for the stores, and a database to look into beside the store in it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from oncelery.testing import FakeClock
from oncelery.testing.servers import PostgresServer
from stores.postgres_stores import Connection
from stores.redis_stores import AnyServer


@pytest.fixture(params=["redis7", "valkey"])
def server(request: pytest.FixtureRequest) -> AnyServer:
    """Give each server for the Redis store in turn, which all tests share."""
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


@pytest.fixture(params=["private_redis7", "private_valkey"])
def private_server(request: pytest.FixtureRequest) -> AnyServer:
    """Give each server for the Redis store in turn, for this test alone."""
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def url(postgres: PostgresServer) -> str:
    return postgres.create_database()


@pytest.fixture
def namespace() -> str:
    return f"ledger_{uuid.uuid4().hex}"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def connection(url: str, namespace: str) -> Iterator[Connection]:
    """Give a connection of the caller's, with the ledger's schema as its own."""
    with psycopg.connect(url) as connection:
        connection.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(namespace)))
        connection.commit()
        yield connection
        connection.rollback()
