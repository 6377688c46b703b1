"""insert_once: a batch of rows, of which each gets into the table once, however often the batch is delivered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Generic, TypeAlias, TypeVar

from oncelery.canonical import canonical_json, fields_of
from oncelery.errors import ConfigurationError, FingerprintError, RowError
from oncelery.sql.batches import Batch, TableChoice, write
from oncelery.sql.callers import caller_of

Row = TypeVar("Row")

#: What a row is told apart by: its fingerprint alone, or the values of its key.
Key: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Insertion(Generic[Row]):
    """What became of a batch: each row is in one of the two, just as it was given, in the order given."""

    inserted: tuple[Row, ...]
    #: Rows whose key was in the table before, or earlier in the batch.
    duplicates: tuple[Row, ...]


def insert_once(
    target: object,
    table: TableChoice,
    rows: Iterable[Row],
    key: str | Iterable[str],
    *,
    column: str | None = "idempotency_key",
) -> Insertion[Row]:
    """Insert the rows whose key is not in the table yet, in the caller's transaction, and tell which they were.

    Nothing is committed; only a connection in autocommit commits, the whole batch at once. Rows go in as they are
    ordered. A rival that has inserted a key and not yet committed is waited for.

    Args:
        target: A connection or cursor of psycopg 3; a session or connection of SQLAlchemy 2, on PostgreSQL or SQLite.
        table: Its name as the database keeps it, with `schema.` in front if need be. With SQLAlchemy also a `Table` or
            a mapped class, whose types are then heeded.
        rows: Mappings of columns to values, all with the same columns. Dataclasses and pydantic models will do.
        key: The field or fields that make a row the one it is.
        column: Where the fingerprint of these fields is kept: a text column with a unique index. None when the table
            has a unique constraint on the key's own columns; the rows then go in as they are.

    Raises:
        RowError: a row is no mapping, has other fields than the first, or an empty key; the message says which row.
        FingerprintError: a value cannot be part of a key; the message says which, and of which row.
        ConfigurationError: the column or its unique index is missing, and here is the DDL that adds it; or the target
            is nothing that can be written through.
    """
    connection = caller_of(target).join()
    names = (key,) if isinstance(key, str) else tuple(key)
    given = list(rows)
    if not given:
        return Insertion(inserted=(), duplicates=())
    records = _records(given)
    _check(records[0], names, column)
    keys = _fingerprints(records, names) if column else _own_keys(records, names)
    firsts: dict[Key, int] = {}
    for index, each in enumerate(keys):
        firsts.setdefault(each, index)
    batch = _batch(table, [records[index] for index in firsts.values()], names)
    if column:
        batch = batch.with_fingerprints(column, [key for (key,) in firsts])
    new = _known(write(connection, batch), firsts)
    return Insertion(
        inserted=tuple(row for index, row in enumerate(given) if index in new),
        duplicates=tuple(row for index, row in enumerate(given) if index not in new),
    )


def _records(given: list[Row]) -> list[Mapping[str, Any]]:
    """Give each row as a mapping, all with the same fields."""
    records = [row if isinstance(row, dict | Mapping) else fields_of(row) for row in given]
    first = records[0]
    for index, record in enumerate(records):
        if record is None:
            kind = type(given[index]).__name__
            raise RowError(f"row {index} is a {kind}: give mappings of columns to values, dataclasses or models.")
        if first is not None and record.keys() != first.keys():
            more, less = sorted(record.keys() - first.keys()), sorted(first.keys() - record.keys())
            how = " and ".join([f"has {name!r}" for name in more] + [f"lacks {name!r}" for name in less])
            raise RowError(f"row {index} {how}, unlike row 0: all rows of a batch have the same fields.")
    return [record for record in records if record is not None]


def _check(record: Mapping[str, Any], names: tuple[str, ...], column: str | None) -> None:
    absent = [name for name in names if name not in record]
    if absent or not names:
        what = f"names {', '.join(map(repr, absent))}, which the rows do not have" if absent else "names nothing"
        raise ConfigurationError(f"`key=` {what}: name what tells rows apart, of {', '.join(record) or 'no fields'}.")
    if column in record:
        remedy = f"leave it out, or say key={column!r}, column=None to use it as it is"
        raise ConfigurationError(f"the rows have a field {column!r}, where their fingerprints are to go: {remedy}.")


def _fingerprints(records: list[Mapping[str, Any]], names: tuple[str, ...]) -> list[Key]:
    keys: list[Key] = []
    for index, record in enumerate(records):
        counted = {name: record[name] for name in names}
        if all(value is None or value == "" for value in counted.values()):
            raise _empty(index, names)
        try:
            keys.append((sha256(canonical_json(counted)).hexdigest(),))
        except FingerprintError as error:
            raise FingerprintError(f"row {index}: {error}") from None
    return keys


def _own_keys(records: list[Mapping[str, Any]], names: tuple[str, ...]) -> list[Key]:
    keys = [tuple([record[name] for name in names]) for record in records]
    for index, key in enumerate(keys):
        # NULL is equal to nothing, so such a row would get in every time.
        if None in key:
            raise _empty(index, [name for name, value in zip(names, key, strict=True) if value is None])
        try:
            hash(key)
        except TypeError:
            what = "a list or mapping is in its key; let a text column keep its fingerprint"
            raise RowError(f"row {index}: {what}.") from None
    return keys


def _empty(index: int, names: Iterable[str]) -> RowError:
    return RowError(f"row {index}: {', '.join(map(repr, names))} is empty, but rows are told apart by it.")


def _known(written: list[Key], firsts: Mapping[Key, int]) -> set[int]:
    """Give the index of each row that was written, by its key as the table keeps it."""
    known = {firsts[key] for key in written if key in firsts}
    strange = [key for key in written if key not in firsts]
    # An id or a date that was given as text comes back as what it is.
    texts = {canonical_json(key): index for key, index in firsts.items()} if strange else {}
    for key in strange:
        if (index := texts.get(canonical_json(key))) is None:
            raise ConfigurationError(
                f"the table keeps a key otherwise than it was given, as {key!r:.80}, so that new rows cannot be told "
                "from duplicates: give values as the table keeps them, or let a text column keep their fingerprint."
            )
        known.add(index)
    return known


def _batch(table: TableChoice, records: list[Mapping[str, Any]], names: tuple[str, ...]) -> Batch:
    columns = tuple(records[0])
    rows = [tuple([record[name] for name in columns]) for record in records]
    return Batch(table=table, columns=columns, rows=rows, unique=names)
