"""What a store's server says of itself, for whoever looks for what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, runtime_checkable

#: The first Redis that can tell when a write is on disk.
WAITAOF_SINCE = (7, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """A server, as it is now."""

    #: "redis" (also for Valkey) or "postgresql".
    kind: str
    version: tuple[int, ...]
    #: Its clock.
    now: datetime
    #: Its settings and figures, in its own words; what it does not tell is missing.
    says: Mapping[str, str]
    #: Whether it only follows another one, and refuses to write.
    replica: bool
    #: Whether the ledger's schema is there and of this version, and whether the first use of the store would see to it.
    ready: bool = True
    migrates: bool = True
    #: How many replicas a safe write waits for.
    replicas: int = 0


@runtime_checkable
class Examinable(Protocol):
    """A store whose server can be asked."""

    def server(self) -> ServerFacts:
        """Ask the server; change nothing."""
