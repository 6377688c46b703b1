"""Stores on a server that speaks Redis's protocol, and the ways to the server itself."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from redis import Redis

from oncelery.embedded.process import eventually
from oncelery.job import Durability, Lease
from oncelery.stores.base import Clock
from oncelery.stores.redis import RedisStore
from oncelery.testing.servers import RedisServer, ValkeyServer

SAFE = Durability.SAFE

AnyServer = RedisServer | ValkeyServer

NO_LEASE = Lease(
    job_id="none",
    key="none",
    task="none",
    scope="",
    holder="none",
    fence=1,
    attempt=1,
    crashes=0,
    until=datetime.now(UTC),
    duration=timedelta(seconds=30),
)


@contextmanager
def opened(
    server: AnyServer, options: str = "", *, namespace: str = "", clock: Clock | None = None
) -> Iterator[RedisStore]:
    store = RedisStore(f"{server.url}?{options}", namespace=namespace or uuid.uuid4().hex, clock=clock)
    yield store
    store.close()


@contextmanager
def client_of(server: AnyServer) -> Iterator[Redis]:
    with Redis.from_url(server.url) as client:
        yield client


def follow(replica: AnyServer, primary: AnyServer) -> None:
    """Make one server a replica of the other, and wait until it has what is written."""
    with client_of(replica) as one, client_of(primary) as other:
        one.replicaof("127.0.0.1", primary.port)
        assert eventually(lambda: other.incr("written") > 0 and other.wait(1, 100) == 1, 30)
