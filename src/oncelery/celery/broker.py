"""The broker, for a process that serves others: no wait for it is long, and none begins while it is silent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import signature
from time import monotonic
from typing import Any, Final

from celery import Celery
from kombu import Connection, Producer
from kombu.exceptions import OperationalError
from kombu.pools import ProducerPool

from oncelery.breaker import Breaker

#: How long the broker may take to be connected, and to take a message, in seconds.
SECONDS: Final = 2.0

#: What bounds each wait for a reply, by what kombu calls the kind of a broker; others bound it by themselves.
BOUNDS: Final[dict[str, dict[str, object]]] = {
    "redis": {"socket_timeout": SECONDS, "socket_connect_timeout": SECONDS},
    "amqp": {"read_timeout": SECONDS, "write_timeout": SECONDS},
}

#: What bounds the wait for RabbitMQ's confirmation, where kombu knows it.
CONFIRMED: Final[dict[str, object]] = (
    {"confirm_timeout": SECONDS} if "confirm_timeout" in signature(Producer.publish).parameters else {}
)

#: The most connections of one process.
MOST: Final = 32

_bounded: ContextVar[bool] = ContextVar("oncelery_bounded", default=False)


class PromptProducer(Producer):
    """Sends again what a closed connection has lost, at once; not what a silent broker may have."""

    def publish(self, *args: Any, **options: Any) -> Any:  # noqa: D102 - kombu's own
        started = monotonic()
        connection: Any = self.connection
        options |= CONFIRMED
        try:
            return super().publish(*args, **options | {"retry": False})
        except connection.recoverable_connection_errors:
            # Whatever comes late on it must not be taken for the answer to another message.
            connection.collect()
            if monotonic() - started > SECONDS / 2:
                raise
        self.revive(connection.default_channel)
        return super().publish(*args, **options | {"retry": False})


class Broker:
    """Connections that never wait for long. Celery has its own, which may wait for ever."""

    def __init__(self, app: Celery[Any]) -> None:
        self._app = app
        self._producers: tuple[int, ProducerPool] | None = None
        self.breaker = Breaker(self.connect, name="broker")

    @contextmanager
    def bounded(self) -> Iterator[None]:
        """Send each message of this block in time, or raise OperationalError."""
        token = _bounded.set(True)
        try:
            yield
        finally:
            _bounded.reset(token)

    @property
    def is_bounded(self) -> bool:
        """Whether this code runs in a `bounded` block."""
        return _bounded.get()

    def require(self) -> None:
        """Raise OperationalError if, in a `bounded` block, the broker is known to be silent."""
        if _bounded.get() and (trouble := self.breaker.trouble):
            raise OperationalError(f"the broker does not answer: {trouble}")

    def producer(self) -> Any:
        """Take a producer, to be released after use."""
        self.require()
        # A child of a fork has no part in its parent's connections.
        if self._producers is None or self._producers[0] != os.getpid():
            pool = ProducerPool(self.connection().Pool(MOST), limit=MOST, Producer=PromptProducer)
            self._producers = os.getpid(), pool
        return self._producers[1].acquire(block=True, timeout=SECONDS)

    def connection(self) -> Connection:
        """Return a connection that is not open yet."""
        with self._app.connection_for_write() as usual:
            bounds = BOUNDS.get(usual.transport.driver_type, {})
        return self._app.connection_for_write(connect_timeout=SECONDS, transport_options=bounds)

    def connect(self) -> None:
        """Connect once; raise the error of the transport if that fails or takes too long."""
        with self.connection() as connection:
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=SECONDS)
