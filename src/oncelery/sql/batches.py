"""Write a batch through a connection: INSERT ... ON CONFLICT DO NOTHING RETURNING, in few statements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from oncelery.errors import ConfigurationError
from oncelery.sql.callers import psycopg_behind

if TYPE_CHECKING:
    import psycopg
    import sqlalchemy
    from sqlalchemy import orm

    from oncelery.sql.callers import OpenConnection

#: `name`, `schema.name`, or the parts of it when one has a dot inside; with SQLAlchemy also a Table or a mapped class.
TableChoice: TypeAlias = "str | Sequence[str] | sqlalchemy.TableClause | type[orm.DeclarativeBase]"

#: Up to so many values go to PostgreSQL as parameters of one statement. More are copied into a temporary table first:
#: that costs 3 ms, and then takes less than a third of the time.
FEW_VALUES = 1_000

#: How PostgreSQL and SQLite say that a unique index is missing, and that a column is.
NO_UNIQUE_INDEX = ("42P10", "ON CONFLICT clause does not match")
NO_COLUMN = ("42703", "has no column named")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows for a table, and the columns whose unique index tells which of them it has."""

    table: TableChoice
    columns: tuple[str, ...]
    rows: list[tuple[object, ...]]
    unique: tuple[str, ...]
    #: The column that is there for fingerprints alone.
    fingerprint: str | None = None

    def with_fingerprints(self, column: str, fingerprints: Iterable[str]) -> Batch:
        """Tell the rows apart by a column of their fingerprints instead."""
        return replace(
            self,
            columns=(column, *self.columns),
            rows=[(one, *row) for one, row in zip(fingerprints, self.rows, strict=True)],
            unique=(column,),
            fingerprint=column,
        )


def write(connection: OpenConnection, batch: Batch) -> list[tuple[Any, ...]]:
    """Insert what the table does not have, and give the unique columns of each row that was inserted."""
    with _remedies(batch):
        # A table of SQLAlchemy's has types of its own, which psycopg knows nothing of.
        driver = psycopg_behind(connection) if isinstance(batch.table, str | Sequence) else None
        return _through_sqlalchemy(connection, batch) if driver is None else _through_psycopg(driver, batch)


def _through_psycopg(connection: psycopg.Connection[Any], batch: Batch) -> list[tuple[Any, ...]]:
    from psycopg import RawCursor  # noqa: PLC0415 - optional
    from psycopg.rows import tuple_row  # noqa: PLC0415 - optional

    alone = connection.transaction() if connection.autocommit else nullcontext()
    # A raw cursor, for which a percent sign in a name is nothing special.
    with alone, RawCursor(connection, row_factory=tuple_row) as cursor:
        write = _as_parameters if len(batch.rows) * len(batch.columns) <= FEW_VALUES else _by_copy
        return write(cursor, batch)


def _as_parameters(cursor: psycopg.RawCursor[tuple[Any, ...]], batch: Batch) -> list[tuple[Any, ...]]:
    width = len(batch.columns)
    places = [f"${place}" for place in range(1, len(batch.rows) * width + 1)]
    rows = ", ".join(f"({', '.join(places[start : start + width])})" for start in range(0, len(places), width))
    values = [value for row in batch.rows for value in row]
    return cursor.execute(_insert(batch, f"VALUES {rows}"), values).fetchall()


def _by_copy(cursor: psycopg.RawCursor[tuple[Any, ...]], batch: Batch) -> list[tuple[Any, ...]]:
    given = "pg_temp.oncelery_given"
    cursor.execute(f"CREATE TABLE {given} AS SELECT {_list(batch.columns)} FROM {_name(batch.table)} LIMIT 0".encode())  # noqa: S608 - names are quoted
    with cursor.copy(f"COPY {given} FROM STDIN".encode()) as copy:
        for row in batch.rows:
            copy.write_row(row)
    inserted = cursor.execute(_insert(batch, f"SELECT * FROM {given}")).fetchall()  # noqa: S608 - the same
    # Not left to the end of the transaction: the next batch may be in the same one.
    cursor.execute(f"DROP TABLE {given}".encode())
    return inserted


def _insert(batch: Batch, source: str) -> bytes:
    unique = _list(batch.unique)
    into = f"INSERT INTO {_name(batch.table)} ({_list(batch.columns)})"
    return f"{into} {source} ON CONFLICT ({unique}) DO NOTHING RETURNING {unique}".encode()


def _through_sqlalchemy(connection: OpenConnection, batch: Batch) -> list[tuple[Any, ...]]:
    import sqlalchemy as sa  # noqa: PLC0415 - optional
    from sqlalchemy.dialects import postgresql, sqlite  # noqa: PLC0415 - optional

    dialects: dict[str, Any] = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}
    if not isinstance(connection, sa.Connection):
        raise ConfigurationError("through psycopg a table is written to by its name: give that as a text.")
    if (dialect := connection.dialect.name) not in dialects:
        raise ConfigurationError(f"insert_once writes to PostgreSQL and SQLite, not to {dialect}.")
    table: Any = getattr(batch.table, "__table__", batch.table)
    if isinstance(table, str | Sequence):
        *schema, name = _parts(table)
        table = sa.table(name, *map(sa.column, batch.columns), schema=".".join(schema) or None)
    unique = [table.c[name] for name in batch.unique]
    insert = dialects[dialect](table).on_conflict_do_nothing(index_elements=unique).returning(*unique)
    rows = [dict(zip(batch.columns, row, strict=True)) for row in batch.rows]
    return [tuple(row) for row in connection.execute(insert, rows)]


@contextmanager
def _remedies(batch: Batch) -> Iterator[None]:
    """Tell what is missing in the table together with the DDL that adds it; let every other error pass."""
    try:
        yield
    except Exception as error:
        cause = getattr(error, "orig", error)
        # Not by the words alone, because PostgreSQL speaks the language of its administrator.
        code = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
        told = f"{code} {str(cause).partition(chr(10))[0]}"
        if any(sign in told for sign in NO_UNIQUE_INDEX):
            raise _lacks(f"a unique index on {_list(batch.unique)}", batch, _unique_index(batch)) from error
        if batch.fingerprint and batch.fingerprint in told and any(sign in told for sign in NO_COLUMN):
            column = _list([batch.fingerprint])
            add = f"ALTER TABLE {_name(batch.table)} ADD COLUMN {column} text;"
            raise _lacks(f"a column {column}", batch, f"{add}\n{_unique_index(batch)}") from error
        raise


def _lacks(what: str, batch: Batch, ddl: str) -> ConfigurationError:
    return ConfigurationError(f"table {_name(batch.table)} lacks {what}, which tells duplicates. Add it:\n{ddl}")


def _unique_index(batch: Batch) -> str:
    index = "_".join([_parts(batch.table)[-1], *batch.unique, "once"])
    return f"CREATE UNIQUE INDEX {_list([index])} ON {_name(batch.table)} ({_list(batch.unique)});"


def _parts(table: TableChoice) -> list[str]:
    """Give a table's name, after its schema if it has one."""
    if isinstance(table, str):
        return table.split(".")
    if isinstance(table, Sequence):
        return [*table]
    clause: Any = getattr(table, "__table__", table)
    return [name for name in (clause.schema, clause.name) if name]


def _name(table: TableChoice) -> str:
    return ".".join(_list([part]) for part in _parts(table))


def _list(names: Iterable[str]) -> str:
    """Write names so that each is one name, whatever is in it; PostgreSQL and SQLite quote alike."""
    return ", ".join('"' + name.replace('"', '""') + '"' for name in names)
