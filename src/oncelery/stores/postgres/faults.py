"""What a driver's error means for the ledger. Nothing of psycopg leaves this folder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import errors
from psycopg_pool import PoolTimeout

from oncelery.errors import ConfigurationError, OnceleryError, StoreUnavailableError

#: The ledger's functions or tables are not there, or not of this version.
_NOT_MIGRATED = (errors.UndefinedTable, errors.UndefinedFunction, errors.UndefinedColumn, errors.InvalidSchemaName)

#: Rivals that PostgreSQL has sent back; one that goes second finds what the first has written.
_RIVALRY = (errors.SerializationFailure, errors.DeadlockDetected, errors.UniqueViolation)

#: The server is ending sessions or starting up, or the connection is lost.
_LOSS = (errors.AdminShutdown, errors.CrashShutdown, errors.CannotConnectNow, errors.IdleSessionTimeout)

#: While a connection is made, libpq tells no code, only what the server says.
_REFUSED = re.compile(
    r'authentication failed|(database|role) ".*" does not exist|no pg_hba\.conf entry|no password supplied'
    r"|permission denied|not permitted to log in|does not support SSL|certificate verify failed|root certificate"
)


@contextmanager
def store_errors() -> Iterator[None]:
    """Say what to do about it: StoreUnavailableError (try again), or ConfigurationError (set something right)."""
    try:
        yield
    except psycopg.Error as error:
        raise _meaning(error) from error


def may_be_sent_again(error: psycopg.Error) -> bool:
    """Whether the same statement on another connection is likely to succeed soon."""
    if isinstance(error, _RIVALRY + _LOSS):
        return True
    if isinstance(error, PoolTimeout):
        return False
    lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and error.sqlstate is None
    return (lost and not _REFUSED.search(str(error))) or (error.sqlstate or "").startswith("08")


def connection_is_lost(error: psycopg.Error) -> bool:
    """Whether the connection can be used no more."""
    return may_be_sent_again(error) and not isinstance(error, _RIVALRY)


def _meaning(error: psycopg.Error) -> OnceleryError:
    if isinstance(error, _NOT_MIGRATED):
        return ConfigurationError(
            "PostgreSQL has no ledger of this version here. Run `oncelery migrate`, or do not say `migrate=false`."
        )
    if isinstance(error, errors.InFailedSqlTransaction):
        return OnceleryError("an earlier error has ended your transaction, and was passed over: let it be raised")
    refused = error.sqlstate is None and _REFUSED.search(str(error))
    if refused or isinstance(error, errors.InsufficientPrivilege | errors.InvalidAuthorizationSpecification):
        return ConfigurationError(f"PostgreSQL refuses this user, database or schema: {_first_line(error)}")
    if isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError, *_RIVALRY)):
        return StoreUnavailableError(f"PostgreSQL did not answer: {_first_line(error)}")
    return OnceleryError(f"PostgreSQL refuses these values: {_first_line(error)}")


def _first_line(error: psycopg.Error) -> str:
    return str(error).partition("\n")[0]
