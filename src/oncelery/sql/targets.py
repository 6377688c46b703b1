"""What a caller writes through: a connection of psycopg 3 or SQLAlchemy 2, or what stands for one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeAlias

from oncelery.errors import ConfigurationError

if TYPE_CHECKING:
    import psycopg
    import sqlalchemy

    #: A connection that is open, and in the caller's transaction or about to begin it.
    OpenConnection: TypeAlias = psycopg.Connection[Any] | sqlalchemy.Connection

#: What may be written through, as errors list it.
ACCEPTED = "a Connection or Cursor of psycopg 3, a Session or Connection of SQLAlchemy 2"


def connection_of(target: object) -> OpenConnection:
    """Give the connection that the caller's own statements use, so that ours are in the same transaction.

    What a session holds back is written first: rows may refer to it.

    Raises:
        ConfigurationError: the target is asynchronous, has no transaction of its own, or is nothing known; named.
    """
    # Whoever made the target has imported its library; nobody else needs to have it.
    if "psycopg" in sys.modules:
        import psycopg  # noqa: PLC0415 - optional

        if isinstance(target, psycopg.Cursor):
            return target.connection
        if isinstance(target, psycopg.Connection):
            return target
    if "sqlalchemy" in sys.modules:
        import sqlalchemy  # noqa: PLC0415 - optional
        from sqlalchemy import orm  # noqa: PLC0415 - optional

        if isinstance(target, orm.scoped_session):
            target = target()
        if isinstance(target, orm.Session):
            target.flush()
            return target.connection()
        if isinstance(target, sqlalchemy.Connection):
            return target
    raise refusal(target)


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


def refusal(target: object) -> ConfigurationError:
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
