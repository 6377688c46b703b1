"""This process's connections: opened at need, bounded in time, opened anew after a loss or a fork."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Generator, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from psycopg_pool import ConnectionPool, PoolTimeout

from oncelery.errors import ConfigurationError
from oncelery.stores.postgres import values
from oncelery.stores.postgres.address import Address
from oncelery.stores.postgres.faults import connection_is_lost, may_be_sent_again
from oncelery.stores.postgres.rows import Row

T = TypeVar("T")

#: How long to wait for one of our connections to be free.
BUSY_SECONDS = 5

#: How long a server that says nothing at all, not even that a statement took too long, is listened to.
SILENCE_SECONDS = 12

#: Pauses before a statement that was lost with its connection is sent again. Every verb may be sent twice.
RESEND_AFTER_SECONDS = (0.0, 0.1, 0.3, 1.0)

#: How long a verb may go on being sent again.
PATIENCE_SECONDS = 10


class Check(Protocol):
    """Makes sure that the ledger is there, and of this version."""

    def __call__(self, connection: BoundedConnection, *, migrate: bool) -> None:
        """Raise ConfigurationError if it is not."""


class Connections:
    """A small pool that opens at the first statement."""

    def __init__(self, address: Address, *, check: Check) -> None:
        self._address = address
        self._check = check
        self._lock = threading.Lock()
        self._pool: Pool | None = None
        self._busy: weakref.WeakSet[BoundedConnection] = weakref.WeakSet()
        self._checked = False
        self._failure: psycopg.Error | None = None
        self._failed_at = 0.0
        _all.add(self)

    def fetch(self, statement: bytes, values: Sequence[object]) -> list[Row]:
        """Run a statement as a transaction of its own, in one round trip; send it again if its connection is lost."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        pauses = iter(RESEND_AFTER_SECONDS)
        while True:
            try:
                return self._fetch(statement, values)
            except psycopg.Error as error:
                pause = next(pauses, None)
                if pause is None or not may_be_sent_again(error) or time.monotonic() + pause > deadline:
                    raise
            # A server that is restarted, or made the primary, takes a moment.
            time.sleep(pause)

    def check(self) -> None:
        """Make sure, once, that the ledger is there."""
        asked_at = time.monotonic()
        with self._lock:
            if not self._checked:
                self._check_now(asked_at)

    @property
    def migrates(self) -> bool:
        """Whether the first statement makes the schema, or brings it to this version."""
        return self._address.migrate

    def connect(self) -> BoundedConnection:
        """Open one connection outside the pool."""
        return BoundedConnection.connect(self._address.conninfo, **self._address.options, row_factory=tuple_row)

    def close(self) -> None:
        """Close all connections; the next statement opens new ones."""
        if self._pool is None:
            # Who waits for a server that does not answer has the lock; a process that ends does not wait for both.
            return
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def after_fork(self) -> None:
        """Leave the parent's connections to the parent: a word on them, even of farewell, would be heard as its own."""
        _inherited.append(self._pool)
        self._pool = self._failure = None
        self._busy = weakref.WeakSet()
        # A thread of the parent may have held it; here nobody would let it go.
        self._lock = threading.Lock()

    def _fetch(self, statement: bytes, values: Sequence[object]) -> list[Row]:
        pool = self._pool if self._pool is not None else self._open()
        connection = self._take(pool)
        try:
            self._busy.add(connection)
            return connection.fetch(statement, values)
        except psycopg.Error as error:
            if connection_is_lost(error):
                connection.close()
                self._give_up(pool)
            raise
        finally:
            self._busy.discard(connection)
            pool.putconn(connection)

    def _take(self, pool: Pool) -> BoundedConnection:
        try:
            return pool.getconn()
        except PoolTimeout as error:
            if len(self._busy) >= self._address.connections:
                raise
            # What a signal raises, such as a time limit, may strike where a connection changes hands: nobody has it
            # then, and the pool waits for it for good.
            self._give_up(pool)
            raise psycopg.OperationalError("connections were lost on the way to or from their pool") from error

    def _open(self) -> Pool:
        asked_at = time.monotonic()
        with self._lock:
            if self._pool is None:
                self._check_now(asked_at)
                self._pool = self._new_pool()
            return self._pool

    def _check_now(self, asked_at: float) -> None:
        """Connect once by hand: that tells why it fails, as a pool does not."""
        # Where many threads ask for a server that does not answer, one waits for it in the place of all.
        if self._failure and self._failed_at > asked_at:
            raise self._failure
        try:
            with self.connect() as connection:
                self._check(connection, migrate=self._address.migrate)
        except psycopg.Error as error:
            self._failure, self._failed_at = error, time.monotonic()
            raise
        self._checked = True

    def _give_up(self, pool: Pool) -> None:
        # A server that has closed one connection has most likely closed all.
        with self._lock:
            if self._pool is not pool:
                return
            self._pool = None
        pool.close(timeout=1)

    def _new_pool(self) -> Pool:
        return ConnectionPool(
            self._address.conninfo,
            connection_class=BoundedConnection,
            kwargs={**self._address.options, "row_factory": tuple_row},
            configure=values.adapt,
            min_size=0,
            max_size=self._address.connections,
            timeout=BUSY_SECONDS,
            reconnect_timeout=BUSY_SECONDS,
            num_workers=1,
            name="oncelery",
            open=True,
        )


class BorrowedConnection:
    """A connection of the caller's, in the caller's transaction. Nothing is sent again, nothing is committed."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        if connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
            raise ConfigurationError(
                "this connection commits each statement on its own: use it inside `with connection.transaction():`"
            )
        # Not the connection's own kind of cursor: Django's writes values into the statement, and gets text back.
        self._cursor = psycopg.Cursor(connection, row_factory=tuple_row)
        values.adapt(self._cursor)

    def fetch(self, statement: bytes, values: Sequence[object]) -> list[Row]:
        """Run a statement as a part of the transaction."""
        return self._cursor.execute(statement, values, binary=True).fetchall()

    def close(self) -> None:
        """Leave the connection to the caller."""


class BoundedConnection(psycopg.Connection[Row]):
    """Stops listening to a server that does not answer at all, such as a frozen one. Keeps one cursor, to save time."""

    #: Where more than SILENCE_SECONDS are in order.
    silence_seconds: float | None = None

    _cursor: psycopg.Cursor[Row] | None = None

    def fetch(self, statement: bytes, values: Sequence[object]) -> list[Row]:
        """Run a statement."""
        if self._cursor is None:
            self._cursor = self.cursor()
        return self._cursor.execute(statement, values, binary=True).fetchall()

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:  # noqa: ANN401 - as the driver has it
        """Wait for an answer, for so long."""
        return super().wait(_bounded(gen, self.silence_seconds or SILENCE_SECONDS), *args, **kwargs)


def _bounded(steps: Generator[Any, Any, T], seconds: float) -> Generator[Any, Any, T]:
    deadline = time.monotonic() + seconds
    try:
        wanted = next(steps)
        while True:
            ready = yield wanted
            if time.monotonic() > deadline:
                raise psycopg.OperationalError(f"no answer for {seconds} seconds")
            wanted = steps.send(ready)
    except StopIteration as end:
        result: T = end.value
        return result


Pool: TypeAlias = ConnectionPool[BoundedConnection]

_all: weakref.WeakSet[Connections] = weakref.WeakSet()
_inherited: list[Pool | None] = []


def _after_fork() -> None:
    for connections in list(_all):
        connections.after_fork()


os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def close_all() -> None:
    """Close what nobody has closed: from Python 3.13 on, a pool's threads cannot be ended any later."""
    for connections in list(_all):
        connections.close()
