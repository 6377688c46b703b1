"""What a worker's main process asks of the ledger, beside its loop."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from oncelery.celery import background
from oncelery.celery.background import Background
from oncelery.embedded.process import eventually
from oncelery.errors import ConfigurationError, StoreUnavailableError

SOON = 20.0


class Loop:
    """A worker's loop, which turns when a test says so."""

    def __init__(self) -> None:
        self.pool = SimpleNamespace(is_green=False)
        self._soon: deque[Callable[[], None]] = deque()

    def call_soon(self, act: Callable[[], None]) -> None:
        self._soon.append(act)

    def turn(self) -> bool:
        while self._soon:
            self._soon.popleft()()
        return True


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def asking(loop: Loop) -> Background:
    asking = Background()
    asking.start(loop)
    return asking


def test_the_loop_goes_on_while_the_ledger_is_silent_and_has_the_answers_in_order(
    asking: Background, loop: Loop
) -> None:
    awake, answers = threading.Event(), list[tuple[object, threading.Thread]]()

    def first() -> str:
        assert awake.wait(SOON)
        return "first"

    for act in (first, lambda: "second"):
        asking.ask(act, lambda answer: answers.append((answer, threading.current_thread())))
    loop.turn()
    assert answers == []
    awake.set()

    here = threading.current_thread()
    assert eventually(lambda: loop.turn() and len(answers) == 2, SOON)
    assert answers == [("first", here), ("second", here)]


def test_a_store_that_did_not_answer_is_not_asked_for_a_while(
    asking: Background, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answers, now = list[int](), list[object](), 1000.0
    monkeypatch.setattr(background, "monotonic", lambda: now)

    def away() -> None:
        asked.append(len(asked))
        raise StoreUnavailableError

    for _ in range(3):
        asking.ask(away, answers.append)
    assert eventually(lambda: loop.turn() and answers == [None] * 3, SOON)
    assert asked == [0]

    now += background.PAUSE
    asking.ask(lambda: "back", answers.append)

    assert eventually(lambda: loop.turn() and answers[-1] == "back", SOON)


@pytest.mark.parametrize("error", [ConfigurationError("not let in"), ZeroDivisionError()])
def test_whatever_goes_wrong_the_next_is_asked(asking: Background, loop: Loop, error: Exception) -> None:
    answers = list[object]()

    def fail(*_: object) -> None:
        raise error

    asking.ask(fail, answers.append)
    asking.ask(lambda: "before", fail)
    asking.ask(lambda: "after", answers.append)

    assert eventually(lambda: loop.turn() and answers == [None, "after"], SOON)


def test_an_answer_that_came_while_the_broker_was_away_is_heard_when_the_loop_is_back(
    asking: Background, loop: Loop
) -> None:
    asked, answers = threading.Event(), list[object]()
    asking.ask(lambda: asked.wait(SOON), answers.append)
    asking.stop()
    asked.set()
    asking.finish()
    loop.turn()
    assert answers == []

    asking.start(loop)
    loop.turn()

    assert answers == [True]


def test_without_a_worker_it_is_asked_at_once() -> None:
    answers = list[object]()

    Background().ask(threading.current_thread, answers.append)

    assert answers == [threading.current_thread()]


def test_what_tries_to_end_the_process_ends_neither_the_thread_nor_the_answers(asking: Background, loop: Loop) -> None:
    def end() -> None:
        raise SystemExit

    answers: list[object] = []
    asking.ask(end, answers.append)
    asking.ask(lambda: "next", answers.append)

    assert eventually(lambda: loop.turn() and answers == [None, "next"], SOON)
