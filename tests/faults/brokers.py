"""Broker: one of Celery's brokers, with nobody else's messages in it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from celery import Celery
from redis import Redis

from oncelery.embedded.server import RedisProcess
from oncelery.testing.servers import RabbitMQServer

#: The databases that a server has unless told otherwise, without 0, which tests share.
_databases = itertools.cycle(range(1, 16))


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """Where one test's messages go. Change it with `replace(broker, ...)`, such as to a URL through a proxy."""

    url: str
    #: What serves it, to be killed and paused when it is the test's own.
    server: RedisProcess | RabbitMQServer
    #: Celery's `broker_transport_options`.
    transport_options: Mapping[str, object] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """Which it is: `redis` or `amqp`."""
        return self.url.partition(":")[0]

    @property
    def settings(self) -> dict[str, object]:
        """What a Celery app needs in its configuration to use this broker."""
        return {"broker_url": self.url, "broker_transport_options": dict(self.transport_options)}

    @contextmanager
    def publisher(self) -> Iterator[Celery]:
        """Give an app that knows no tasks, to send them by name."""
        with Celery("publisher", set_as_current=False) as app:
            app.conf.update(self.settings)
            yield app


def broker_on(server: RedisProcess | RabbitMQServer) -> Broker:
    """Give an empty broker on the server: a database or a virtual host of its own."""
    url = fresh_database(server) if isinstance(server, RedisProcess) else server.create_vhost()
    return Broker(url=url, server=server)


def fresh_database(server: RedisProcess) -> str:
    """Empty one of the server's databases and give its URL; a test that takes no more than 15 has each for itself."""
    url = f"{server.url.removesuffix('/0')}/{next(_databases)}"
    with Redis.from_url(url) as client:
        client.flushdb()
    return url
