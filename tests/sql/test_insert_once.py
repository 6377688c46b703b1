from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from hashlib import sha256
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool
from pydantic import BaseModel
from sqlalchemy import orm
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, create_async_engine

from oncelery import ConfigurationError, FingerprintError, RowError, current_run, insert_once
from oncelery.sql import batches
from oncelery.testing.servers import PostgresServer

#: Longer than anything here takes on a busy machine; reached only by a test that fails.
SOON = 30.0

metadata = sa.MetaData()
tickets = sa.Table(
    "tickets",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("idempotency_key", sa.Text, unique=True),
    sa.Column("site", sa.Text),
    sa.Column("number", sa.Integer),
    sa.Column("note", sa.Text, server_default="none"),
    sa.UniqueConstraint("site", "number"),
)


@dataclass(frozen=True, kw_only=True)
class Desk:
    """A way to the tickets."""

    target: Any
    connection: sa.Connection
    table: Any = "tickets"

    def file(self, *numbers: int, **options: Any) -> tuple[list[int], list[int]]:  # noqa: ANN401
        """File tickets, and tell the numbers of those inserted and of the duplicates."""
        choices: dict[str, Any] = {"key": ("site", "number"), **options}
        result = insert_once(self.target, self.table, map(ticket, numbers), **choices)
        return [row["number"] for row in result.inserted], [row["number"] for row in result.duplicates]

    def execute(self, statement: str) -> Any:  # noqa: ANN401
        return self.connection.exec_driver_sql(statement)

    def filed(self) -> list[int]:
        return [number for (number,) in self.execute("SELECT number FROM tickets ORDER BY id")]


@pytest.fixture(scope="module")
def postgres_engine(postgres: PostgresServer) -> Iterator[sa.Engine]:
    engine = sa.create_engine(postgres.create_database().replace("postgresql:", "postgresql+psycopg:"))
    metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def sqlite_engine() -> Iterator[sa.Engine]:
    engine = sa.create_engine("sqlite://")
    metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def connection(postgres_engine: sa.Engine) -> Iterator[sa.Connection]:
    """Give a connection whose work is rolled back at the end."""
    with postgres_engine.connect() as connection:
        yield connection


