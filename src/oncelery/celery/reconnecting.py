"""A worker outlives its broker: one that goes away, and one that falls silent."""

from __future__ import annotations

import logging
import os
import socket
import struct
from typing import Any

from amqp.exceptions import ResourceLocked
from celery import bootsteps
from celery.worker.consumer.connection import Connection

from oncelery.celery.recommended import SILENCE

_logger = logging.getLogger("oncelery")

#: Celery's own way to raise the prefetch count again after a reconnect.
RESTORE = "_restore_prefetch_count_after_connection_restart"


class Reconnecting(bootsteps.StartStopStep):
    """The worker's step: whatever becomes of the connection to the broker, the worker comes back."""

    requires = (Connection,)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        # RabbitMQ may not know yet that the last connection is gone, and keeps the worker's own queue for it; Celery
        # would take that for a reason to end the worker.
        consumer.connection_errors = (*consumer.connection_errors, ResourceLocked)

    def start(self, consumer: Any) -> None:
        """Be ready for the end of this connection."""
        _restore_prefetch_on_the_loop(consumer)
        kind = consumer.connection.transport.driver_type
        if kind == "redis":
            _close_and_remember(consumer.connection)
        elif kind == "amqp":
            _bound_reads(consumer.connection)


def _restore_prefetch_on_the_loop(consumer: Any) -> None:
    """Have `basic_qos` called by the loop alone.

    Celery calls it where a message is acknowledged. On a pool of threads that is beside the loop, both then read from
    one connection, and one of them waits for ever for an answer that the other has read.
    """
    restore = getattr(consumer, RESTORE, None)
    if restore and RESTORE not in vars(consumer):
        setattr(consumer, RESTORE, lambda *args: consumer.call_soon(restore, *args))


def _bound_reads(connection: Any) -> None:
    """End a wait for a broker that says nothing: the loop that waits cannot see that heartbeats are missing."""
    if os.name != "posix" or connection.transport_options.get("read_timeout") is not None:
        return
    seconds = struct.pack("ll", int(SILENCE.total_seconds()), 0)
    connection.connection.transport.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds)


def _close_and_remember(connection: Any) -> None:
    """Let no connection to Redis end the worker when it is closed.

    Celery 5.7 lets kombu forget the server before it closes the connection. A channel that holds unacknowledged
    messages then asks it for the address (`conninfo.hostname`) to give them back, and later to acknowledge them, and
    raises AttributeError. To be deleted with the last version of Celery that does so.
    """
    transport, close = connection.transport, connection.close

    def close_and_remember() -> None:
        try:
            close()
        except AttributeError as error:
            # Nothing is given back, and nothing is lost: what is not acknowledged comes again.
            _logger.debug("a lost connection to the broker was not closed, only let go: %r", error)
        transport.client = connection

    connection.close = close_and_remember
