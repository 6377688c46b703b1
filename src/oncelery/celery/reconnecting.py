"""A worker outlives its broker: a fault of Celery 5.7 with Redis, which else ends it, is mended."""

from __future__ import annotations

import logging
from typing import Any

from celery import bootsteps
from celery.worker.consumer.connection import Connection

_logger = logging.getLogger("oncelery")


class Reconnecting(bootsteps.StartStopStep):
    """The worker's step: lets a lost connection be closed as far as it can be, and be remembered by what it has left.

    When the broker is gone, Celery lets kombu forget where that was, and then closes the connection. A channel that
    still holds messages asks for it then, to give them back, and later, to acknowledge them; and raises.
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
