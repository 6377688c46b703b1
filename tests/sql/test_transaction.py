"""`run.transaction(...)`: the writes and the end of their job, committed together, in this process."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from guarded.books import AMOUNT, ORDER, Books, Payment, pay
from guarded.hand import Delivered
from guarded.world import SOON

from oncelery import current_run
from oncelery.events import Event, JobCompleted
from oncelery.job import State
from oncelery.sql.callers import caller_of
from oncelery.testing.failpoints import Failpoint, armed
from oncelery.testing.proxy import FaultProxy
from oncelery.testing.servers import PostgresServer
from sql.shop import TARGETS, Shop, deliver_all, state


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


def test_a_commit_that_gives_way_to_another_transaction_is_made_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = iter([psycopg.errors.SerializationFailure("could not serialize access")])

    def give_way(caller: object) -> None:
        if error := next(ways, None):
            raise error
        commit(caller)

    kind = type(caller_of(shop.books.engine))
    commit: Any = kind.commit
    monkeypatch.setattr(kind, "commit", give_way)
    job_id = shop.paying("engine").delay(ORDER).id

    assert [delivered.state for delivered in deliver_all(shop)] == ["RETRY", None]
    assert shop.is_paid_once
    assert state(shop, job_id) is State.COMPLETED


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


@pytest.mark.parametrize("is_unique", [True, False])
def test_a_ledger_that_has_forgotten_a_job_does_not_have_it_done_again(apart: Shop, *, is_unique: bool) -> None:
    shop = apart
    if is_unique:
        with shop.books.engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE payments ADD UNIQUE (order_id)")
    task = shop.paying("psycopg")
    with shop.hand.captured() as sent:
        task.delay(ORDER)
    shop.hand.deliver()
    shop.lose_the_ledger()

    sent.again()
    delivered = shop.hand.deliver()

    assert delivered.value == {"paid": ORDER}
    assert shop.is_paid_once


@pytest.mark.parametrize("kind", ["psycopg", "session"])
@pytest.mark.parametrize("when", ["before the block", "in the block"])
def test_a_job_that_the_ledger_loses_before_its_commit_is_recorded_again_and_completed(
    shop: Shop, kind: str, when: str
) -> None:
    def charge(order: str) -> None:
        if when == "before the block":
            shop.lose_the_ledger()
        with shop.books.target(kind) as target, current_run().transaction(target) as tx:
            pay(tx.connection, order)
            tx.result = {"paid": order}
            if when == "in the block":
                shop.lose_the_ledger()

    job_id = shop.task(charge).delay(ORDER).id

    assert shop.hand.deliver().value == {"paid": ORDER}
    assert shop.is_paid_once
    assert state(shop, job_id) is State.COMPLETED


def test_a_job_that_a_ledger_elsewhere_loses_after_the_commit_is_recorded_again_and_completed(apart: Shop) -> None:
    def charge(order: str) -> None:
        with apart.books.target("psycopg") as target, current_run().transaction(target) as tx:
            pay(tx.connection, order)
            tx.result = {"paid": order}
        apart.lose_the_ledger()

    job_id = apart.task(charge).delay(ORDER).id

    assert apart.hand.deliver().value == {"paid": ORDER}
    assert apart.is_paid_once
    assert state(apart, job_id) is State.COMPLETED


def test_a_block_that_fails_after_the_ledger_has_lost_its_job_leaves_it_to_its_next_run(shop: Shop) -> None:
    failures = iter([True])

    def charge(order: str) -> None:
        with shop.books.target("psycopg") as target, current_run().transaction(target) as tx:
            pay(tx.connection, order)
            tx.result = {"paid": order}
            if next(failures, False):
                shop.lose_the_ledger()
                raise RuntimeError

    job_id = shop.task(charge, retry_on=RuntimeError).delay(ORDER).id

    delivered = deliver_all(shop)

    assert delivered[-1].value == {"paid": ORDER}
    assert shop.is_paid_once
    assert state(shop, job_id) is State.COMPLETED


@pytest.mark.parametrize("kind", ["connection", "session", "engine"])
def test_a_database_that_is_away_is_told_as_the_library_tells_it(shop: Shop, kind: str) -> None:
    away = Books("postgresql://nobody@127.0.0.1:1/books?connect_timeout=2")

    def charge(order: str) -> None:
        with away.target(kind) as target, current_run().transaction(target) as tx:
            pay(tx.connection, order)

    job_id = shop.task(charge).delay(ORDER).id

    assert isinstance(shop.hand.deliver().value, sqlalchemy.exc.OperationalError)
    assert state(shop, job_id) is State.BURIED
