"""What `durability="safe"` waits for: the disk of the server, or its replicas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from oncelery.errors import ConfigurationError, StoreUnavailableError
from oncelery.stores.facts import WAITAOF_SINCE
from oncelery.stores.redis.facts import information, setting
from oncelery.stores.redis.wire import command

#: How much of the time for a reply the server may wait; the rest is for the way.
SHARE_OF_REPLY = 0.6

NO_WAY = (
    'durability="safe" needs a server that can tell when a write is safe: set `appendonly yes` (Redis 7.2 or Valkey; '
    "on older ones with `appendfsync always`), or give it replicas and add ?replicas=1 to the store's URL"
)


@dataclass(frozen=True, slots=True)
class Barrier:
    """Commands that follow a script on its connection, and what their last reply must say."""

    commands: tuple[bytes, ...] = ()
    disks: int = 0
    replicas: int = 0

    def check(self, reply: Any) -> None:  # noqa: ANN401 - a number, or two
        """Raise unless enough have it. Nothing is undone; the same call may be made again, and waits again."""
        disks, replicas = reply if isinstance(reply, list) else (0, reply)
        if disks < self.disks or replicas < self.replicas:
            raise StoreUnavailableError(
                f"written, but not safe yet: {disks} of {self.disks} disks and {replicas} of {self.replicas} replicas "
                "have it; ask again"
            )


def choose_barrier(
    ask: Callable[[bytes], Any], *, version: tuple[int, ...], replicas: int, key: bytes, seconds: float
) -> Barrier:
    """Find what this server offers, or raise ConfigurationError."""
    milliseconds = b"%d" % (seconds * SHARE_OF_REPLY * 1000)
    # From Redis 7.2 on, only a connection that has written has anything to wait for; a verb that is sent again has not.
    mark = command(b"SET", key, b"")
    persists = information(ask, "persistence").get("aof_enabled") == "1"
    if persists and version >= WAITAOF_SINCE:
        return Barrier((mark, command(b"WAITAOF", b"1", b"%d" % replicas, milliseconds)), 1, replicas)
    if replicas:
        return Barrier((mark, command(b"WAIT", b"%d" % replicas, milliseconds)), 0, replicas)
    if persists and setting(ask, "appendfsync").get("appendfsync") == "always":
        return Barrier()
    raise ConfigurationError(NO_WAY)
