from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from hashlib import sha256
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from pydantic import BaseModel

from oncelery import ConfigurationError, FingerprintError, RowError, insert_once
from sql.tickets import Desk, ddl, ticket, tickets


def test_rows_that_the_table_has_are_told_from_those_that_it_has_not(desk: Desk) -> None:
    assert desk.file(3, 1, 2) == ([3, 1, 2], [])
    assert desk.file(1, 4, 3) == ([4], [1, 3])
    assert desk.file(1, 4, 3) == ([], [1, 4, 3])

    assert desk.filed() == [3, 1, 2, 4]


def test_of_duplicates_inside_a_batch_the_first_is_inserted(desk: Desk) -> None:
    rows = [{**ticket(1), "note": "first"}, ticket(2) | {"note": ""}, {**ticket(1), "note": "second"}]

    result = insert_once(desk.target, desk.table, rows, ("number", "site"))

    assert result.inserted[0] is rows[0]
    assert result.duplicates == (rows[2],)
    assert desk.execute("SELECT note FROM tickets WHERE number = 1").scalar_one() == "first"


def test_an_empty_batch_inserts_nothing(desk: Desk) -> None:
    assert desk.file() == ([], [])


def test_a_table_that_is_unique_on_the_keys_own_columns_needs_no_other(desk: Desk) -> None:
    desk.file(1, column=None)

    assert desk.file(1, 2, 2, column=None) == ([2], [1, 2])
    assert desk.execute("SELECT count(idempotency_key) FROM tickets").scalar_one() == 0


def test_a_row_that_breaks_another_constraint_raises(desk: Desk) -> None:
    desk.file(1)

    with pytest.raises((psycopg.errors.UniqueViolation, sa.exc.IntegrityError)):
        insert_once(desk.target, desk.table, [{**ticket(1), "note": "another key"}], "note")


def test_what_is_rolled_back_can_be_inserted_again(desk: Desk) -> None:
    desk.file(1)

    desk.connection.rollback()

    assert desk.filed() == []
    assert desk.file(1) == ([1], [])


def test_without_a_unique_index_the_error_has_the_ddl_that_adds_it(desk: Desk) -> None:
    desk.execute("ALTER TABLE tickets RENAME TO old")
    desk.execute("CREATE TABLE tickets (id serial, idempotency_key text, site text, number int)")
    desk.execute("SAVEPOINT before")
    with pytest.raises(ConfigurationError, match=r'"tickets" lacks a unique index on "idempotency_key"') as lacking:
        desk.file(1)
    desk.execute("ROLLBACK TO before")

    desk.execute(ddl(lacking.value))

    assert desk.file(1) == ([1], [])


def test_without_the_column_the_error_has_the_ddl_that_adds_it(desk: Desk) -> None:
    desk.execute("ALTER TABLE tickets RENAME TO old")
    desk.execute("CREATE TABLE tickets (id serial, site text, number int)")
    desk.execute("SAVEPOINT before")
    with pytest.raises(ConfigurationError, match='"tickets" lacks a column "idempotency_key"') as lacking:
        desk.file(1)
    desk.execute("ROLLBACK TO before")

    for statement in ddl(lacking.value).splitlines():
        desk.execute(statement)

    assert desk.file(1) == ([1], [])


def test_a_column_that_the_rows_name_wrongly_is_the_databases_own_error(connection: sa.Connection) -> None:
    with pytest.raises(psycopg.errors.UndefinedColumn, match="colour"):
        insert_once(connection, "tickets", [{"number": 1, "colour": "red"}], "number")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([ticket(1), {"site": "north", "no": 2}], "row 1 has 'no' and lacks 'number', unlike row 0"),
        ([ticket(1), ("north", 2)], "row 1 is a tuple: give mappings"),
        ([("north", 2)], "row 0 is a tuple: give mappings"),
        ([ticket(1), {"site": "", "number": None}], "row 1: 'site', 'number' is empty"),
    ],
)
def test_a_row_that_cannot_be_inserted_is_named(connection: sa.Connection, rows: list[Any], message: str) -> None:
    with pytest.raises(RowError, match=message):
        insert_once(connection, "tickets", rows, ("site", "number"))


def test_null_is_equal_to_nothing_so_it_cannot_be_in_a_key_of_the_tables_own(connection: sa.Connection) -> None:
    rows = [{"site": None, "number": 1}]

    assert insert_once(connection, "tickets", rows, ("site", "number")).inserted
    with pytest.raises(RowError, match="row 0: 'site' is empty"):
        insert_once(connection, "tickets", rows, ("site", "number"), column=None)


@pytest.mark.parametrize(
    ("key", "column", "message"),
    [
        ("colour", "idempotency_key", "`key=` names 'colour', which the rows do not have: .* of site, number"),
        ((), "idempotency_key", "`key=` names nothing"),
        ("number", "site", "the rows have a field 'site', where their fingerprints are to go"),
    ],
)
def test_a_wrong_choice_is_told(connection: sa.Connection, key: Any, column: str, message: str) -> None:  # noqa: ANN401
    with pytest.raises(ConfigurationError, match=message):
        insert_once(connection, "tickets", [ticket(1)], key, column=column)


def test_a_value_that_has_no_canonical_form_is_named_by_its_row_and_field(connection: sa.Connection) -> None:
    with pytest.raises(FingerprintError, match="row 1: argument 'number' is NaN"):
        insert_once(connection, "tickets", [ticket(1), ticket(2) | {"number": float("nan")}], "number")


def test_a_key_of_the_tables_own_may_be_given_as_text(raw: psycopg.Connection[Any]) -> None:
    raw.execute("CREATE TABLE visits (id uuid, day date, UNIQUE (id, day))")
    rows = [{"id": "0f8fad5b-d9cb-469f-a165-70867728950e", "day": f"2026-01-0{day}"} for day in (1, 2)]

    insert_once(raw, "visits", rows[:1], ("id", "day"), column=None)

    assert insert_once(raw, "visits", rows, ("id", "day"), column=None).inserted == (rows[1],)


def test_values_that_a_column_keeps_otherwise_are_no_key_of_the_tables_own(raw: psycopg.Connection[Any]) -> None:
    raw.execute("CREATE TABLE prices (price numeric(8, 2) UNIQUE)")

    assert insert_once(raw, "prices", [{"price": Decimal("1.5")}], "price", column=None).inserted
    with pytest.raises(ConfigurationError, match=r"keeps a key otherwise than it was given, as \(Decimal\('1.01'\),\)"):
        insert_once(raw, "prices", [{"price": Decimal("1.005")}], "price", column=None)


def test_a_list_is_no_key_of_the_tables_own(connection: sa.Connection) -> None:
    with pytest.raises(RowError, match="row 1: a list or mapping is in its key"):
        insert_once(connection, "tickets", [ticket(1), {"site": ["north"], "number": 2}], "site", column=None)


def test_dataclasses_and_models_are_rows_too(connection: sa.Connection) -> None:
    @dataclass
    class Ticket:
        number: int

    class Model(BaseModel):
        number: int

    first, second = Ticket(1), Model(number=1)
    rows: list[Ticket | Model] = [first, second]

    result = insert_once(connection, "tickets", rows, "number")

    assert result.inserted == (first,)
    assert result.duplicates == (second,)


def test_the_key_of_a_row_is_the_same_in_every_release(connection: sa.Connection) -> None:
    insert_once(connection, "tickets", [ticket(7)], ("number", "site"))

    kept = connection.execute(sa.select(tickets.c.idempotency_key)).scalar_one()
    assert kept == sha256(b'{"number":7,"site":"north"}').hexdigest()
