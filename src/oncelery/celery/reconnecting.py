"""A worker outlives its Redis broker, also with Celery 5.7."""

from __future__ import annotations

import logging
from typing import Any

from celery import bootsteps
from celery.worker.consumer.connection import Connection

_logger = logging.getLogger("oncelery")


class Reconnecting(bootsteps.StartStopStep):
    """The worker's step: closing a lost connection to Redis never ends the worker.

    Celery 5.7 lets kombu forget the server before it closes the connection. A channel that holds unacknowledged
    messages then asks it for the address (`conninfo.hostname`) to give them back, and later to acknowledge them, and
    raises AttributeError. To be deleted with the last version of Celery that does so.
    """

    requires = (Connection,)

    def start(self, consumer: Any) -> None:
        """Be ready for the end of this connection."""
        connection = consumer.connection
        transport, close = connection.transport, connection.close
        if transport.driver_type != "redis":
            return

        def close_and_remember() -> None:
            try:
                close()
            except AttributeError as error:
                # Nothing is given back, and nothing is lost: what is not acknowledged comes again.
                _logger.debug("a lost connection to the broker was not closed, only let go: %r", error)
            transport.client = connection

        connection.close = close_and_remember
