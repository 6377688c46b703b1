"""The inbox: how the database of the writes knows what was done when the ledger is elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from guarded.books import AMOUNT, ORDER, Books, pay
from guarded.hand import Hand
from psycopg.pq import TransactionStatus

from oncelery import ConfigurationError, current_run
from oncelery.job import State
from oncelery.sql import inbox
from oncelery.testing.failpoints import Failpoint, armed
from sql.shop import TARGETS, Shop, deliver_all, state


def test_a_missing_inbox_is_told_with_the_remedy(apart: Shop) -> None:
    with apart.books.engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE oncelery_effects")
    apart.paying("session").delay(ORDER)

    delivered = apart.hand.deliver()

    assert isinstance(delivered.value, ConfigurationError)
    assert "oncelery migrate --effects" in str(delivered.value)
    assert apart.is_unpaid


def test_old_rows_are_deleted_and_young_ones_kept(apart: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [apart.paying(kind) for kind in TARGETS]
    for task in tasks:
        task.delay(ORDER)
        apart.hand.deliver()
    let_rows_expire(apart)
    monkeypatch.setattr(inbox, "PRUNE_EVERY", 1)

    for task in tasks:
        task.delay(task.name)
        apart.hand.deliver()

    assert apart.books.effects == len(TARGETS)
    assert len(apart.books.entries) == 2 * len(TARGETS)


def test_old_rows_of_another_app_are_its_own_to_delete(apart: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    task = apart.paying("session")
    task.delay(ORDER)
    apart.hand.deliver()
    with apart.books.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE oncelery_effects SET namespace = 'another'")
    let_rows_expire(apart)
    monkeypatch.setattr(inbox, "PRUNE_EVERY", 1)

    task.delay("later")
    apart.hand.deliver()

    assert apart.books.effects == 2


def test_a_database_that_cannot_delete_old_rows_keeps_nobody_waiting(
    apart: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "PRUNE_EVERY", 1)
    monkeypatch.setattr(inbox, "_OLD", "SELECT 1 FROM nowhere WHERE :task = :namespace AND 1 < :limit")

    with apart.books.target("psycopg") as connection:

        def charge(order: str) -> None:
            with current_run().transaction(connection):
                pay(connection, order)

        apart.task(charge).delay(ORDER)
        delivered = apart.hand.deliver()

        assert delivered.state is None
        assert connection.info.transaction_status is TransactionStatus.IDLE
    assert apart.is_paid_once


@pytest.mark.parametrize("kind", TARGETS)
def test_a_dead_letter_that_was_paid_is_not_paid_again_however_late_it_is_revived(
    apart: Shop, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    task = apart.paying(kind, on_takeover="hold")
    job_id = task.delay(ORDER).id
    with monkeypatch.context() as patch:
        patch.setattr(apart.ledger, "settle", killed)
        with pytest.raises(Killed):
            apart.hand.deliver()
    apart.hand.clock.now += task.policy.lease * 2
    apart.hand.once.sweep()
    apart.hand.deliver()
    assert state(apart, job_id) is State.BURIED
    apart.hand.clock.now += task.policy.history * 2
    let_rows_expire(apart)
    with monkeypatch.context() as patch:
        patch.setattr(inbox, "PRUNE_EVERY", 1)
        task.delay("another")
        apart.hand.deliver()

    apart.hand.once.dead_letters.revive(job_id)
    delivered = apart.hand.deliver()

    assert delivered.value == {"paid": ORDER}
    assert sorted(apart.books.entries) == ["another", ORDER]
    assert state(apart, job_id) is State.COMPLETED


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_job_under_an_id_that_was_used_before_its_history_is_another_job(apart: Shop, attempts: int) -> None:
    failures = iter([False, *[True] * (attempts - 1)])

    def charge(order: str) -> None:
        with apart.books.target("session") as target, current_run().transaction(target) as tx:
            pay(tx.connection, order)
            if next(failures, False):
                raise RuntimeError

    task = apart.task(charge, retry_on=RuntimeError, retention=0, history=3600)
    task.apply_async((ORDER,), task_id="nightly")
    apart.hand.deliver()
    apart.hand.clock.now += task.policy.history * 2

    task.apply_async((ORDER,), task_id="nightly")
    assert len(deliver_all(apart)) == attempts

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


def test_old_rows_are_deleted_and_those_of_dead_letters_kept_in_sqlite_too(
    hand: Hand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    books = Books(f"sqlite:///{tmp_path}/books.db")
    books.open()
    inbox.create(books.url)
    shop = Shop(hand, books, hand.once.ledger)
    task = shop.paying("session", on_takeover="hold")
    with monkeypatch.context() as patch:
        patch.setattr(shop.ledger, "settle", killed)
        task.delay(ORDER)
        with pytest.raises(Killed):
            hand.deliver()
    hand.clock.now += task.policy.lease * 2
    hand.once.sweep()
    task.delay("done")
    hand.deliver_all()
    with books.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE oncelery_effects SET expires_at = 0")
    monkeypatch.setattr(inbox, "PRUNE_EVERY", 1)

    task.delay("another")
    hand.deliver()

    with books.engine.connect() as connection:
        rows = list(connection.exec_driver_sql("SELECT expires_at > julianday('now') FROM oncelery_effects"))
    assert rows == [(1,), (1,)]
    books.close()


class Killed(BaseException):
    """Ends a run as the death of its process does."""


def killed(*_: object, **__: object) -> None:
    raise Killed


def let_rows_expire(shop: Shop) -> None:
    with shop.books.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE oncelery_effects SET expires_at = now()")
