from __future__ import annotations

import pytest
from celery import Celery
from celery.signals import worker_process_shutdown

from oncelery import Oncelery
from oncelery.job import Submission


@pytest.fixture
def once() -> Oncelery:
    return Oncelery(Celery("shop", broker="memory://", set_as_current=False), store="memory://")


def accept(once: Oncelery, number: int) -> None:
    once.ledger.reserve(Submission(id=f"job-{number}", key=f"{number:064x}", task="shop.charge", body=b"{}"))


def accepted(once: Oncelery) -> int:
    return once.ledger.tally().decisions.get(("shop.charge", "accepted"), 0)


def test_a_prefork_child_flushes_when_it_leaves(once: Oncelery) -> None:
    once.counting.by_itself = False
    accept(once, 1)

    worker_process_shutdown.send(sender=None, pid=1, exitcode=0)

    assert accepted(once) == 1
