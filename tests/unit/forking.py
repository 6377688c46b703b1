"""Forks beside a thread that is at work. Run in an interpreter of its own: pytest's has threads and locks enough."""

from __future__ import annotations

import multiprocessing
import sys
import threading

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


def fork_waits_for_a_thread() -> None:
    forks.PATIENCE = SOON
    over, children = at_work(), list[int | None]()
    forking = threading.Thread(target=lambda: children.append(fork()))

    forking.start()
    forking.join(0.2)
    assert children == []
    over.set()
    forking.join(SOON)

    assert children == [0]


def fork_waits_no_longer_than_it_may() -> None:
    forks.PATIENCE = 0.1
    over = at_work()

    assert fork() == 0

    over.set()
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


def child_makes_a_property_that_a_thread_is_making() -> None:
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


if __name__ == "__main__":
    globals()[sys.argv[1]]()
