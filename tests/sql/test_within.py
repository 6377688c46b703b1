"""`apply_async(..., within=session)`: a job is accepted with the caller's own writes, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from celery import chain
from faults.brokers import fresh_database
from guarded.books import ORDER, Books, pay
from guarded.hand import Hand
from sqlalchemy import orm

from oncelery import ConfigurationError, DuplicateTaskError, current_run
from oncelery.events import DuplicateAnswered, Event, JobAccepted, JobCancelled
from oncelery.job import Answer, State, Submission
from oncelery.ledger import Ledger
from oncelery.policy import Policy
from oncelery.stores import open_store
from oncelery.stores.base import PUBLISH_GRACE
from oncelery.testing.servers import PostgresServer, ValkeyServer


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> str:
    """Give a database that the tests of this module share."""
    return postgres.create_database()


@pytest.fixture
def books(database: str) -> Iterator[Books]:
    books = Books(database)
    books.open()
    yield books
    books.close()


@pytest.fixture
def shop(hand: Hand, books: Books) -> Iterator[Hand]:
    """Give a worker's hand whose ledger is in the database of the books."""
    ledger = Ledger(open_store(books.url, clock=hand.clock))
    ledger.get("-")  # its tables are there, also after a test that does not use it
    hand.once.__dict__["ledger"] = ledger
    yield hand
    ledger.store.close()
    with psycopg.connect(books.url) as connection:
        connection.execute("TRUNCATE oncelery.jobs CASCADE")


def test_a_job_is_published_when_the_callers_session_has_committed(shop: Hand, books: Books) -> None:
    told: list[Event] = []
    shop.once.ledger.events.subscribe(told.append)

    with orm.Session(books.engine) as session:
        pay(session, ORDER)
        result = shop.tasks.joining.apply_async((ORDER,), within=session)
        before = (shop.waiting(), shop.once.ledger.get(result.id), list(told))
        session.commit()

        assert before == (0, None, [])
        assert shop.waiting() == 1
        assert result.published
    assert shop.deliver().id == result.id
    assert shop.job(result).state is State.COMPLETED
    assert [type(event) for event in told].count(JobAccepted) == 1
    assert books.entries == [ORDER]


def test_a_job_is_published_when_the_callers_connection_is_given_back(shop: Hand, books: Books) -> None:
    with books.engine.begin() as connection:
        result = shop.tasks.joining.apply_async((ORDER,), within=connection)

    assert result.published
    assert shop.deliver().id == result.id


@pytest.mark.parametrize("kind", ["session", "connection", "psycopg"])
def test_a_caller_that_rolls_back_leaves_no_job(shop: Hand, books: Books, kind: str) -> None:
    with books.target(kind) as target:
        pay(target, ORDER)
        result = shop.tasks.joining.apply_async((ORDER,), within=target)
        target.rollback()

    result.publish()
    assert (shop.waiting(), shop.once.ledger.get(result.id), books.entries) == (0, None, [])
    assert not result.published


@pytest.mark.parametrize("kind", ["session", "connection"])
def test_a_savepoint_that_is_rolled_back_takes_its_job_along(shop: Hand, books: Books, kind: str) -> None:
    with books.target(kind) as target:
        kept = shop.tasks.joining.apply_async(("kept",), within=target)
        with target.begin_nested():
            also = shop.tasks.joining.apply_async(("also",), within=target)
        nested = target.begin_nested()
        shop.tasks.joining.apply_async(("undone",), within=target)
        nested.rollback()
        target.commit()

    assert [delivered.id for delivered in shop.deliver_all()] == [kept.id, also.id]


def test_a_transaction_that_has_ended_publishes_no_more(shop: Hand, books: Books) -> None:
    with orm.Session(books.engine) as session:
        shop.tasks.joining.apply_async((ORDER,), within=session)
        session.commit()
        shop.deliver_all()

        pay(session, ORDER)
        session.commit()

    assert shop.waiting() == 0


def test_a_plain_connection_tells_nobody_so_its_caller_publishes(shop: Hand, books: Books) -> None:
    with psycopg.connect(books.url) as connection:
        result = shop.tasks.joining.apply_async((ORDER,), within=connection)
        connection.commit()

    assert shop.waiting() == 0
    result.publish()
    result.publish()
    assert [delivered.id for delivered in shop.deliver_all()] == [result.id]


def test_a_connection_whose_cursors_write_values_into_statements_will_do(shop: Hand, books: Books) -> None:
    # As Django's do.
    with psycopg.connect(books.url, cursor_factory=psycopg.ClientCursor) as connection:
        result = shop.tasks.joining.apply_async((ORDER,), within=connection)
        connection.commit()
        result.publish()

    assert shop.deliver().id == result.id
    assert shop.job(result).state is State.COMPLETED


@pytest.mark.parametrize("kind", ["psycopg", "session"])
def test_what_nobody_has_published_the_sweeper_does(shop: Hand, books: Books, kind: str) -> None:
    with shop.broker_down(), books.target(kind) as target:
        result = shop.tasks.joining.apply_async((ORDER,), within=target)
        target.commit()
    assert not result.published

    shop.clock.now += PUBLISH_GRACE
    shop.once.sweep()

    assert [delivered.id for delivered in shop.deliver_all()] == [result.id]


