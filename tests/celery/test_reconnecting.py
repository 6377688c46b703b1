"""What a worker does to its connection, so that it comes back whatever becomes of its broker."""

from __future__ import annotations

import socket
import struct
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from amqp.exceptions import ResourceLocked
from celery import Celery
from guarded.world import SOON

from oncelery.celery.recommended import SILENCE
from oncelery.celery.reconnecting import RESTORE, Reconnecting
from oncelery.testing.servers import RabbitMQServer


class Consumer(SimpleNamespace):
    """A worker's consumer, as far as the step knows it; what it is to do on its loop is kept."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection=connection, connection_errors=(OSError,), soon=[], restored_by=[])

    def call_soon(self, act: Any, *args: Any) -> None:
        self.soon.append((act, args))


def restore(consumer: Consumer, *_: object) -> None:
    consumer.restored_by.append(threading.current_thread())


setattr(Consumer, RESTORE, restore)


@pytest.fixture
def connection(rabbitmq: RabbitMQServer) -> Any:
    with (
        Celery("shop", broker=rabbitmq.create_vhost(), set_as_current=False) as app,
        app.connection_for_read() as connection,
    ):
        connection.connect()
        yield connection


def test_a_worker_does_not_listen_to_a_silent_rabbitmq_for_ever(connection: Any) -> None:
    consumer = Consumer(connection)
    Reconnecting(consumer).start(consumer)

    assert consumer.connection_errors == (OSError, ResourceLocked)
    read_timeout = connection.connection.transport.sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16)
    assert struct.unpack("ll", read_timeout)[0] == SILENCE.total_seconds()


def test_the_prefetch_count_is_restored_by_the_loop_and_by_no_thread_of_the_pool(connection: Any) -> None:
    consumer = Consumer(connection)
    for _ in range(2):
        Reconnecting(consumer).start(consumer)

    acknowledging = threading.Thread(target=getattr(consumer, RESTORE), args=("acknowledged",))
    acknowledging.start()
    acknowledging.join(SOON)
    assert consumer.restored_by == []
    ((act, args),) = consumer.soon
    act(*args)

    assert consumer.restored_by == [threading.current_thread()]
