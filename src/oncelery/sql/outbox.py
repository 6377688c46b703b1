"""The outbox: the ledger in the caller's transaction. A job is there if and only if the caller's own writes are."""

from __future__ import annotations

from collections.abc import Callable

from oncelery.errors import ConfigurationError
from oncelery.ledger import Ledger
from oncelery.sql.callers import caller_of
from oncelery.sql.joining import ledger_within


class Outbox:
    """The ledger in the transaction of a target, and what is to be done when that has ended.

    Raises:
        ConfigurationError: the ledger is not in the database that the target writes in.
    """

    def __init__(self, ledger: Ledger, target: object) -> None:
        self._caller = caller_of(target)
        # It also writes what a session holds back, and refuses what is in no transaction.
        self._caller.join()
        inside = ledger_within(ledger, self._caller)
        if inside is None:
            raise ConfigurationError(
                "within= writes the job in your transaction, so it needs a ledger in that very PostgreSQL database "
                "(store='postgresql://...') and psycopg 3 as the driver; else call apply_async after your commit"
            )
        self.ledger = inside

    def afterwards(self, act: Callable[[], object]) -> bool:
        """Call `act` once the transaction has ended, by commit or not; False if there is nobody who could."""
        return self._caller.when_given_back(act)
