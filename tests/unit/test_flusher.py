from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.signals import worker_process_shutdown

from oncelery import Oncelery
from oncelery.celery.flusher import Flusher
from oncelery.job import Submission


class Timer:
    """The worker's timer, whose time comes when a test says so."""

    def __init__(self) -> None:
        self.due: Callable[[], None] | None = None

    def call_repeatedly(self, _every: float, function: Callable[[], None]) -> Timer:
        self.due = function
        return self

    def cancel(self) -> None:
        self.due = None


@pytest.fixture
def once() -> Oncelery:
    return Oncelery(Celery("shop", broker="memory://", set_as_current=False), store="memory://")


def accept(once: Oncelery, number: int) -> None:
    once.ledger.reserve(Submission(id=f"job-{number}", key=f"{number:064x}", task="shop.charge", body=b"{}"))


def accepted(once: Oncelery) -> int:
    return once.ledger.tally().decisions.get(("shop.charge", "accepted"), 0)


def test_a_workers_main_process_flushes_by_its_timer_and_when_it_stops(once: Oncelery) -> None:
    timer = Timer()
    consumer = SimpleNamespace(app=once.app, timer=timer)
    step = Flusher(consumer)

    step.start(consumer)
    accept(once, 1)
    counted = [accepted(once)]
    assert timer.due
    timer.due()
    counted.append(accepted(once))
    accept(once, 2)
    step.stop(consumer)
    counted.append(accepted(once))

    assert counted == [0, 1, 2]
    assert timer.due is None


def test_a_prefork_child_flushes_when_it_leaves(once: Oncelery) -> None:
    once.counting.by_itself = False
    accept(once, 1)

    worker_process_shutdown.send(sender=None, pid=1, exitcode=0)

    assert accepted(once) == 1


def test_every_worker_has_the_step(once: Oncelery) -> None:
    assert Flusher in once.app.steps["consumer"]
