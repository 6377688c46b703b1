"""`run.transaction(...)`: the writes and the end of their job, committed together, in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import psycopg
import pytest
import sqlalchemy
from celery.exceptions import Retry
from faults.brokers import fresh_database
from guarded.books import AMOUNT, ORDER, Books, Payment, pay
from guarded.hand import Delivered, Hand
from guarded.world import SOON
from sqlalchemy import orm
from sqlalchemy.ext.asyncio import AsyncSession

from oncelery import ConfigurationError, current_run
from oncelery.events import Event, JobCompleted
from oncelery.job import State
from oncelery.ledger import Ledger
from oncelery.sql import inbox
from oncelery.stores import open_store
from oncelery.testing.failpoints import Failpoint, armed
from oncelery.testing.proxy import FaultProxy
from oncelery.testing.servers import PostgresServer

IsolationLevel = Literal["REPEATABLE READ", "SERIALIZABLE"]

AUTOCOMMIT: Any = {"isolation_level": "AUTOCOMMIT"}

TARGETS = ["psycopg", "connection", "session", "engine"]


class Shop:
    """A task that pays into the books through a target of its kind, and what its worker makes of it."""

    def __init__(self, hand: Hand, books: Books, ledger: Ledger) -> None:
        self.hand, self.books, self.ledger = hand, books, ledger
        hand.once.__dict__["ledger"] = ledger

    def task(self, function: Callable[..., Any], **options: Any) -> Any:  # noqa: ANN401 - Celery's own
        name = f"charge-{len(self.hand.app.tasks)}"
        return self.hand.once.task(function, name=name, shared=False, key="order", **options)

    def paying(self, kind: str, **options: Any) -> Any:  # noqa: ANN401 - Celery's own
        def charge(order: str) -> None:
            with self.books.target(kind) as target, current_run().transaction(target) as tx:
                pay(tx.connection, order)
                tx.result = {"paid": order}

        return self.task(charge, **options)

    @property
    def is_paid_once(self) -> bool:
        return (self.books.entries, self.books.balance) == ([ORDER], AMOUNT)

    @property
    def is_unpaid(self) -> bool:
        return (self.books.entries, self.books.balance) == ([], 0)


@pytest.fixture(scope="module")
def databases(postgres: PostgresServer) -> dict[str, str]:
    """Give two databases that the tests of this module share, each with a ledger."""
    return {"same database": postgres.create_database(), "another database": postgres.create_database()}


@pytest.fixture(params=["same database", "redis"])
def shop(request: pytest.FixtureRequest, hand: Hand, databases: dict[str, str]) -> Iterator[Shop]:
    yield from shop_of(request, hand, databases, request.param)


@pytest.fixture(params=["redis", "another database"])
def apart(request: pytest.FixtureRequest, hand: Hand, databases: dict[str, str]) -> Iterator[Shop]:
    """Give the shop whose ledger is not in the books' database."""
    yield from shop_of(request, hand, databases, request.param)


def shop_of(request: pytest.FixtureRequest, hand: Hand, databases: dict[str, str], where: str) -> Iterator[Shop]:
    books = Books(databases["same database"])
    books.open()
    inbox.create(books.url)
    url = databases[where] if where in databases else fresh_database(request.getfixturevalue("valkey"))
    ledger = Ledger(open_store(url, clock=hand.clock))
    yield Shop(hand, books, ledger)
    ledger.store.close()
    books.close()
    if where in databases:
        with psycopg.connect(url) as connection:
            connection.execute("TRUNCATE oncelery.jobs CASCADE")


@pytest.mark.parametrize("kind", TARGETS)
def test_what_is_written_is_committed_with_the_job(shop: Shop, kind: str) -> None:
    told: list[Event] = []
    shop.ledger.events.subscribe(told.append)
    job_id = shop.paying(kind).delay(ORDER).id

    delivered = shop.hand.deliver()

    assert (delivered.state, delivered.value) == (None, {"paid": ORDER})
    assert shop.is_paid_once
    job = shop.ledger.get(job_id)
    assert job
    assert (job.state, job.result) == (State.COMPLETED, b'{"paid": "order-1"}')
    assert [event.job_id for event in told if isinstance(event, JobCompleted)] == [job_id]


@pytest.mark.parametrize("kind", TARGETS)
def test_a_block_that_raises_writes_nothing(shop: Shop, kind: str) -> None:
    def charge(order: str) -> None:
        with shop.books.target(kind) as target, current_run().transaction(target) as tx:
            pay(tx.connection, order)
            raise ValueError(order)

    job_id = shop.task(charge).delay(ORDER).id

    delivered = shop.hand.deliver()

    assert isinstance(delivered.value, ValueError)
    assert shop.is_unpaid
    assert state(shop, job_id) is State.BURIED


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("place", ["before-commit", "after-commit"])
def test_a_run_that_is_struck_at_its_commit_is_done_once_by_the_next(
    shop: Shop, tmp_path: Path, kind: str, place: str
) -> None:
    job_id = shop.paying(kind, retry_on=(Exception,)).delay(ORDER).id

    with armed(Failpoint(place, "raise", tmp_path)):
        delivered = deliver_all(shop)

    assert delivered[-1].value == {"paid": ORDER}
    assert shop.is_paid_once
    assert state(shop, job_id) is State.COMPLETED


