"""The way to the server: one command, one reply; and what can go wrong with it."""

from __future__ import annotations

import math
import os
import random
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from redis import exceptions as driver

from oncelery.errors import ConfigurationError, OnceleryError, StoreUnavailableError
from oncelery.stores.facts import ServerFacts
from oncelery.stores.redis.address import Address, Node
from oncelery.stores.redis.durability import Barrier, choose_barrier
from oncelery.stores.redis.facts import server_facts
from oncelery.stores.redis.primary import REFUSALS, TROUBLE, ClusterNodes, Finder, Primary, Sentinels
from oncelery.stores.redis.scripts import FLAGGED, UNFLAGGED
from oncelery.stores.redis.wire import Wire, Word, words

#: How long a verb is sent again where another server may take over, unless the URL says `patience`. Any verb may be.
PATIENCE_SECONDS = 15.0

#: How often a verb is sent to a single server, which no other replaces, when connections break under it.
SENDS = 3

#: To one server no verb is sent again later than this after it first failed: the caller has a lease to mind.
SEND_AGAIN_SECONDS = 5.0

#: How long to wait before sending again, times the number of failures; and how long at most.
PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 0.5

#: The oldest version that knows all commands of the scripts.
OLDEST = (6, 2)

#: The first version that reads flags in the first line of a script.
FLAGS_SINCE = (7, 0)

#: How Redis 6.2, Redis 7 and Valkey tell that a script has met a command that its user may not use.
REFUSED_IN_SCRIPT = ("NOPERM", "user executing the script", "has no permissions")

#: What another connection, perhaps to another server, may get over: READONLY comes from a primary that is one no more.
BREAKS = (OSError, driver.ConnectionError, driver.TimeoutError, driver.ReadOnlyError)

#: What passes by itself when a fail-over or the move of a slot is over. Redis 6.2 says it in the middle of a sentence.
PASSING = ("CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "NOREPLICAS", "READONLY", "UNBLOCKED")

#: A slot that moves is on two nodes, and neither has the whole ledger. So ASK is not followed: the other node would
#: not know the jobs that are still here.
MOVING = "ASK "

MOVED = "MOVED "

#: What a server that says nothing looks like. (The kernel calls a reply that is too late "temporarily unavailable".)
SILENCE = (TimeoutError, BlockingIOError, driver.TimeoutError)


class Server:
    """Runs scripts on the server. Safe to use from threads, greenlets and forked children."""

    def __init__(self, address: Address, prefix: bytes) -> None:
        self._address = address
        #: What all our keys begin with.
        self._prefix = prefix
        #: What finds the primary, where that can change.
        self._finder: Finder | None = None
        if address.primary_name:
            self._finder = Sentinels(address)
        elif len(address.hosts) > 1:
            self._finder = ClusterNodes(address, prefix)
        #: The primary, once we know it.
        self._primary: Primary | None = None
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
        failures = 1
        sends, until = self._limits(error)
        while self._recover(error) and failures < sends and time.monotonic() <= until:
            # A server that is restarted, or made the primary, takes a moment; and not all of us ask it at once.
            time.sleep(min(PAUSE_SECONDS * failures, LONGEST_PAUSE_SECONDS) * random.uniform(0.5, 1.0))  # noqa: S311
            try:
                return self._take().run(verb, len(inputs), words(inputs), safe=safe)
            except TROUBLE as another:
                error = another
                failures += 1
        raise mapped(error) from error

    def _limits(self, error: Exception) -> tuple[float, float]:
        """Return how often a verb that has just failed is sent, and until when."""
        failed_at = time.monotonic()
        patience = self._address.patience
        if patience is None and self._finder:
            patience = PATIENCE_SECONDS
        if not patience:
            return SENDS, failed_at + SEND_AGAIN_SECONDS
        # We have waited for a silent server already.
        return math.inf, failed_at + patience - (self._address.reply_seconds if isinstance(error, SILENCE) else 0.0)

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
            return self._open()

    def _open(self) -> Link:
        if self._finder is None:
            wire = self._address.open()
            if wire.greeting.get(b"mode") != b"cluster":
                return Link(wire, None, self._address, self._prefix, self._idle)
            wire.close()
            self._finder = ClusterNodes(self._address, self._prefix)
        primary = self._primary = self._primary or Primary(self._finder)
        return Link(self._address.open(primary.node), primary, self._address, self._prefix, self._idle)

    def _recover(self, error: Exception) -> bool:
        """Whether it may go better on another connection."""
        if isinstance(error, REFUSALS):
            return False
        said = str(error)
        if said.startswith(MOVED) and self._finder:
            node = _moved_to(said)
            self._primary = Primary(self._finder, node) if node else None
        elif isinstance(error, BREAKS) or said.startswith(MOVING) or any(word in said for word in PASSING):
            self._primary = None
        else:
            return False
        # The other connections are as likely to be dead, or lead to the wrong node.
        self.close()
        return True


class Link:
    """One open connection, which is given back after use, or closed after anything that may leave a reply unread."""

    def __init__(self, wire: Wire, primary: Primary | None, address: Address, prefix: bytes, idle: list[Link]) -> None:
        self._wire = wire
        #: What the server at the other end is, where that can change.
        self._primary = primary
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
            if self._primary is not None:
                self._primary.confirm(unknown=is_unknown(verb, reply))
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
            if self._primary is not None:
                self._primary.confirm(unknown=False)
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
    why = "not in time" if isinstance(error, SILENCE) else error
    return StoreUnavailableError(f"the store did not answer: {why}")


def is_unknown(verb: str, reply: Any) -> bool:  # noqa: ANN401 - as the verb's script says
    """Whether the reply says that the ledger does not know a job."""
    if verb == "get":
        return not reply
    if verb == "renew":
        return b"" in reply[::2]
    return bool(reply) and isinstance(reply, list) and reply[0] == b"absent"


def _version(wire: Wire) -> tuple[int, ...]:
    told: str = wire.greeting[b"version"].decode()
    version = tuple(int(number) for number in told.split(".")[:2])
    if version < OLDEST:
        wire.close()
        raise ConfigurationError(f"the store needs Redis 6.2 or newer, or Valkey; this server is Redis {told}")
    return version


def _moved_to(said: str) -> Node | None:
    host, _, port = said.rsplit(maxsplit=1)[-1].rpartition(":")
    return Node(host, int(port)) if host else None


_servers: weakref.WeakSet[Server] = weakref.WeakSet()


def _forget_all() -> None:
    for server in _servers:
        server.forget()


os.register_at_fork(after_in_child=_forget_all)
