from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.rows import dict_row
from sqlalchemy import orm

from oncelery import ConfigurationError, insert_once
from oncelery.sql import batches
from sql.tickets import ddl, ticket


@pytest.fixture(params=[1, batches.FEW_VALUES + 1])
def few(request: pytest.FixtureRequest) -> int:
    """Give how many rows go as parameters, and how many by copy."""
    count: int = request.param
    return count


def test_names_are_only_names_whatever_is_in_them(raw: psycopg.Connection[Any], few: int) -> None:
    table, column, key = 'Tick"ets; %s', 'a "b", %(c)s', 'k"; DROP TABLE tickets --'
    raw.execute(b'CREATE SCHEMA "Main.t"')
    quoted = [f'"{name.replace(chr(34), chr(34) * 2)}"' for name in (table, key, column)]
    raw.execute('CREATE TABLE "Main.t".{} ({} text UNIQUE, {} int)'.format(*quoted).encode())

    for expected in (few, 0):
        rows = [{column: number} for number in range(few)]
        assert len(insert_once(raw, ("Main.t", table), rows, column, column=key).inserted) == expected
    raw.execute("CREATE SCHEMA archive")
    raw.execute("CREATE TABLE archive.tickets (LIKE tickets INCLUDING ALL)")
    assert insert_once(raw, "archive.tickets", [ticket(1)], "number").inserted
    with pytest.raises(psycopg.errors.UndefinedTable):
        insert_once(raw, "tickets; DROP TABLE tickets", [ticket(1)], "number")


def test_values_are_written_as_psycopg_writes_them(raw: psycopg.Connection[Any], few: int) -> None:
    raw.execute(
        "CREATE TABLE kinds (idempotency_key text UNIQUE, name text, at timestamptz, cost numeric, raw bytea,"
        " tags text[], facts jsonb, told jsonb)"
    )
    at = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    values = {"at": at, "cost": Decimal("1.10"), "raw": b"\0\xff", "tags": ["a", "b, \t\\ c"], "told": '{"a": 1}'}
    facts = psycopg.types.json.Jsonb({"nested": [1, None]})
    rows = [{"name": str(number), **values, "facts": facts} for number in range(few)]

    insert_once(raw, "kinds", rows, "name")

    cursor = raw.cursor(row_factory=dict_row)
    written = cursor.execute("SELECT at, cost, raw, tags, facts, told FROM kinds ORDER BY name LIMIT 1").fetchone()
    assert written == values | {"facts": {"nested": [1, None]}, "told": {"a": 1}}


def test_a_table_of_sqlalchemys_has_its_own_types(sqlite_engine: sa.Engine) -> None:
    class Base(orm.DeclarativeBase):
        pass

    class Reading(Base):
        __tablename__ = "readings"
        idempotency_key: orm.Mapped[str] = orm.mapped_column(primary_key=True)
        at: orm.Mapped[datetime]
        facts: orm.Mapped[dict[str, Any]] = orm.mapped_column(sa.JSON)

    Base.metadata.create_all(sqlite_engine)
    rows = [{"at": datetime(2026, 1, day), "facts": {"day": [day]}} for day in (1, 2, 1)]  # noqa: DTZ001

    with orm.Session(sqlite_engine) as session:
        result = insert_once(session, Reading, rows, "at")
        readings = session.scalars(sa.select(Reading).order_by(Reading.at)).all()

    assert (len(result.inserted), len(result.duplicates)) == (2, 1)
    assert [reading.facts for reading in readings] == [{"day": [1]}, {"day": [2]}]


def test_names_are_only_names_through_sqlalchemy_too(sqlite_engine: sa.Engine) -> None:
    table, column, key = 'Tick"ets; %s', 'a "b", :c %(d)s', 'k"; DROP TABLE tickets --'
    quoted = [f'"{name.replace(chr(34), chr(34) * 2)}"' for name in (table, key, column)]
    with sqlite_engine.connect() as connection:
        connection.exec_driver_sql("CREATE TABLE {} ({} text, {} int)".format(*quoted))
        with pytest.raises(ConfigurationError) as lacking:
            insert_once(connection, table, [{column: 1}], column, column=key)
        connection.exec_driver_sql(ddl(lacking.value))

        result = insert_once(connection, table, [{column: 1}, {column: 2}, {column: 1}], column, column=key)

    assert result.inserted == ({column: 1}, {column: 2})