def test_a_duplicate_is_answered_with_the_job_that_is_there(shop: Hand, books: Books) -> None:
    first = shop.tasks.joining.delay(ORDER)
    told: list[Event] = []
    shop.once.ledger.events.subscribe(told.append)

    with orm.Session(books.engine) as session:
        again = shop.tasks.joining.apply_async((ORDER,), within=session)
        shop.tasks.rejecting.apply_async((ORDER,), within=session)
        with pytest.raises(DuplicateTaskError):
            shop.tasks.rejecting.apply_async((ORDER,), within=session)
        session.commit()

    assert (again.id, again.existing) == (first.id, True)
    answers = [event.answer for event in told if isinstance(event, DuplicateAnswered)]
    assert answers == [Answer.JOINED, Answer.REJECTED]
    assert len(shop.deliver_all()) == 2


def test_a_job_that_has_expired_is_replaced_in_the_callers_transaction_and_both_are_told(
    shop: Hand, books: Books
) -> None:
    stale = shop.tasks.joining.apply_async((ORDER,), expires=datetime.now(UTC) - timedelta(seconds=1))
    told: list[Event] = []
    shop.once.ledger.events.subscribe(told.append)

    with orm.Session(books.engine) as session:
        fresh = shop.tasks.joining.apply_async((ORDER,), within=session)
        assert not [event for event in told if not isinstance(event, DuplicateAnswered)]
        session.commit()

    assert {(type(event), event.job_id) for event in told} >= {(JobCancelled, stale.id), (JobAccepted, fresh.id)}


def test_a_job_that_has_begun_before_its_caller_could_publish_it_is_told_all_the_same(shop: Hand, books: Books) -> None:
    told: list[Event] = []
    shop.once.ledger.events.subscribe(told.append)

    with psycopg.connect(books.url) as connection:
        result = shop.tasks.joining.apply_async((ORDER,), within=connection)
        connection.commit()
        job = shop.job(result)
        shop.once.ledger.begin(Submission(id=job.id, key=job.key, task=job.task), Policy())
        result.publish()

    assert [event.job_id for event in told if isinstance(event, JobAccepted)] == [result.id]


def test_a_task_publishes_what_follows_together_with_its_own_effect(shop: Hand, books: Books) -> None:
    def charge(order: str) -> None:
        with current_run().transaction(books.engine) as tx:
            pay(tx.connection, order)
            shop.tasks.joining.apply_async((f"receipt of {order}",), within=tx.connection)

    shop.once.task(charge, name="charge", shared=False).delay(ORDER)

    delivered = shop.deliver_all()

    assert [each.task for each in delivered] == ["charge", "joining"]
    assert books.entries == [ORDER]


def test_a_delay_is_kept(shop: Hand, books: Books) -> None:
    with orm.Session(books.engine) as session:
        result = shop.tasks.joining.apply_async((ORDER,), countdown=60, within=session)
        session.commit()

    assert shop.job(result).not_before
    assert shop.deliver().headers["eta"]


def test_a_ledger_that_is_elsewhere_is_refused(hand: Hand, books: Books, valkey: ValkeyServer) -> None:
    hand.once.__dict__["ledger"] = Ledger(open_store(fresh_database(valkey)))

    with orm.Session(books.engine) as session, pytest.raises(ConfigurationError, match="very PostgreSQL database"):
        hand.tasks.joining.apply_async((ORDER,), within=session)


def test_a_connection_that_commits_by_itself_is_refused(shop: Hand, books: Books) -> None:
    with (
        psycopg.connect(books.url, autocommit=True) as connection,
        pytest.raises(ConfigurationError, match="commits each statement on its own"),
    ):
        shop.tasks.joining.apply_async((ORDER,), within=connection)


def test_engines_made_for_each_request_leave_nothing_behind(shop: Hand, books: Books) -> None:
    for number in range(3):
        engine = books.engine.execution_options(request=number)
        with orm.Session(engine) as session:
            result = shop.tasks.joining.apply_async((f"{ORDER} {number}",), within=session)
            session.commit()
        assert result.published

    assert len(books.engine.pool.dispatch.checkin) == 1


def test_a_connection_that_is_not_there_is_refused(shop: Hand) -> None:
    with pytest.raises(ConfigurationError, match="within= is None"):
        shop.tasks.joining.apply_async((ORDER,), within=None)


def test_an_engine_is_in_no_transaction(shop: Hand, books: Books) -> None:
    with pytest.raises(ConfigurationError, match="is in no transaction"):
        shop.tasks.joining.apply_async((ORDER,), within=books.engine)


def test_a_canvas_is_refused(shop: Hand, books: Books) -> None:
    canvas: Any = chain(shop.tasks.joining.si(ORDER), shop.tasks.joining.si("next"))

    with orm.Session(books.engine) as session, pytest.raises(ConfigurationError, match="stands alone"):
        canvas.apply_async(within=session)


def test_a_call_back_is_promised_with_the_callers_own_writes_or_not_at_all(shop: Hand, books: Books) -> None:
    shop.app.conf.update(oncelery_webhook_secrets="whsec_" + "a" * 32)

    def watches() -> list[State]:
        return [watch.state for watch in shop.once.jobs.find(task="oncelery.watch").items]

    with orm.Session(books.engine) as session:
        shop.tasks.joining.apply_async((ORDER,), within=session, notify="https://example.com/")
        session.rollback()
    assert not watches()

    with orm.Session(books.engine) as session:
        shop.tasks.joining.apply_async((ORDER,), within=session, notify="https://example.com/")
        session.commit()
    assert watches() == [State.QUEUED]
