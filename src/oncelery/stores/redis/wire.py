"""The wire to a server: commands out, replies in.

redis-py makes the connection, with all that it knows of names, TLS, users and greetings. What is said after that goes
past it: its own readers take a score of calls for each reply, and every task waits for two.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from redis import exceptions as driver

#: How much is read at a time, in bytes.
CHUNK = 1 << 16

#: The errors that are told apart, by the first word of the server's; any other is a ResponseError.
ERRORS: dict[str, type[driver.RedisError]] = {
    "LOADING": driver.BusyLoadingError,
    "NOAUTH": driver.AuthenticationError,
    "NOPERM": driver.NoPermissionError,
    "NOSCRIPT": driver.NoScriptError,
    "READONLY": driver.ReadOnlyError,
}

#: What may be a word of a command.
Word = str | bytes | int


class Connection(Protocol):
    """What we use of a connection of redis-py."""

    #: What the server said when it was greeted.
    handshake_metadata: Any
    _sock: Any

    def connect(self) -> None:
        """Open it and greet the server."""

    def disconnect(self) -> None:
        """Close it."""


class Wire:
    """An open connection. After any error but one that the server has told of, it is of no more use."""

    def __init__(self, connection: Connection) -> None:
        connection.connect()
        self.greeting = connection.handshake_metadata
        self._connection = connection
        plain = connection._sock  # noqa: SLF001 - no other way leads there
        _time_in_kernel(plain)
        #: Send a whole command, or several.
        self.send = plain.sendall
        self._receive = plain.recv
        #: What has come, and how much of it has been read.
        self._come = b""
        self._at = 0

    def read(self) -> Any:  # noqa: ANN401 - whatever the server says
        """Read one reply, and raise it if it is an error."""
        reply = self._next()
        if isinstance(reply, driver.RedisError):
            raise reply
        return reply

    def close(self) -> None:
        """Close the connection."""
        self._connection.disconnect()

    def _next(self) -> Any:  # noqa: ANN401
        line = self._line()
        kind, told = line[:1], line[1:]
        if kind == b"$":
            return self._octets(int(told))
        if read := _LINES.get(kind):
            return read(told)
        if kind == b"*":
            return [self._next() for _ in range(int(told))]
        if kind == b"%":
            return {self._next(): self._next() for _ in range(int(told))}
        if kind == b"=":
            # Text, whose form it tells first, as in "txt:".
            return self._octets(int(told))[4:]
        if kind == b">":
            # Nothing that we have asked for, such as a hosted server's word that it is about to move.
            for _ in range(int(told)):
                self._next()
            return self._next()
        raise driver.InvalidResponse(f"no reply that we know of: {line[:80]!r}")

    def _line(self) -> bytes:
        while (end := self._come.find(b"\r\n", self._at)) < 0:
            self._wait()
        line = self._come[self._at : end]
        self._at = end + 2
        return line

    def _octets(self, length: int) -> bytes:
        while len(self._come) < self._at + length + 2:
            self._wait()
        octets = self._come[self._at : self._at + length]
        self._at += length + 2
        return octets

    def _wait(self) -> None:
        more = self._receive(CHUNK)
        if not more:
            raise driver.ConnectionError("the server has closed the connection")
        self._come = self._come[self._at :] + more
        self._at = 0


def words(values: Sequence[Word]) -> bytes:
    """Write words of a command as the server reads them."""
    written = []
    for value in values:
        octets = value if isinstance(value, bytes) else _octets(value)
        written.append(b"$%d\r\n%b\r\n" % (len(octets), octets))
    return b"".join(written)


def _octets(value: str | int) -> bytes:
    return value.encode(errors="backslashreplace") if isinstance(value, str) else b"%d" % value


def command(*values: Word) -> bytes:
    """Write a whole command as the server reads it."""
    return b"*%d\r\n%b" % (len(values), words(values))


def _error(told: bytes) -> driver.RedisError:
    text = told.decode(errors="replace")
    return ERRORS.get(text.partition(" ")[0], driver.ResponseError)(text)


#: How replies of one line are read.
_LINES: dict[bytes, Callable[[bytes], Any]] = {b":": int, b"+": bytes, b"-": _error, b"_": lambda _: None}


def _time_in_kernel(plain: Any) -> None:  # noqa: ANN401 - a socket of whoever made it
    """Have the kernel time a plain socket, where Python would ask it first, in a call of its own, each time."""
    # Not one of TLS, or one that lets other greenlets run while it waits.
    if os.name != "posix" or type(plain).__module__ != socket.__name__ or not plain.gettimeout():
        return
    seconds, fraction = divmod(plain.gettimeout(), 1)
    span = struct.pack("@ll", int(seconds), int(fraction * 1_000_000))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        plain.setsockopt(socket.SOL_SOCKET, option, span)
    plain.settimeout(None)
