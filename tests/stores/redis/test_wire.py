from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from threading import Thread

import pytest
from redis import exceptions as driver

from oncelery.stores.redis.wire import CHUNK, Wire

#: What a server may send, and how it is read.
REPLIES: dict[bytes, object] = {
    b"$5\r\nhello\r\n": b"hello",
    b"$0\r\n\r\n": b"",
    b"$6\r\na\r\nb\r\n\r\n": b"a\r\nb\r\n",
    b":-12\r\n": -12,
    b"+OK\r\n": b"OK",
    b"_\r\n": None,
    b"=8\r\ntxt:role\r\n": b"role",
    b"*0\r\n": [],
    b"*3\r\n$1\r\na\r\n:1\r\n*2\r\n_\r\n$0\r\n\r\n": [b"a", 1, [None, b""]],
    b"%1\r\n$4\r\nname\r\n$5\r\nvalue\r\n": {b"name": b"value"},
    b">2\r\n+moving\r\n:1\r\n$5\r\nhello\r\n": b"hello",
    b"$%d\r\n%b\r\n" % (3 * CHUNK, bytes(3 * CHUNK)): bytes(3 * CHUNK),
}


class Greeted:
    """A connection whose server is this test."""

    handshake_metadata = None

    def __init__(self, end: socket.socket) -> None:
        self._sock = end

    def connect(self) -> None:
        self._sock.settimeout(0.2)

    def disconnect(self) -> None:
        self._sock.close()


class Ends:
    """A wire, and the server's end of it."""

    def __init__(self) -> None:
        ours, self.server = socket.socketpair()
        self.wire = Wire(Greeted(ours))

    def close(self) -> None:
        self.wire.close()
        self.server.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    with closing(Ends()) as both:
        yield both


@pytest.mark.parametrize(("said", "reply"), REPLIES.items(), ids=lambda told: repr(told)[:20])
def test_a_reply_is_read_as_what_it_says(ends: Ends, said: bytes, reply: object) -> None:
    # Longer ones do not fit into the wire.
    saying = Thread(target=ends.server.sendall, args=[said])
    saying.start()

    assert ends.wire.read() == reply
    saying.join()


@pytest.mark.parametrize(("said", "reply"), list(REPLIES.items())[:-1], ids=lambda told: repr(told)[:20])
def test_a_reply_may_come_byte_by_byte(ends: Ends, said: bytes, reply: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncelery.stores.redis.wire.CHUNK", 1)

    ends.server.sendall(said)

    assert ends.wire.read() == reply


def test_replies_that_come_together_are_read_one_after_the_other(ends: Ends) -> None:
    ends.server.sendall(b"$1\r\na\r\n:2\r\n+three\r\n")

    assert [ends.wire.read() for _ in range(3)] == [b"a", 2, b"three"]


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b"-NOSCRIPT No matching script", driver.NoScriptError),
        (b"-READONLY You can't write against a read only replica.", driver.ReadOnlyError),
        (b"-LOADING the dataset", driver.BusyLoadingError),
        (b"-NOPERM this user may not", driver.NoPermissionError),
        (b"-NOAUTH Authentication required.", driver.AuthenticationError),
        (b"-MOVED 3999 127.0.0.1:6381", driver.ResponseError),
        (b"-OOM command not allowed", driver.ResponseError),
        (b"-ERR \xff", driver.ResponseError),
    ],
    ids=lambda told: repr(told)[:12],
)
def test_an_error_is_raised_with_all_its_words_and_the_next_reply_is_read(
    ends: Ends, said: bytes, error: type[Exception]
) -> None:
    ends.server.sendall(said + b"\r\n:1\r\n")

    with pytest.raises(error) as raised:
        ends.wire.read()

    assert type(raised.value) is error
    assert str(raised.value) == said[1:].decode(errors="replace")
    assert ends.wire.read() == 1


def test_a_server_that_hangs_up_is_missed(ends: Ends) -> None:
    ends.server.sendall(b"$5\r\nhel")
    ends.server.close()

    with pytest.raises(driver.ConnectionError, match="closed the connection"):
        ends.wire.read()


def test_a_reply_that_does_not_come_in_time_is_not_waited_for(ends: Ends) -> None:
    with pytest.raises((BlockingIOError, TimeoutError)):
        ends.wire.read()


def test_what_is_no_reply_is_shown(ends: Ends) -> None:
    ends.server.sendall(b"HTTP/1.1 400 Bad Request\r\n")

    with pytest.raises(driver.InvalidResponse, match="HTTP"):
        ends.wire.read()
