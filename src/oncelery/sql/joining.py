"""Whether the ledger is in the very database that a caller writes in: then both can be in one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from oncelery.ledger import Ledger, LedgerWithin
from oncelery.stores.base import Store

if TYPE_CHECKING:
    import psycopg

    from oncelery.sql.callers import Caller

#: Which database a connection of psycopg leads to, by where it was told to go.
_known: dict[tuple[object, ...], str] = {}


@runtime_checkable
class Joinable(Protocol):
    """A store that can take part in a caller's transaction."""

    def identity(self, connection: psycopg.Connection[Any] | None = None) -> str:
        """Name the database that the connection leads to, or the store's own; no two have the same name."""

    def within(self, connection: psycopg.Connection[Any]) -> Store:
        """Give this store inside the caller's transaction."""


def ledger_within(ledger: Ledger, caller: Caller) -> LedgerWithin | None:
    """Give the ledger inside the caller's transaction; None if it is elsewhere, or behind another driver than psycopg.

    A mistake here could do no harm: a run's holder is a number that no other database knows.
    """
    store, connection = ledger.store, caller.psycopg()
    if connection is None or not isinstance(store, Joinable):
        return None
    info = connection.info
    place = (info.host, info.port, info.dbname)
    if place not in _known:
        _known[place] = store.identity(connection)
    if _known[place] != store.identity():
        return None
    return LedgerWithin(ledger, store.within(connection))
