from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import amqp
import psutil
import pytest
from kombu import Connection, Queue

from oncelery.embedded import ServerNotFoundError
from oncelery.embedded.process import LOOPBACK, eventually
from oncelery.testing.servers import RabbitMQServer

#: Longer than anything here takes on a busy machine; reached only by a test that fails.
SOON = 30.0


def publish(url: str, text: str) -> None:
    """Publish and return when the server has confirmed that it keeps the message."""
    with Connection(url, transport_options={"confirm_publish": True}) as connection:
        Queue("letters", channel=connection.channel()).declare()
        connection.Producer().publish(text, routing_key="letters", serializer="raw", delivery_mode=2)


def read(url: str) -> str | None:
    with Connection(url) as connection:
        queue = Queue("letters", channel=connection.channel())
        queue.declare()
        letter = queue.get(no_ack=True)
        return None if letter is None else str(letter.body)


def is_written(name: bytes, folder: Path) -> bool:
    """Whether RabbitMQ has written of a queue where it looks when it starts."""
    return any(name in log.read_bytes() for log in folder.rglob("LATEST.LOG"))


def is_removed(folder: Path) -> bool:
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((LOOPBACK, port)) == 0


def test_every_virtual_host_is_fresh_and_empty(rabbitmq: RabbitMQServer) -> None:
    publish(rabbitmq.create_vhost(), "for another")

    assert read(rabbitmq.create_vhost()) is None


def test_all_that_rabbitmq_starts_listens_on_loopback_only(rabbitmq: RabbitMQServer) -> None:
    listening = {
        connection.laddr.ip
        for connection in psutil.Process(rabbitmq.pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }

    assert listening == {LOOPBACK}


def test_a_paused_rabbitmq_greets_nobody_until_it_is_resumed(rabbitmq: RabbitMQServer) -> None:
    connection = amqp.Connection(f"{LOOPBACK}:{rabbitmq.port}", connect_timeout=0.2, read_timeout=0.2)
    rabbitmq.pause()
    try:
        with pytest.raises(TimeoutError):
            connection.connect()
    finally:
        rabbitmq.resume()

    publish(vhost := rabbitmq.create_vhost(), "hello")
    assert read(vhost) == "hello"


# Two facts in one test, because a server of one's own takes seconds to start.
def test_a_killed_rabbitmq_keeps_what_it_confirmed_and_a_stopped_one_leaves_nothing_behind(
    private_rabbitmq: RabbitMQServer,
) -> None:
    ports = [private_rabbitmq.port, private_rabbitmq.mapper.port]
    vhost = private_rabbitmq.create_vhost()
    publish(vhost, "kept")
    # It confirms messages; of what it knows of queues it does not say when it is on disk.
    assert eventually(lambda: is_written(b"letters", private_rabbitmq.folder), SOON)

    private_rabbitmq.kill()
    private_rabbitmq.restart()

    assert eventually(lambda: read(vhost) == "kept", SOON)

    private_rabbitmq.stop()

    assert not any(is_listening(port) for port in ports)
    assert not private_rabbitmq.folder.exists()


@pytest.mark.usefixtures("rabbitmq")  # which skips where there is none
def test_a_consumer_that_never_acknowledges_loses_its_channel_after_the_time_out_that_was_chosen() -> None:
    def drain_for_ever(connection: Connection) -> None:
        while True:
            connection.drain_events(timeout=SOON)

    with RabbitMQServer(options={"consumer_timeout": "1000"}) as server, Connection(server.url) as connection:
        publish(server.url, "unread")
        connection.Consumer([Queue("letters")], on_message=lambda _: None).consume()

        with pytest.raises(amqp.PreconditionFailed, match="delivery acknowledgement"):
            drain_for_ever(connection)


@pytest.mark.usefixtures("rabbitmq")  # which skips where there is none
def test_rabbitmq_and_its_port_mapper_end_when_their_parent_is_killed() -> None:
    program = """if True:
        import sys
        from oncelery.testing.servers import RabbitMQServer
        server = RabbitMQServer().start()
        print(server.port, server.mapper.port, server.folder, flush=True)
        sys.stdin.read()
    """
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        *ports, folder = parent.stdout.readline().split()
        assert all(is_listening(int(port)) for port in ports)

        parent.kill()

        assert eventually(lambda: not any(is_listening(int(port)) for port in ports), SOON)
    # It has stopped listening, and may still be writing.
    assert eventually(lambda: is_removed(Path(folder)), SOON)


def test_without_rabbitmq_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")

    with pytest.raises(ServerNotFoundError, match="apt-get install rabbitmq-server"):
        RabbitMQServer()
