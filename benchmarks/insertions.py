"""What does it cost to insert a batch of rows once, and to know which were new?"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import psycopg

from benchmarks.laboratory import Laboratory, say
from benchmarks.measure import Contender, compare
from benchmarks.report import Table, figures
from oncelery.sql.insert_once import insert_once

Row = dict[str, Any]
Connection = psycopg.Connection[Any]
Insert = Callable[[Connection, list[Row]], set[str]]

TABLE = """
CREATE TABLE tickets (
    ticket text, site text, asset text, priority int, opened_at timestamptz, note text, idempotency_key text PRIMARY KEY
)
"""
COLUMNS = "ticket, site, asset, priority, opened_at, note, idempotency_key"
ON_CONFLICT = "ON CONFLICT (idempotency_key) DO NOTHING RETURNING idempotency_key"
PLACES = "%s, %s, %s, %s, %s, %s, %s"
ONE_ROW = f"INSERT INTO tickets ({COLUMNS}) VALUES ({PLACES}) {ON_CONFLICT}".encode()  # noqa: S608 - constants
ARRAYS = "%b::text[], %b::text[], %b::text[], %b::int[], %b::timestamptz[], %b::text[], %b::text[]"
ALL_ROWS = f"INSERT INTO tickets ({COLUMNS}) SELECT * FROM unnest({ARRAYS}) {ON_CONFLICT}".encode()  # noqa: S608

#: The fields that make a ticket the one it is.
KEY = ("site", "ticket")


def ask(laboratory: Laboratory) -> Table:
    """Compare with what one writes by hand: a pipeline of statements of one row each, and arrays of columns."""
    size = min(10_000, laboratory.effort.jobs)
    # Each batch is long enough to be a block.
    effort = replace(laboratory.effort, pairs=max(2, laboratory.effort.pairs // 3))
    note = "By hand a key is json.dumps(sort_keys=True) and SHA-256. Where keys are given, neither side makes any."
    table = Table(title=f"Inserting {size:,} rows once", note=note)
    for site in (site for site in laboratory.sites if site.name.startswith("PostgreSQL")):
        with psycopg.connect(site.tcp) as connection:
            connection.execute(TABLE)
            for keys, known in (("made", False), ("made", True), ("given", False)):
                rows = partial(batches, connection, size, known=known, with_keys=keys == "given")
                for rival in (executemany, unnest):
                    say(f"inserting once: beside {rival.__name__}, keys {keys}")
                    act = ours if keys == "made" else ours_without_keys
                    mine, theirs = (
                        Contender(rows, partial(each, connection)) for each in (act, partial(by_hand, rival))
                    )
                    case = {"by hand": rival.__name__, "keys": keys, "rows": "duplicates" if known else "new"}
                    table.rows.append({**case, **figures(compare(mine, theirs, effort))})
    return table


def batches(connection: Connection, size: int, number: int, *, known: bool, with_keys: bool) -> Iterator[list[Row]]:
    """Give batches for a table that has none of their rows, or all."""
    connection.execute("TRUNCATE tickets")
    for _ in range(number):
        rows = tickets(size)
        if known:
            # Under the keys of both recipes.
            insert_once(connection, "tickets", rows, KEY)
            unnest(connection, keyed(rows))
        yield keyed(rows) if with_keys else rows
    connection.commit()


def tickets(size: int) -> list[Row]:
    """Make tickets that nobody has seen."""
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    return [
        {
            "ticket": str(uuid4()),
            "site": "north",
            "asset": f"pump-{number % 97}",
            "priority": number % 5,
            "opened_at": noon + timedelta(seconds=number),
            "note": "The bearing is worn; to be replaced before the next run.",
        }
        for number in range(size)
    ]


def ours(connection: Connection, rows: list[Row]) -> None:
    """Insert what is new."""
    insert_once(connection, "tickets", rows, KEY)
    connection.commit()


def ours_without_keys(connection: Connection, rows: list[Row]) -> None:
    """Insert what is new, by a key that the rows have."""
    insert_once(connection, "tickets", rows, "idempotency_key", column=None)
    connection.commit()


def by_hand(insert: Insert, connection: Connection, rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """Insert what is new, and tell it from the duplicates."""
    rows = rows if "idempotency_key" in rows[0] else keyed(rows)
    new = insert(connection, rows)
    connection.commit()
    return (
        [row for row in rows if row["idempotency_key"] in new],
        [row for row in rows if row["idempotency_key"] not in new],
    )


def keyed(rows: list[Row]) -> list[Row]:
    """Make a key for each row."""
    return [{**row, "idempotency_key": key_of(row)} for row in rows]


def key_of(row: Row) -> str:
    """Make a key as one does by hand."""
    return hashlib.sha256(json.dumps({name: row[name] for name in KEY}, sort_keys=True).encode()).hexdigest()


def executemany(connection: Connection, rows: list[Row]) -> set[str]:
    """Send a statement for each row, without waiting for one before the next."""
    with connection.cursor() as cursor:
        cursor.executemany(ONE_ROW, [tuple(row.values()) for row in rows], returning=True)
        return {key for result in cursor.results() for (key,) in result}


def unnest(connection: Connection, rows: list[Row]) -> set[str]:
    """Send one statement, with an array for each column."""
    columns = [list(column) for column in zip(*(row.values() for row in rows), strict=True)]
    return {key for (key,) in connection.execute(ALL_ROWS, columns)}
