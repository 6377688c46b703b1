"""The caller's transaction: how it is begun or joined, kept whole, ended. One class per library; another goes here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias

from oncelery.errors import ConfigurationError

if TYPE_CHECKING:
    import psycopg
    import sqlalchemy
    from sqlalchemy import orm

    #: A connection that is open, and in the caller's transaction or about to begin it.
    OpenConnection: TypeAlias = psycopg.Connection[Any] | sqlalchemy.Connection

#: What may be written through, as errors list it.
ACCEPTED = "a Connection or Cursor of psycopg 3, a Session or Connection of SQLAlchemy 2"

#: Classes of SQLSTATE with which a server may have ended a session while it was committing, or after.
UNSURE = frozenset({"08", "57", "58", "XX"})

#: Where a pooled connection keeps what is to be done when it is given back.
_WAITING = "oncelery_waiting"


@dataclass(frozen=True, slots=True)
class Done:
    """What came of a statement: how many rows it changed, and those it gave."""

    count: int
    rows: Sequence[Sequence[Any]] = ()


class Caller(Protocol):
    """A transaction that somebody else writes in."""

    #: What the caller writes with.
    connection: Any

    @property
    def dialect(self) -> str:
        """Name the database's language, as SQLAlchemy does."""

    def join(self) -> OpenConnection:
        """Give the connection that the caller's own statements use, so that ours are in the same transaction.

        What a session holds back is written first: rows may refer to it.

        Raises:
            ConfigurationError: the target is in no transaction of its own; named.
        """

    def begin(self) -> None:
        """Begin, or join what has begun; until it ends, nobody but us may commit."""

    def flush(self) -> None:
        """Write what the caller's library has held back."""

    def execute(self, statement: str, values: Mapping[str, object]) -> Done:
        """Run a statement, with `:name` for each value, as a part of the transaction."""

    def psycopg(self) -> psycopg.Connection[Any] | None:
        """Give psycopg's connection that the transaction is on, if it is on one."""

    def commit(self) -> None:
        """Commit. An error may mean that it is done: see `is_refusal`."""

    def rollback(self) -> None:
        """Undo all of it."""

    def end(self) -> None:
        """Give the connection back to whom it belongs to."""

    def when_given_back(self, act: Callable[[], object]) -> bool:
        """See to it that `act` is called once the transaction is over, however it ended; False if nobody can tell."""


def caller_of(target: object) -> Caller:
    """Find the caller's transaction in what was given for it.

    Raises:
        ConfigurationError: the target is asynchronous, or of no library that is known; named.
    """
    # Whoever made the target has imported its library; nobody else needs to have it.
    if "psycopg" in sys.modules:
        import psycopg  # noqa: PLC0415 - optional

        if isinstance(target, psycopg.Cursor):
            target = target.connection
        if isinstance(target, psycopg.Connection):
            return _Psycopg(target)
    if "sqlalchemy" in sys.modules:
        import sqlalchemy  # noqa: PLC0415 - optional
        from sqlalchemy import orm  # noqa: PLC0415 - optional

        if isinstance(target, orm.scoped_session):
            target = target()
        if isinstance(target, orm.Session):
            return _Session(target)
        if isinstance(target, sqlalchemy.Connection):
            return _Connection(target)
        if isinstance(target, sqlalchemy.Engine):
            return _Engine(target)
    raise _unfit(target)


def psycopg_behind(connection: OpenConnection) -> psycopg.Connection[Any] | None:
    """Give the psycopg connection that this one is or uses, in the same transaction; None if it has another driver."""
    if "psycopg" not in sys.modules:
        return None
    import psycopg  # noqa: PLC0415 - optional

    if isinstance(connection, psycopg.Connection):
        return connection
    driver = connection.connection.driver_connection
    if not isinstance(driver, psycopg.Connection):
        return None
    # SQLAlchemy begins with its first statement. It will not see ours, and would then commit nothing.
    if not connection.in_transaction():
        connection.begin()
    return driver


def is_refusal(error: Exception) -> bool:
    """Whether it is sure that nothing was committed; an error that does not come from the database leaves that open."""
    if isinstance(error, ConfigurationError):
        return True
    code = _code(error)
    said = getattr(error, "orig", None) or error
    return code[:2] not in UNSURE if code else type(said).__name__ == "IntegrityError"


def is_rivalry(error: Exception) -> bool:
    """Whether the database has undone it for the sake of another transaction, and will take it the next time."""
    return _code(error)[:2] == "40"


def _code(error: Exception) -> str:
    said = getattr(error, "orig", None) or error
    code: str = getattr(said, "sqlstate", None) or getattr(said, "pgcode", None) or ""
    return code


def _unfit(target: object) -> ConfigurationError:
    """Say what is wrong with a target, by its name, and what to give instead."""
    kind = type(target)
    name = f"{kind.__module__.partition('.')[0]}'s {kind.__name__}"
    if "async" in kind.__name__.lower():
        remedy = "is asynchronous; give a synchronous one, with SQLAlchemy by `await session.run_sync(...)`"
    elif kind.__name__ in {"Engine", "ConnectionPool", "NullConnectionPool", "sessionmaker"}:
        remedy = "makes connections, and is in no transaction; open one and give that"
    else:
        remedy = f"is none; give {ACCEPTED}"
    return ConfigurationError(f"this needs an open connection, and {name} {remedy}.")


def _early() -> ConfigurationError:
    return ConfigurationError(
        "run.transaction(...) commits at the end of its block, together with the job: "
        "remove the commit inside it, or use a savepoint (begin_nested) there"
    )


