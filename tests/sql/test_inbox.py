"""The inbox: how the database of the writes knows what was done when the ledger is elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from guarded.books import AMOUNT, ORDER, Books
from guarded.hand import Hand

from oncelery import ConfigurationError
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