@pytest.fixture
def raw(connection: sa.Connection) -> psycopg.Connection[Any]:
    """Give the same connection as psycopg knows it."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    return driver


WAYS: dict[str, Callable[[sa.Connection], Any]] = {
    "psycopg, as parameters": lambda connection: connection.connection.driver_connection,
    "psycopg, by copy": lambda connection: connection.connection.driver_connection,
    "a cursor": lambda connection: connection.connection.driver_connection.cursor(row_factory=dict_row),  # type: ignore[union-attr]
    "SQLAlchemy's connection": lambda connection: connection,
    "SQLAlchemy's session": orm.Session,
    "SQLAlchemy's session, scoped": lambda connection: orm.scoped_session(orm.sessionmaker(connection)),
    "SQLAlchemy's table": lambda connection: connection,
    "SQLite": lambda connection: connection,
    "SQLite, SQLAlchemy's table": orm.Session,
}


@pytest.fixture(params=WAYS)
def desk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """Give each way to a table of tickets that is empty."""
    way = request.param
    if "copy" in way:
        monkeypatch.setattr(batches, "FEW_VALUES", 0)
    engine = request.getfixturevalue("sqlite_engine" if "SQLite" in way else "postgres_engine")
    with engine.connect() as connection:
        if "SQL" not in way:
            connection.begin()  # SQLAlchemy does not see what psycopg does, and would roll nothing back
        table = tickets if "table" in way else "tickets"
        yield Desk(target=WAYS[way](connection), connection=connection, table=table)


def ticket(number: int) -> dict[str, Any]:
    return {"site": "north", "number": number}


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


def ddl(error: Exception) -> str:
    return str(error).partition("Add it:\n")[2]


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


@pytest.fixture(params=[1, batches.FEW_VALUES + 1])
def few(request: pytest.FixtureRequest) -> int:
    """Give how many rows go as parameters, and how many by copy."""
    count: int = request.param
    return count


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


def test_rows_are_inserted_after_what_the_session_holds_back(postgres_engine: sa.Engine) -> None:
    class Base(orm.DeclarativeBase):
        pass

    class Site(Base):
        __tablename__ = "sites"
        name: orm.Mapped[str] = orm.mapped_column(primary_key=True)

    with orm.Session(postgres_engine) as session:
        session.execute(sa.text("CREATE TABLE sites (name text PRIMARY KEY)"))
        session.execute(sa.text("ALTER TABLE tickets ADD FOREIGN KEY (site) REFERENCES sites"))
        session.add(Site(name="north"))

        assert insert_once(session, "tickets", [ticket(1)], "number").inserted


def test_nothing_is_committed_but_by_the_caller(postgres: PostgresServer) -> None:
    url = postgres.create_database()
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    metadata.create_all(engine)

    with psycopg.connect(url) as rival, engine.connect() as connection, closing(psycopg.connect(url)) as raw:

        def seen() -> int:
            with rival.transaction():
                (count,) = rival.execute("SELECT count(*) FROM tickets").fetchone() or (0,)
            return int(count)

        insert_once(connection, "tickets", [ticket(1)], "number")
        insert_once(raw, "tickets", [ticket(2)], "number")
        assert seen() == 0
        raw.commit()
        assert seen() == 1
        connection.commit()
        assert seen() == 2
        raw.autocommit = True
        insert_once(raw, "tickets", map(ticket, range(3, batches.FEW_VALUES)), "number")
        assert seen() == batches.FEW_VALUES - 1
    engine.dispose()


def test_a_rival_that_has_not_committed_yet_is_waited_for(postgres: PostgresServer) -> None:
    url = postgres.create_database()
    with psycopg.connect(url) as first, psycopg.connect(url) as second:
        first.execute("CREATE TABLE tickets (idempotency_key text UNIQUE, number int)")
        first.commit()
        insert_once(first, "tickets", [{"number": 1}], "number")
        results: list[Any] = []
        rows = [{"number": number} for number in range(1, 3)]
        rival = threading.Thread(target=lambda: results.append(insert_once(second, "tickets", rows, "number")))

        rival.start()
        with psycopg.connect(url, autocommit=True) as looking:
            waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            while looking.execute(waits.encode()).fetchone() is None:
                assert rival.is_alive()
        first.commit()
        rival.join(SOON)

        assert [row["number"] for row in results[0].inserted] == [2]
        assert [row["number"] for row in results[0].duplicates] == [1]


def test_tens_of_thousands_of_rows_take_few_statements(
    raw: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [ticket(number) for number in range(30_000)]
    insert_once(raw, "tickets", rows[::3], "number")
    statements: list[bytes] = []
    execute = psycopg.RawCursor.execute

    def noted(cursor: Any, statement: bytes, *values: Any) -> Any:  # noqa: ANN401
        statements.append(statement)
        return execute(cursor, statement, *values)

    monkeypatch.setattr(psycopg.RawCursor, "execute", noted)
    result = insert_once(raw, "tickets", rows, "number")

    assert len(statements) < 4
    assert result.duplicates == tuple(rows[::3])
    assert len(result.inserted) == 20_000


def test_what_cannot_be_written_through_is_refused_by_name(postgres: PostgresServer, sqlite_engine: sa.Engine) -> None:
    async_engine = create_async_engine(postgres.url.replace("postgresql:", "postgresql+psycopg:"))
    asynchronous = [
        AsyncSession(async_engine),
        async_engine,
        async_engine.connect(),
        async_scoped_session(lambda: AsyncSession(async_engine), scopefunc=lambda: 1),  # type: ignore[arg-type]
    ]
    pool = ConnectionPool(postgres.url, open=False)

    def refuse(target: object, message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            insert_once(target, "tickets", [], "number")

    for target in asynchronous:
        refuse(target, f"sqlalchemy's {type(target).__name__} is asynchronous")
    asyncio.run(with_async_connection(postgres.url, partial(refuse, message="psycopg's AsyncConnection is async")))
    refuse(sqlite_engine, "sqlalchemy's Engine makes connections")
    refuse(pool, "psycopg_pool's ConnectionPool makes connections")
    refuse("postgresql://", "builtins's str is none; give a Connection or Cursor of psycopg 3")


async def with_async_connection(url: str, use: Callable[[object], None]) -> None:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        use(connection)


def test_other_databases_are_refused_by_name(sqlite_engine: sa.Engine) -> None:
    with sqlite_engine.connect() as connection:
        connection.dialect.name = "mysql"

        with pytest.raises(ConfigurationError, match="writes to PostgreSQL and SQLite, not to mysql"):
            insert_once(connection, "tickets", [ticket(1)], "number")


def test_psycopg_takes_a_table_by_its_name(raw: psycopg.Connection[Any]) -> None:
    with pytest.raises(ConfigurationError, match="through psycopg a table is written to by its name"):
        insert_once(raw, tickets, [ticket(1)], "number")


def test_a_batch_may_be_committed_together_with_its_job(postgres: PostgresServer) -> None:
    url = postgres.create_database()
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE tickets (idempotency_key text UNIQUE, number int)")
        connection.commit()
        rows = [{"number": number} for number in range(batches.FEW_VALUES)]

        with current_run().transaction(connection):
            insert_once(connection, "tickets", rows, "number")
        connection.rollback()

        assert connection.execute("SELECT count(*) FROM tickets").fetchone() == (len(rows),)
