"""Which server has our keys, where that can change: the Sentinels know, or the nodes of a cluster."""

from __future__ import annotations

import random
from time import monotonic
from typing import Any, Protocol

from redis import exceptions as driver
from redis.crc import key_slot

from oncelery.errors import ConfigurationError
from oncelery.stores.redis.address import Address, Node
from oncelery.stores.redis.wire import Wire, command

#: How long a server is taken for the primary after it has answered, or after we were told that it is. A server that was
#: paused and replaced has been silent for longer: Sentinels and clusters wait some seconds before they replace one.
TRUSTED_SECONDS = 1.0

#: What can go wrong with one Sentinel or node, so that another is asked.
TROUBLE = (OSError, driver.RedisError)

REFUSALS = (driver.AuthenticationError, driver.AuthorizationError, driver.NoPermissionError)


class ReplacedError(driver.ConnectionError):
    """The server that answered is no longer the primary: its answer does not count."""


class Finder(Protocol):
    """Finds the primary."""

    def find(self, suspect: Node | None = None) -> Node:
        """Ask which server is the primary now; the suspect, which may have been replaced, is asked last.

        Raises:
            redis.ConnectionError: no server knows at the moment.
        """


class Primary:
    """The server that has our keys, and how long we have known it."""

    def __init__(self, finder: Finder, node: Node | None = None) -> None:
        self._finder = finder
        self._told = self._answered = monotonic()
        self.node = node or finder.find()

    def confirm(self, *, unknown: bool) -> None:
        """Raise ReplacedError if a reply that has just come is not the primary's.

        A primary that is paused, replaced and resumed answers for some seconds as if nothing had happened. So a reply
        that follows a silence counts only if this server is still named as the primary. So does a reply that a job is
        `unknown`, unless it was named just now: the job may be one that only another server has.
        """
        now = monotonic()
        if now - (self._told if unknown else self._answered) > TRUSTED_SECONDS:
            if self._finder.find(self.node) != self.node:
                raise ReplacedError("another server has become the primary")
            self._told = now
        self._answered = now


class Sentinels:
    """Sentinels, which know where the primary is."""

    def __init__(self, address: Address) -> None:
        self._address = address
        #: Those that did not answer come last.
        self._hosts = list(address.hosts)

    def find(self, suspect: Node | None = None) -> Node:
        """Ask most of the Sentinels, and believe the newest word: one that was paused as well may not know it yet."""
        del suspect
        told: list[tuple[int, bool, Node]] = []
        trouble: Exception | None = None
        for host in tuple(self._hosts):
            try:
                told.append(self._ask(host))
            except (*TROUBLE, ConfigurationError) as error:
                trouble = error
                self._hosts = [*(each for each in self._hosts if each != host), host]
            if 2 * len(told) > len(self._hosts):
                break
        if isinstance(trouble, ConfigurationError) and not told:
            raise trouble
        if not told:
            raise driver.ConnectionError(f"no Sentinel answers: {trouble}")
        _, is_up, node = max(told)
        if not is_up:
            raise driver.ConnectionError(f"the primary {self._address.primary_name!r} is down, say the Sentinels")
        return node

    def _ask(self, host: Node) -> tuple[int, bool, Node]:
        """Ask one Sentinel: how new its word is, whether the primary is up, and where."""
        name = self._address.primary_name
        try:
            about = _ask(self._address.open_sentinel(host), "SENTINEL", "MASTER", name)
        except REFUSALS as error:
            raise ConfigurationError(
                "the Sentinels do not let us in: add sentinel_password=, and sentinel_username= if they have users, "
                "to the store's URL"
            ) from error
        except driver.ResponseError as error:
            if "No such master" in str(error):
                raise ConfigurationError(f"the Sentinels know no primary named {name!r}: correct sentinel=") from error
            raise
        flags = about[b"flags"].split(b",")
        node = Node(about[b"ip"].decode(), int(about[b"port"]))
        return int(about[b"config-epoch"]), not {b"s_down", b"o_down"} & set(flags), node


class ClusterNodes:
    """The nodes of a cluster, each of which knows which of them has our slot."""

    def __init__(self, address: Address, key: bytes) -> None:
        self._address = address
        self._slot = key_slot(key)
        #: All nodes that were up when we last asked one.
        self._known: list[Node] = []

    def find(self, suspect: Node | None = None) -> Node:
        """Ask any node, but the suspect last: one that was paused may not know yet that it was replaced."""
        # At random: a node that is cut off from the others must not be the one that is asked each time.
        nodes = dict.fromkeys([*random.sample(self._known, len(self._known)), *self._address.hosts])
        trouble: Exception | None = None
        for node in sorted(nodes, key=lambda each: each == suspect):
            try:
                if owner := self._ask(node):
                    return owner
            except REFUSALS:
                raise
            except TROUBLE as error:
                trouble = error
        raise driver.ConnectionError(f"no node of the cluster says which of them has slot {self._slot}: {trouble}")

    def _ask(self, asked: Node) -> Node | None:
        try:
            ranges = _ask(self._address.open(asked), "CLUSTER", "SLOTS")
        except driver.ResponseError as error:
            if "cluster support disabled" in str(error):
                raise ConfigurationError(
                    "the store's URL has several hosts, so they must be nodes of a cluster, or Sentinels with "
                    f"?sentinel=<name>; {asked.host}:{asked.port} is neither"
                ) from error
            raise
        owner, known = None, []
        for first, last, *serving in ranges:
            # A node that does not know how it is reached leaves its host out.
            nodes = [Node(each[0].decode() if each[0] else asked.host, int(each[1])) for each in serving]
            known += nodes
            if first <= self._slot <= last:
                owner = nodes[0]
        self._known = list(dict.fromkeys(known))
        return owner


def _ask(wire: Wire, *words: str) -> Any:  # noqa: ANN401 - whatever the server says
    try:
        wire.send(command(*words))
        return wire.read()
    finally:
        wire.close()
