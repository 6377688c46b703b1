from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from billiard.pool import soft_timeout_sighandler
from celery.exceptions import SoftTimeLimitExceeded

from oncelery.celery import time_limits
from oncelery.celery.time_limits import exposed, held_back


@pytest.fixture(autouse=True)
def child() -> Iterator[None]:
    """Make this process what a prefork child is."""
    before = signal.signal(signal.SIGUSR1, soft_timeout_sighandler)
    time_limits._start_anew()  # noqa: SLF001 - as after a fork
    yield
    signal.signal(signal.SIGUSR1, before)
    time_limits._start_anew()  # noqa: SLF001


def strike() -> None:
    signal.raise_signal(signal.SIGUSR1)


def test_a_limit_strikes_inside_a_task() -> None:
    with held_back(message="one"), pytest.raises(SoftTimeLimitExceeded):
        exposed(strike)


def test_a_limit_that_strikes_too_early_strikes_where_the_task_begins() -> None:
    calls: list[int] = []
    with held_back(message="one"):
        strike()
        with pytest.raises(SoftTimeLimitExceeded):
            exposed(calls.append, 1)

    assert calls == []


def test_a_limit_that_strikes_too_late_is_dropped_until_the_next_message(monkeypatch: pytest.MonkeyPatch) -> None:
    running = SimpleNamespace(request=SimpleNamespace(id="one"))
    monkeypatch.setattr(time_limits, "get_current_worker_task", lambda: running)
    with held_back(message="one"):
        exposed(int)
        strike()

    # While Celery tells of its end.
    strike()
    running.request.id = "a plain task"
    with pytest.raises(SoftTimeLimitExceeded):
        strike()


def test_a_limit_that_strikes_while_a_part_of_a_task_is_held_back_strikes_after_it() -> None:
    done: list[str] = []

    def task() -> None:
        with held_back():
            strike()
            done.append("recorded")
        done.append("gone on")

    with held_back(message="one"), pytest.raises(SoftTimeLimitExceeded):
        exposed(task)

    assert done == ["recorded"]


def test_other_threads_of_a_child_are_left_alone() -> None:
    def elsewhere() -> None:
        with held_back():
            entered.set()
            go_on.wait(20)
            exposed(int)

    entered, go_on = threading.Event(), threading.Event()
    thread = threading.Thread(target=elsewhere)

    def task() -> None:
        thread.start()
        entered.wait(20)
        try:
            strike()
        finally:
            go_on.set()
            thread.join(20)

    with held_back(message="one"), pytest.raises(SoftTimeLimitExceeded):
        exposed(task)


def test_a_child_whose_first_call_is_made_in_a_thread_is_protected_all_the_same() -> None:
    def elsewhere() -> None:
        with held_back():
            exposed(int)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join(20)

    with held_back(message="one"):
        strike()