# Lost replies


@pytest.mark.parametrize("kind", ["psycopg", "session"])
@pytest.mark.parametrize("lost", ["reply", "request"])
def test_a_commit_without_a_reply_is_resolved(shop: Shop, postgres: PostgresServer, kind: str, lost: str) -> None:
    with FaultProxy(postgres.port) as line:
        far = Books(line.url(shop.books.url))

        def charge(order: str) -> None:
            with far.target(kind) as target, current_run().transaction(target) as tx:
                pay(tx.connection, order)
                tx.result = {"paid": order}

        loss = line.lose_reply(b"COMMIT") if lost == "reply" else line.lose_request(b"COMMIT")
        job_id = shop.task(charge, max_attempts=1).delay(ORDER).id

        delivered = deliver_all(shop)

        assert loss.happened.is_set()
        assert delivered[-1].value == {"paid": ORDER}
        assert shop.is_paid_once
        assert state(shop, job_id) is State.COMPLETED
        far.close()


def test_a_task_that_swallows_a_commit_in_doubt_is_run_again_nevertheless(shop: Shop, postgres: PostgresServer) -> None:
    with FaultProxy(postgres.port) as line:
        far = Books(line.url(shop.books.url))

        def charge(order: str) -> None:
            try:
                with far.target("session") as target, current_run().transaction(target) as tx:
                    pay(tx.connection, order)
            except Exception:  # noqa: BLE001, S110 - what a careless task does
                pass

        line.lose_request(b"COMMIT")
        job_id = shop.task(charge).delay(ORDER).id

        deliver_all(shop)

        assert shop.is_paid_once
        assert state(shop, job_id) is State.COMPLETED
        far.close()


def test_a_commit_that_the_database_refuses_is_the_tasks_own_failure(shop: Shop) -> None:
    with shop.books.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE payments ADD UNIQUE (order_id) DEFERRABLE INITIALLY DEFERRED")
        connection.execute(sqlalchemy.text("INSERT INTO payments VALUES (:order, 1)"), {"order": ORDER})
    job_id = shop.paying("session").delay(ORDER).id

    delivered = shop.hand.deliver()

    assert isinstance(delivered.value, sqlalchemy.exc.IntegrityError)
    assert shop.books.balance == 0
    assert state(shop, job_id) is State.BURIED


# Runs that were taken over


def test_a_run_that_was_taken_over_is_rolled_back(shop: Shop) -> None:
    values: list[object] = []

    def charge(order: str) -> None:
        run = current_run()
        with shop.books.target("session") as target, run.transaction(target) as tx:
            pay(tx.connection, f"{order} by {run.attempt}", before_the_sum=lambda: take_over(run.attempt))
            tx.result = run.attempt

    def take_over(attempt: int) -> None:
        if attempt == 1:
            shop.hand.clock.now += task.policy.lease * 2
            sent.again()
            values.append(shop.hand.deliver().value)

    task = shop.task(charge)
    with shop.hand.captured() as sent:
        job_id = task.delay(ORDER).id

    delivered = shop.hand.deliver()

    assert values == [2]
    assert (shop.books.entries, shop.books.balance) == ([f"{ORDER} by 2"], AMOUNT)
    assert state(shop, job_id) is State.COMPLETED
    assert delivered.value in (2, None) or delivered.state == "IGNORED"


def test_of_two_runs_of_a_job_whose_ledger_is_elsewhere_the_first_to_commit_is_its_effect(apart: Shop) -> None:
    shop = apart
    second_has_written, first_has_committed = threading.Event(), threading.Event()
    second: list[Future[Delivered]] = []

    def charge(order: str) -> None:
        run = current_run()
        with shop.books.target("session") as target, run.transaction(target) as tx:
            tx.connection.add(Payment(order_id=f"{order} by {run.attempt}", amount=AMOUNT))
            tx.connection.flush()
            tx.result = run.attempt
            if run.attempt == 1:
                shop.hand.clock.now += task.policy.lease * 2
                sent.again()
                second.append(other.submit(shop.hand.deliver))
                second_has_written.wait(SOON)
            else:
                second_has_written.set()
                first_has_committed.wait(SOON)

    task = shop.task(charge)
    with shop.hand.captured() as sent:
        job_id = task.delay(ORDER).id

    with ThreadPoolExecutor(1) as other:
        shop.hand.deliver()
        first_has_committed.set()

    assert second[0].result().value == 1
    assert shop.books.entries == [f"{ORDER} by 1"]
    job = shop.ledger.get(job_id)
    assert job
    assert (job.state, job.attempt, job.result) == (State.COMPLETED, 2, b"1")


