"""The way to the server: one command, one reply; and what can go wrong with it."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from redis import exceptions as driver

from oncelery.errors import ConfigurationError, OnceleryError, StoreUnavailableError
from oncelery.stores.facts import ServerFacts
from oncelery.stores.redis.address import Address
from oncelery.stores.redis.durability import Barrier, choose_barrier
from oncelery.stores.redis.facts import server_facts
from oncelery.stores.redis.scripts import FLAGGED, UNFLAGGED
from oncelery.stores.redis.wire import Wire, Word, words

#: How often a command is sent, when connections break under it. All verbs may be.
SENDS = 3

#: No command is sent again later than this after it first failed: the caller has a lease to mind.
SEND_AGAIN_SECONDS = 5.0

#: How long to wait before sending again, times the number of failures.
PAUSE_SECONDS = 0.05

#: The oldest version that knows all commands of the scripts.
OLDEST = (6, 2)

#: The first version that reads flags in the first line of a script.
FLAGS_SINCE = (7, 0)

#: What a person must mend; the driver takes the first two for broken connections.
REFUSALS = (driver.AuthenticationError, driver.AuthorizationError, driver.NoPermissionError)

#: How Redis 6.2, Redis 7 and Valkey tell that a script has met a command that its user may not use.
REFUSED_IN_SCRIPT = ("NOPERM", "user executing the script", "has no permissions")

#: What another connection, perhaps to another server, may get over: READONLY comes from a primary that is one no more.
BREAKS = (OSError, driver.ConnectionError, driver.TimeoutError, driver.ReadOnlyError)

#: Whatever can go wrong on the way, or is told by the server.
TROUBLE = (OSError, driver.RedisError)


class Server:
    """Runs scripts on the server. Safe to use from threads, greenlets and forked children."""

    def __init__(self, address: Address, prefix: bytes) -> None:
        self._address = address
        #: What all our keys begin with.
        self._prefix = prefix
        #: The node of a cluster that has our slot, once we were told.
        self._node: tuple[str, int] | None = None
        #: Connections that nobody uses now. Taking and giving back are atomic, so that no lock is needed.
        self._idle: list[Link] = []
        _servers.add(self)

    def run(self, verb: str, inputs: Sequence[Word], *, safe: bool = False) -> Any:  # noqa: ANN401 - as its script says
        """Run a verb's script and give its reply, in one round trip; if `safe`, when the barrier is passed."""
        try:
            return self._take().run(verb, len(inputs), words(inputs), safe=safe)
        except TROUBLE as error:
            return self._run_again(verb, inputs, error, safe=safe)

    def send(self, verb: str, inputs: Sequence[Word]) -> Callable[[], Any]:
        """Send a verb's script, and give what waits for its reply."""
        try:
            link = self._take()
            link.send(verb, len(inputs), words(inputs))
        except TROUBLE as error:
            return partial(self._run_again, verb, inputs, error)
        return partial(self._receive, link, verb, inputs)

    def _receive(self, link: Link, verb: str, inputs: Sequence[Word]) -> Any:  # noqa: ANN401
        try:
            return link.receive()
        except driver.NoScriptError:
            return self.run(verb, inputs)
        except TROUBLE as error:
            return self._run_again(verb, inputs, error)

    def _run_again(self, verb: str, inputs: Sequence[Word], error: Exception, *, safe: bool = False) -> Any:  # noqa: ANN401
        """Run a verb that has failed once, as long as it may go better."""
        deadline = time.monotonic() + SEND_AGAIN_SECONDS
        failures = 1
        while self._recover(error) and failures < SENDS and time.monotonic() <= deadline:
            # A server that is restarted, or made the primary, takes a moment.
            time.sleep(PAUSE_SECONDS * failures)
            try:
                return self._take().run(verb, len(inputs), words(inputs), safe=safe)
            except TROUBLE as another:
                error = another
                failures += 1
        raise mapped(error) from error

    def facts(self) -> ServerFacts:
        """Ask the server about itself, on a connection that is not left over from before it was restarted."""
        self.close()
        try:
            link = self._take()
            try:
                told = link.facts()
            except BaseException:  # also a time limit, after which a reply may be unread
                link.close()
                raise
        except TROUBLE as error:
            raise mapped(error) from error
        self._idle.append(link)
        return told

    def close(self) -> None:
        """Close what is idle. The next command connects again."""
        while self._idle:
            self._idle.pop().close()

    def forget(self) -> None:
        """Let go of connections without a word to the server: in a forked child they are the parent's."""
        self._idle = []

    def _take(self) -> Link:
        try:
            return self._idle.pop()
        except IndexError:
            return Link(self._address, self._node, self._prefix, self._idle)

    def _recover(self, error: Exception) -> bool:
        """Whether it may go better on another connection."""
        if isinstance(error, REFUSALS):
            return False
        if isinstance(error, BREAKS):
            self._node = None
        elif str(error).startswith("MOVED "):
            self._node = _moved_to(error)
        else:
            return False
        # The other connections are as likely to be dead, or lead to the wrong node.
        self.close()
        return True


