from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg_pool import ConnectionPool
from sqlalchemy import orm
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, create_async_engine

from oncelery import ConfigurationError, current_run, insert_once
from oncelery.sql import batches
from oncelery.testing.servers import PostgresServer
from sql.tickets import metadata, ticket, tickets

#: Longer than anything here takes on a busy machine; reached only by a test that fails.
SOON = 30.0


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


def test_an_asynchronous_session_may_run_it(postgres_engine: sa.Engine) -> None:
    async def insert_twice() -> list[int]:
        engine = create_async_engine(postgres_engine.url)
        async with AsyncSession(engine) as session:
            insert = partial(insert_once, table="tickets", rows=[ticket(1)], key="number")
            results = [await session.run_sync(insert) for _ in range(2)]
        await engine.dispose()
        return [len(result.inserted) for result in results]

    assert asyncio.run(insert_twice()) == [1, 0]


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