def test_a_ledger_that_has_forgotten_a_job_does_not_have_it_done_again(apart: Shop) -> None:
    shop = apart
    with shop.books.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE payments ADD UNIQUE (order_id)")
    task = shop.paying("psycopg")
    with shop.hand.captured() as sent:
        task.delay(ORDER)
    shop.hand.deliver()
    shop.ledger = Ledger(open_store("memory://"))
    shop.hand.once.__dict__["ledger"] = shop.ledger

    sent.again()
    delivered = shop.hand.deliver()

    assert delivered.value == {"paid": ORDER}
    assert shop.is_paid_once


@pytest.mark.parametrize("kind", ["connection", "session", "engine"])
def test_a_database_that_is_away_is_told_as_the_library_tells_it(shop: Shop, kind: str) -> None:
    away = Books("postgresql://nobody@127.0.0.1:1/books?connect_timeout=2")

    def charge(order: str) -> None:
        with away.target(kind) as target, current_run().transaction(target) as tx:
            pay(tx.connection, order)

    job_id = shop.task(charge).delay(ORDER).id

    assert isinstance(shop.hand.deliver().value, sqlalchemy.exc.OperationalError)
    assert state(shop, job_id) is State.BURIED


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


# The inbox


def test_a_missing_inbox_is_told_with_the_remedy(apart: Shop) -> None:
    with apart.books.engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE oncelery_effects")
    apart.paying("session").delay(ORDER)

    delivered = apart.hand.deliver()

    assert isinstance(delivered.value, ConfigurationError)
    assert "oncelery migrate --effects" in str(delivered.value)
    assert apart.is_unpaid


def test_old_rows_are_deleted_and_young_ones_kept(apart: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    apart.paying("psycopg").delay(ORDER)
    apart.hand.deliver()
    with apart.books.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE oncelery_effects SET expires_at = now()")
    monkeypatch.setattr(inbox, "PRUNE_EVERY", 1)

    for kind in TARGETS:
        apart.paying(kind).delay(kind)
        apart.hand.deliver()

    assert apart.books.effects == len(TARGETS)
    assert len(apart.books.entries) == 1 + len(TARGETS)


def test_a_job_under_an_id_that_was_used_before_its_history_is_another_job(apart: Shop) -> None:
    task = apart.paying("session")
    task.apply_async((ORDER,), task_id="nightly")
    apart.hand.deliver()
    with apart.books.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE oncelery_effects SET expires_at = now()")
    apart.hand.clock.now += task.policy.history * 2

    task.apply_async((ORDER,), task_id="nightly")
    apart.hand.deliver()

    assert apart.books.balance == 2 * AMOUNT
    assert apart.books.effects == 1


@pytest.mark.parametrize("kind", ["connection", "session", "engine"])
@pytest.mark.parametrize("place", ["before-commit", "after-commit"])
def test_it_holds_in_sqlite_too(hand: Hand, tmp_path: Path, kind: str, place: str) -> None:
    books = Books(f"sqlite:///{tmp_path}/books.db")
    books.open()
    inbox.create(books.url)
    shop = Shop(hand, books, hand.once.ledger)
    job_id = shop.paying(kind, retry_on=(Exception,)).delay(ORDER).id

    with armed(Failpoint(place, "raise", tmp_path)):
        delivered = deliver_all(shop)

    assert delivered[-1].value == {"paid": ORDER}
    assert shop.is_paid_once
    assert state(shop, job_id) is State.COMPLETED
    books.close()


# What is refused


def test_asynchronous_targets_are_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="AsyncSession is asynchronous"):
        current_run().transaction(AsyncSession())


def test_other_databases_are_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="postgresql and sqlite, not mysql"):
        inbox.ddl("mysql")


@pytest.mark.parametrize("how", ["engine", "connection", "sqlite"])
def test_a_connection_that_commits_each_statement_is_refused(shop: Shop, how: str) -> None:
    url = "sqlite://" if how == "sqlite" else shop.books.engine.url
    engine = sqlalchemy.create_engine(url, **({} if how == "connection" else AUTOCOMMIT))

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


def state(shop: Shop, job_id: str) -> State:
    job = shop.ledger.get(job_id)
    assert job
    return job.state


def deliver_all(shop: Shop) -> list[Delivered]:
    """Run tasks until no message is left, at whatever time they are due."""
    delivered = [shop.hand.deliver()]
    while shop.hand.waiting():
        shop.hand.clock.now += shop.hand.once.policy().backoff.most
        delivered.append(shop.hand.deliver())
    return delivered