class Link:
    """One open connection, which is given back after use, or closed after anything that may leave a reply unread."""

    def __init__(self, address: Address, node: tuple[str, int] | None, prefix: bytes, idle: list[Link]) -> None:
        self._wire = address.open(node)
        self._address = address
        self._prefix = prefix
        self._keys = words((1, prefix))
        self._idle = idle
        self._version = _version(self._wire)
        self._library = FLAGGED if self._version >= FLAGS_SINCE else UNFLAGGED
        self._barrier: Barrier | None = None

    def run(self, verb: str, count: int, written: bytes, *, safe: bool) -> Any:  # noqa: ANN401
        """Send a script's name, or its text if the server has not seen it, with its inputs; read the reply.

        Then this link is idle again. Few calls, and no context: each verb of every task comes by here.
        """
        script = self._library[verb]
        ask = self._ask_and_wait if safe else self._ask
        try:
            try:
                reply = ask(self._command(script.head, count, written))
            except driver.NoScriptError:
                reply = ask(self._command(script.text_head, count, written))
        except BaseException as error:  # also a time limit, after which a reply may be unread
            self._give_back(error)
            raise
        self._idle.append(self)
        return reply

    def send(self, verb: str, count: int, written: bytes) -> None:
        """Send a script's name with its inputs, and nothing else until its reply is received."""
        try:
            self._wire.send(self._command(self._library[verb].head, count, written))
        except BaseException:
            self.close()
            raise

    def receive(self) -> Any:  # noqa: ANN401
        """Read the reply to what was sent. Then this link is idle again."""
        try:
            reply = self._wire.read()
        except BaseException as error:
            self._give_back(error)
            raise
        self._idle.append(self)
        return reply

    def _command(self, head: bytes, count: int, written: bytes) -> bytes:
        """Join the script, the one key that says which node has them all, and the inputs."""
        return b"*%d\r\n%b%b%b" % (2 + 2 + count, head, self._keys, written)

    def facts(self) -> ServerFacts:
        """Ask the server about itself."""
        return server_facts(self._ask, version=self._version, replicas=self._address.replicas)

    def close(self) -> None:
        """Close the connection."""
        self._wire.close()

    def _ask(self, command: bytes) -> Any:  # noqa: ANN401
        self._wire.send(command)
        return self._wire.read()

    def _ask_and_wait(self, command: bytes) -> Any:  # noqa: ANN401
        barrier = self._barrier = self._barrier or choose_barrier(
            self._ask,
            version=self._version,
            replicas=self._address.replicas,
            key=self._prefix + b"barrier",
            seconds=self._address.reply_seconds,
        )
        # All in one packet, and on one connection: the server waits for what this connection wrote.
        self._wire.send(b"".join((command, *barrier.commands)))
        reply, *waited = [self._read() for _ in range(1 + len(barrier.commands))]
        if isinstance(reply, driver.ResponseError):
            raise reply
        if waited and isinstance(waited[-1], driver.ResponseError):
            # The server's settings have changed since we chose.
            self._barrier = None
            raise waited[-1]
        if waited:
            barrier.check(waited[-1])
        return reply

    def _read(self) -> Any:  # noqa: ANN401
        """Read a reply, also an error: those that follow must be read as well."""
        try:
            return self._wire.read()
        except driver.ResponseError as error:
            return error

    def _give_back(self, error: BaseException) -> None:
        # An exception from elsewhere (a time limit, Ctrl-C) may come between a command and its reply.
        if isinstance(error, (driver.ResponseError, StoreUnavailableError, ConfigurationError)):
            self._idle.append(self)
        else:
            self.close()


def mapped(error: Exception) -> OnceleryError:
    """Give ConfigurationError for what a person must mend, else StoreUnavailableError."""
    if isinstance(error, REFUSALS) or any(sign in str(error) for sign in REFUSED_IN_SCRIPT):
        return ConfigurationError(f"the store does not let us in: {error}")
    # The kernel calls a reply that is too late "temporarily unavailable".
    why = "not in time" if isinstance(error, (TimeoutError, BlockingIOError)) else error
    return StoreUnavailableError(f"the store did not answer: {why}")


def _version(wire: Wire) -> tuple[int, ...]:
    told: str = wire.greeting[b"version"].decode()
    version = tuple(int(number) for number in told.split(".")[:2])
    if version < OLDEST:
        wire.close()
        raise ConfigurationError(f"the store needs Redis 6.2 or newer, or Valkey; this server is Redis {told}")
    return version


def _moved_to(error: Exception) -> tuple[str, int] | None:
    host, _, port = str(error).split()[-1].rpartition(":")
    return (host, int(port)) if host else None


_servers: weakref.WeakSet[Server] = weakref.WeakSet()


def _forget_all() -> None:
    for server in _servers:
        server.forget()


os.register_at_fork(after_in_child=_forget_all)
