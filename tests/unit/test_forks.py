"""Children are forked while no thread uses what is Celery's."""

from __future__ import annotations

import multiprocessing
import sys
import threading

import pytest

from oncelery.celery import forks
from oncelery.celery.made_once import made_once

SOON = 20.0


def take_the_lock() -> None:
    sys.exit(0 if forks.no_fork.acquire(timeout=SOON) else 1)


def fork() -> int | None:
    child = multiprocessing.get_context("fork").Process(target=take_the_lock)
    child.start()
    child.join(SOON)
    return child.exitcode


@pytest.fixture
def at_work() -> threading.Event:
    """Have a thread at work until the event is set."""
    begun, over = threading.Event(), threading.Event()

    def work() -> None:
        with forks.no_fork:
            begun.set()
            over.wait(SOON)

    threading.Thread(target=work, daemon=True).start()
    assert begun.wait(SOON)
    return over


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_waits_until_a_thread_has_done_its_work(
    at_work: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "PATIENCE", SOON)
    children: list[int | None] = []
    forking = threading.Thread(target=lambda: children.append(fork()))

    forking.start()
    forking.join(0.2)
    assert children == []
    at_work.set()
    forking.join(SOON)

    assert children == [0]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_does_not_wait_for_ever_and_its_child_finds_no_lock_held(
    at_work: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "PATIENCE", 0.1)

    assert fork() == 0

    at_work.set()
    with forks.no_fork:
        assert fork() == 0


class Slow:
    """Has a property that takes as long to make as the test says."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()

    @made_once
    def made(self) -> bool:
        self.begun.set()
        return self.may_end.wait(SOON)


def test_a_child_that_is_forked_while_a_thread_makes_a_property_can_make_it() -> None:
    slow = Slow()
    thread = threading.Thread(target=lambda: slow.made)
    thread.start()
    assert slow.begun.wait(SOON)

    def make() -> None:
        slow.may_end.set()
        sys.exit(0 if slow.made else 1)

    child = multiprocessing.get_context("fork").Process(target=make)
    child.start()
    child.join(SOON)
    slow.may_end.set()
    thread.join(SOON)

    assert child.exitcode == 0
