"""An app with one task, on a ledger in memory whose clock is moved by the test."""

from __future__ import annotations

import pytest
from celery import Celery

from oncelery import Oncelery
from oncelery.ledger import Ledger
from oncelery.stores.memory import MemoryStore
from oncelery.testing.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def app() -> Celery:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.task_default_queue = "orders"
    return app


@pytest.fixture
def once(app: Celery, clock: FakeClock) -> Oncelery:
    once = Oncelery(app, store="memory://")
    once.ledger = Ledger(MemoryStore(clock=clock))

    once.task(charge, name="shop.charge", shared=False)
    app.finalize()
    return once


def charge(order_id: str, amount: int = 1) -> str:
    return f"{order_id}: {amount}"
