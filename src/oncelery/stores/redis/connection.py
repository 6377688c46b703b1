"""The way to the server: one command, one reply, at the least cost redis-py allows; and what can go wrong with it."""

from __future__ import annotations

import os
import time
import weakref
from types import TracebackType
from typing import Any, Self

from redis import exceptions as driver
from redis.connection import AbstractConnection

from oncelery.errors import ConfigurationError, StoreUnavailableError
from oncelery.stores.redis.address import Address
from oncelery.stores.redis.scripts import HEAD_WORDS, Library, word

#: How often a command is sent, when connections break under it. All verbs may be sent again.
SENDS = 3

#: No command is sent again later than this after its first time: the caller has a lease to mind.
SEND_AGAIN_SECONDS = 5.0

#: How long to wait before sending again, times the number of failures.
PAUSE_SECONDS = 0.05

#: The first version that reads flags in the first line of a script.
FLAGS_SINCE = 7

Input = str | bytes | int


class Server:
    """Runs scripts on the server. Safe to use from threads, greenlets and forked children."""

    def __init__(self, address: Address, namespace: str) -> None:
        self._address = address
        self._namespace = namespace
        #: Connections that nobody uses now. Taking and giving back are atomic, so that no lock is needed.
        self._idle: list[Link] = []
        _servers.add(self)

    def run(self, verb: str, *inputs: Input) -> Any:  # noqa: ANN401 - each verb knows the reply of its own script
        """Run a verb's script and give its reply, in one round trip."""
        words = pack(inputs)
        with store_errors():
            return self._send(verb, len(inputs), words)

    def close(self) -> None:
        """Close what is idle. The next command connects again."""
        while self._idle:
            self._idle.pop().close()

    def forget(self) -> None:
        """Let go of connections without a word to the server: in a forked child they are the parent's."""
        self._idle = []

    def _send(self, verb: str, count: int, words: bytes) -> Any:  # noqa: ANN401
        deadline = time.monotonic() + SEND_AGAIN_SECONDS
        for failures in range(1, SENDS + 1):
            try:
                with self._link() as link:
                    return link.run(verb, count, words)
            except (driver.AuthenticationError, driver.AuthorizationError):
                raise
            except (driver.ConnectionError, driver.TimeoutError):
                # The others are likely to be dead as well.
                self.close()
                pause = PAUSE_SECONDS * failures
                if failures == SENDS or time.monotonic() + pause > deadline:
                    raise
                time.sleep(pause)
        raise AssertionError  # the last failure is raised above

    def _link(self) -> Link:
        try:
            return self._idle.pop()
        except IndexError:
            return Link(self._address.open(), self._namespace, self._idle)


class Link:
    """One open connection; a context that gives it back, or closes it after anything that may leave a reply unread."""

    def __init__(self, connection: AbstractConnection, namespace: str, idle: list[Link]) -> None:
        self._connection = connection
        self._idle = idle
        connection.connect()
        self._library = Library(namespace, flagged=_version(connection) >= FLAGS_SINCE)

    def run(self, verb: str, count: int, words: bytes) -> Any:  # noqa: ANN401
        """Send a script's name and inputs, or its text if the server does not know it, and read the reply."""
        script = self._library[verb]
        size = b"*%d\r\n" % (HEAD_WORDS + count)
        try:
            return self._ask(size + script.head + words)
        except driver.NoScriptError:
            return self._ask(size + script.full_head + words)

    def _ask(self, command: bytes) -> Any:  # noqa: ANN401
        connection = self._connection
        connection.send_packed_command([command], check_health=False)
        return connection.read_response()

    def close(self) -> None:
        """Close the connection."""
        self._connection.disconnect()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # An exception from elsewhere (a time limit, Ctrl-C) may come between a command and its reply.
        if error is None or isinstance(error, driver.ResponseError):
            self._idle.append(self)
        else:
            self.close()


def pack(inputs: tuple[Input, ...]) -> bytes:
    """Write the inputs of a script as words of its command."""
    words = []
    for value in inputs:
        if isinstance(value, str):
            words.append(word(value.encode()))
        elif isinstance(value, int):
            words.append(word(b"%d" % value))
        else:
            words.append(word(value))
    return b"".join(words)


class store_errors:  # noqa: N801 - reads as what it does: `with store_errors():`
    """Maps every error of the driver: to ConfigurationError what a person must mend, else to StoreUnavailableError."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None or not isinstance(error, driver.RedisError):
            return
        refused = (driver.AuthenticationError, driver.AuthorizationError, driver.NoPermissionError)
        # Redis 6.2 wraps what goes wrong inside a script in an error of its own.
        if isinstance(error, refused) or "NOPERM" in str(error):
            raise ConfigurationError(f"the store does not let us in: {error}") from error
        raise StoreUnavailableError(f"the store did not answer: {error}") from error


def _version(connection: AbstractConnection) -> int:
    greeting: dict[bytes, Any] = connection.handshake_metadata  # type: ignore[assignment]  # bytes: nothing is decoded
    return int(greeting[b"version"].split(b".")[0])


_servers: weakref.WeakSet[Server] = weakref.WeakSet()


def _forget_all() -> None:
    for server in _servers:
        server.forget()


os.register_at_fork(after_in_child=_forget_all)