class _Psycopg:
    dialect = "postgresql"

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self._block: AbstractContextManager[object] | None = None

    def join(self) -> psycopg.Connection[Any]:
        return self.connection

    def begin(self) -> None:
        # Inside this block psycopg itself refuses a commit of the caller's.
        block = self.connection.transaction()
        block.__enter__()
        self._block = block

    def flush(self) -> None:
        pass

    def execute(self, statement: str, values: Mapping[str, object]) -> Done:
        from psycopg.rows import tuple_row  # noqa: PLC0415 - optional

        for name in values:
            statement = statement.replace(f":{name}", f"%({name})s")
        cursor = self.connection.cursor(row_factory=tuple_row).execute(statement.encode(), values)
        return Done(cursor.rowcount, cursor.fetchall() if cursor.description else ())

    def psycopg(self) -> psycopg.Connection[Any]:
        return self.connection

    def commit(self) -> None:
        from psycopg import ProgrammingError  # noqa: PLC0415 - optional

        self._leave()
        try:
            # It may have begun before, with a statement of the caller's.
            self.connection.commit()
        except ProgrammingError as error:
            raise ConfigurationError(
                "run.transaction(connection) commits at its end: use it outside `with connection.transaction():`"
            ) from error

    def rollback(self) -> None:
        from psycopg import Rollback  # noqa: PLC0415 - optional

        self._leave(Rollback())
        self.connection.rollback()

    def _leave(self, error: BaseException | None = None) -> None:
        block, self._block = self._block, None
        if block is not None:
            block.__exit__(type(error) if error else None, error, None)

    def end(self) -> None:
        pass

    def when_given_back(self, act: Callable[[], object]) -> bool:  # noqa: ARG002 - nothing tells when it commits
        return False


class _Connection:
    """One of SQLAlchemy's, as are those below."""

    #: The event before a commit, on what the caller writes with.
    _committing = "commit"

    def __init__(self, connection: sqlalchemy.Connection | orm.Session | None) -> None:
        self.connection: Any = connection
        self._ending = False

    @property
    def _link(self) -> sqlalchemy.Connection:
        link: sqlalchemy.Connection = self.connection
        return link

    @property
    def dialect(self) -> str:
        return self._link.dialect.name

    def join(self) -> sqlalchemy.Connection:
        self.flush()
        return self._link

    def begin(self) -> None:
        from sqlalchemy import event  # noqa: PLC0415 - optional

        if not self._link.in_transaction():
            self._link.begin()
        _refuse_autocommit(self._link)
        event.listen(self.connection, self._committing, self._watch)

    def _watch(self, _: object) -> None:
        if not self._ending and not self.connection.in_nested_transaction():
            raise _early()

    def flush(self) -> None:
        pass

    def execute(self, statement: str, values: Mapping[str, object]) -> Done:
        from sqlalchemy import text  # noqa: PLC0415 - optional

        result = self._link.execute(text(statement), values)
        return Done(result.rowcount, [tuple(row) for row in result] if result.returns_rows else ())

    def psycopg(self) -> psycopg.Connection[Any] | None:
        return psycopg_behind(self._link)

    def commit(self) -> None:
        self._ending = True
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()

    def end(self) -> None:
        from sqlalchemy import event  # noqa: PLC0415 - optional

        if event.contains(self.connection, self._committing, self._watch):
            event.remove(self.connection, self._committing, self._watch)

    def when_given_back(self, act: Callable[[], object]) -> bool:
        from sqlalchemy import event  # noqa: PLC0415 - optional

        # After a commit and after a rollback, also of savepoints, and last of all: no event of a transaction is.
        self._link.info.setdefault(_WAITING, []).append(act)
        # On the pool, which engines share that are made for each request by `execution_options`.
        if not event.contains(self._link.engine.pool, "checkin", _given_back):
            event.listen(self._link.engine.pool, "checkin", _given_back)
        return True


class _Engine(_Connection):
    def __init__(self, engine: sqlalchemy.Engine) -> None:
        super().__init__(None)
        self._engine = engine

    def join(self) -> NoReturn:
        raise _unfit(self._engine)

    def begin(self) -> None:
        self.connection = self.connection or self._engine.connect()
        super().begin()

    def rollback(self) -> None:
        if self.connection is not None:
            super().rollback()

    def end(self) -> None:
        if self.connection is not None:
            super().end()
            self.connection.close()


class _Session(_Connection):
    _committing = "before_commit"

    @property
    def _link(self) -> sqlalchemy.Connection:
        link: sqlalchemy.Connection = self.connection.connection()
        return link

    def flush(self) -> None:
        self.connection.flush()


def _refuse_autocommit(link: sqlalchemy.Connection) -> None:
    chosen = link.get_execution_options().get("isolation_level") or getattr(
        link.dialect, "_on_connect_isolation_level", ""
    )
    driver: Any = link.connection.driver_connection
    by_itself = getattr(driver, "autocommit", False) is True
    if link.dialect.name == "sqlite" and driver.isolation_level is None:
        # Then nobody begins for us, unless the app does so itself, as SQLAlchemy's documentation tells.
        by_itself = not driver.in_transaction
    if chosen == "AUTOCOMMIT" or by_itself:
        raise ConfigurationError(
            "this connection commits each statement on its own: give run.transaction(...) one without AUTOCOMMIT"
        )


def _given_back(_: object, record: Any) -> None:  # noqa: ANN401 - SQLAlchemy's own
    for act in record.info.pop(_WAITING, ()):
        act()
