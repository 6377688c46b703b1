"""The block of `run.transaction(...)`: what may be done in it and around it, what it costs, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import psycopg
import pytest
import sqlalchemy
from celery.exceptions import Retry
from guarded.books import ORDER, pay
from sqlalchemy import orm
from sqlalchemy.ext.asyncio import AsyncSession

from oncelery import ConfigurationError, current_run
from oncelery.job import State
from oncelery.sql import inbox
from oncelery.testing.failpoints import Failpoint, armed
from sql.shop import TARGETS, Shop, deliver_all, state

IsolationLevel = Literal["REPEATABLE READ", "SERIALIZABLE"]

AUTOCOMMIT: Any = {"isolation_level": "AUTOCOMMIT"}


# What the block is


def test_what_a_task_returns_after_the_block_must_be_what_was_recorded(shop: Shop) -> None:
    def charge(order: str) -> str:
        with shop.books.target("session") as target, current_run().transaction(target) as tx:
            pay(tx.connection, order)
        return order

    job_id = shop.task(charge).delay(ORDER).id

    delivered = shop.hand.deliver()

    assert isinstance(delivered.value, ConfigurationError)
    assert "tx.result" in str(delivered.value)
    assert shop.is_paid_once
    assert state(shop, job_id) is State.COMPLETED


def test_a_task_may_return_what_it_has_recorded(shop: Shop) -> None:
    def charge(order: str) -> Any:  # noqa: ANN401 - what was set
        with shop.books.target("session") as target, current_run().transaction(target) as tx:
            pay(tx.connection, order)
            tx.result = {"paid": order}
            return tx.result

    shop.task(charge).delay(ORDER)

    assert shop.hand.deliver().value == {"paid": ORDER}


@pytest.mark.parametrize("error", [ValueError("late"), Retry("again")])
def test_an_error_after_the_block_is_told_and_changes_nothing(shop: Shop, error: Exception) -> None:
    def charge(order: str) -> None:
        with shop.books.target("session") as target, current_run().transaction(target) as tx:
            pay(tx.connection, order)
            tx.result = "done"
        raise error

    job_id = shop.task(charge).delay(ORDER).id

    delivered = shop.hand.deliver()

    assert delivered.state == ("RETRY" if isinstance(error, Retry) else "FAILURE")
    assert shop.is_paid_once
    assert state(shop, job_id) is State.COMPLETED


def test_a_second_block_is_refused(shop: Shop) -> None:
    def charge(order: str) -> None:
        for _ in range(2):
            with shop.books.target("session") as target, current_run().transaction(target) as tx:
                pay(tx.connection, order)

    shop.task(charge).delay(ORDER)

    assert "put all its writes into that one block" in str(shop.hand.deliver().value)
    assert shop.is_paid_once


def test_a_second_target_inside_the_block_is_refused_and_nothing_is_written(shop: Shop) -> None:
    def charge(order: str) -> None:
        run = current_run()
        with shop.books.target("session") as session, run.transaction(session) as tx:
            pay(tx.connection, order)
            with shop.books.target("psycopg") as other, run.transaction(other) as second:
                pay(second.connection, order)

    shop.task(charge).delay(ORDER)

    assert "a run has one transaction" in str(shop.hand.deliver().value)
    assert shop.is_unpaid


def test_a_block_on_the_same_target_inside_the_block_is_part_of_it(shop: Shop) -> None:
    def charge(order: str) -> None:
        run = current_run()
        with shop.books.target("session") as session, run.transaction(session), run.transaction(session) as tx:
            pay(tx.connection, order)

    shop.task(charge).delay(ORDER)

    shop.hand.deliver()

    assert shop.is_paid_once


def test_a_block_inside_that_fails_undoes_the_whole_even_if_the_error_is_caught(shop: Shop) -> None:
    def charge(order: str) -> None:
        run = current_run()
        with shop.books.target("session") as session, run.transaction(session):
            with suppress(ZeroDivisionError), run.transaction(session) as tx:
                pay(tx.connection, order)
                _ = 1 // 0
            pay(session, order)

    job_id = shop.task(charge).delay(ORDER).id

    shop.hand.deliver()

    assert shop.is_unpaid
    assert state(shop, job_id) is State.BURIED


@pytest.mark.parametrize("kind", TARGETS)
def test_a_commit_inside_the_block_is_refused_and_nothing_is_written(shop: Shop, kind: str) -> None:
    def charge(order: str) -> None:
        with shop.books.target(kind) as target, current_run().transaction(target) as tx:
            pay(tx.connection, order)
            tx.connection.commit()

    shop.task(charge).delay(ORDER)

    assert isinstance(shop.hand.deliver().value, ConfigurationError | psycopg.ProgrammingError)
    assert shop.is_unpaid


@pytest.mark.parametrize("kind", ["connection", "session"])
def test_a_savepoint_inside_the_block_may_come_and_go(shop: Shop, kind: str) -> None:
    def charge(order: str) -> None:
        with shop.books.target(kind) as target, current_run().transaction(target) as tx:
            with tx.connection.begin_nested():
                pay(tx.connection, order)
            nested = tx.connection.begin_nested()
            pay(tx.connection, "undone")
            nested.rollback()

    shop.task(charge).delay(ORDER)

    shop.hand.deliver()

    assert shop.is_paid_once


@pytest.mark.parametrize("kind", ["psycopg", "connection", "session"])
def test_what_was_read_before_the_block_does_not_disturb_it(shop: Shop, kind: str) -> None:
    def charge(order: str) -> None:
        with shop.books.target(kind) as target:
            target.execute("SELECT 1" if kind == "psycopg" else sqlalchemy.text("SELECT 1"))
            with current_run().transaction(target) as tx:
                pay(tx.connection, order)

    shop.task(charge).delay(ORDER)

    shop.hand.deliver()

    assert shop.is_paid_once


@pytest.mark.parametrize("kind", ["connection", "session"])
def test_a_transaction_that_the_caller_has_begun_is_committed_too(shop: Shop, kind: str) -> None:
    def charge(order: str) -> None:
        with shop.books.target(kind) as target, target.begin(), current_run().transaction(target) as tx:
            pay(tx.connection, order)

    job_id = shop.task(charge).delay(ORDER).id

    shop.hand.deliver()

    assert shop.is_paid_once
    assert state(shop, job_id) is State.COMPLETED


def test_a_block_of_psycopg_around_it_is_refused_and_nothing_is_written(shop: Shop) -> None:
    def charge(order: str) -> None:
        with (
            shop.books.target("psycopg") as connection,
            connection.transaction(),
            current_run().transaction(connection) as tx,
        ):
            pay(tx.connection, order)

    shop.task(charge).delay(ORDER)

    assert "use it outside" in str(shop.hand.deliver().value)
    assert shop.is_unpaid


def test_a_cursor_stands_for_its_connection(shop: Shop) -> None:
    def charge(order: str) -> None:
        with shop.books.target("psycopg") as connection, current_run().transaction(connection.cursor()) as tx:
            pay(tx.connection, order)

    shop.task(charge).delay(ORDER)

    shop.hand.deliver()

    assert shop.is_paid_once


def test_a_connection_stays_usable_whatever_strikes(shop: Shop, tmp_path: Path) -> None:
    with psycopg.connect(shop.books.url) as connection, orm.Session(shop.books.engine) as session:

        def charge(order: str) -> None:
            with current_run().transaction(connection if order == "first" else session) as tx:
                pay(tx.connection, order)

        task = shop.task(charge)
        with armed(Failpoint("before-commit", "raise", tmp_path, times=2)):
            for order in ("first", "second"):
                task.delay(order)
                shop.hand.deliver()

        pay(connection, "third")
        connection.commit()
        pay(session, "fourth")
        session.commit()
    assert shop.books.entries == ["fourth", "third"]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_short_block_may_be_isolated_as_one_likes(shop: Shop, level: IsolationLevel) -> None:
    def charge(order: str) -> None:
        with current_run().transaction(shop.books.engine.execution_options(isolation_level=level)) as tx:
            pay(tx.connection, order)

    shop.task(charge).delay(ORDER)

    shop.hand.deliver()

    assert shop.is_paid_once


def test_an_isolated_block_during_which_the_lease_is_renewed_is_rolled_back_and_run_again(shop: Shop) -> None:
    isolated = shop.books.engine.execution_options(isolation_level="REPEATABLE READ")

    def charge(order: str) -> None:
        run = current_run()
        with run.transaction(isolated) as tx:
            pay(tx.connection, order)
            if run.attempt == 1:
                shop.ledger.renew([run.lease])

    job_id = shop.task(charge).delay(ORDER).id

    deliver_all(shop)

    assert shop.is_paid_once
    assert state(shop, job_id) is State.COMPLETED


def test_a_scoped_session_is_one(shop: Shop) -> None:
    scoped = orm.scoped_session(orm.sessionmaker(shop.books.engine))

    def charge(order: str) -> None:
        with current_run().transaction(scoped) as tx:
            pay(tx.connection, order)
        scoped.remove()

    shop.task(charge).delay(ORDER)

    shop.hand.deliver()

    assert shop.is_paid_once


def test_a_task_that_is_called_directly_commits_without_a_record(shop: Shop) -> None:
    shop.paying("session")(ORDER)

    assert shop.is_paid_once


def test_a_result_that_cannot_be_written_undoes_the_block(shop: Shop) -> None:
    def charge(order: str) -> None:
        with shop.books.target("session") as target, current_run().transaction(target) as tx:
            pay(tx.connection, order)
            tx.result = object()

    job_id = shop.task(charge).delay(ORDER).id

    shop.hand.deliver()

    assert shop.is_unpaid
    assert state(shop, job_id) is State.BURIED


# What it costs


def test_it_adds_one_statement_to_the_callers_transaction_and_no_commit(shop: Shop, tmp_path: Path) -> None:
    connection = psycopg.connect(shop.books.url)
    task = shop.task(lambda_charge(connection))
    task.delay("before")
    shop.hand.deliver()  # the first one asks which database this is

    plain = traced(connection, tmp_path / "plain", lambda: alone(connection))
    task.delay(ORDER)
    guarded = traced(connection, tmp_path / "guarded", shop.hand.deliver)

    assert guarded.count("COMMIT") == plain.count("COMMIT") == 1
    assert len(guarded) <= len(plain) + 1
    connection.close()


def lambda_charge(connection: psycopg.Connection[Any]) -> Callable[[str], None]:
    def charge(order: str) -> None:
        with current_run().transaction(connection) as tx:
            pay(tx.connection, order)

    return charge


def alone(connection: psycopg.Connection[Any]) -> None:
    pay(connection, "alone")
    connection.commit()


def traced(connection: psycopg.Connection[Any], path: Path, act: Callable[[], object]) -> list[str]:
    """Give what the connection sends, one word for each statement."""
    with path.open("w+") as file:
        connection.pgconn.trace(file.fileno())
        act()
        connection.pgconn.untrace()
        file.seek(0)
        lines = [line for line in file if "\tQuery\t" in line or "\tExecute\t" in line]
    return ["COMMIT" if "COMMIT" in line else "statement" for line in lines]


# What is refused


def test_asynchronous_targets_are_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="AsyncSession is asynchronous"):
        current_run().transaction(AsyncSession())


def test_other_databases_are_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="postgresql and sqlite, not mysql"):
        inbox.ddl("mysql")


@pytest.mark.parametrize("how", ["engine", "connection", "sqlite", "sqlite's own way"])
def test_a_connection_that_commits_each_statement_is_refused(shop: Shop, how: str) -> None:
    url = "sqlite://" if "sqlite" in how else shop.books.engine.url
    own: Any = {"connect_args": {"isolation_level": None}}
    engine = sqlalchemy.create_engine(url, **({"connection": {}, "sqlite's own way": own}.get(how, AUTOCOMMIT)))

    def charge(order: str) -> None:
        with engine.connect().execution_options(**AUTOCOMMIT) as connection:
            target = connection if how == "connection" else engine
            with current_run().transaction(target) as tx:
                pay(tx.connection, order)

    shop.task(charge).delay(ORDER)

    assert "commits each statement on its own" in str(shop.hand.deliver().value)
    assert shop.is_unpaid
    engine.dispose()


def test_what_is_no_target_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="str"):
        current_run().transaction("postgresql://")
