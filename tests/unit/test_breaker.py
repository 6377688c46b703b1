from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator

import pytest

from oncelery import breaker as module
from oncelery.breaker import Breaker
from oncelery.embedded.process import eventually

#: Longer than anything here takes on a busy machine; reached only by a test that fails.
SOON = 30.0


class Peer:
    """Answers when the test lets it, or fails."""

    def __init__(self) -> None:
        self.asked = 0
        self.may_answer = threading.Event()
        self.error: Exception | None = None

    def __call__(self) -> None:
        self.asked += 1
        assert self.may_answer.wait(SOON)
        if self.error:
            raise self.error


class Clock:
    """What the breaker takes for the time."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "monotonic", clock)
    return clock


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.may_answer.set()


def test_all_who_ask_at_once_share_one_look(clock: Clock, peer: Peer) -> None:
    breaker = Breaker(peer, name="store")

    looks = {breaker.look() for _ in range(50)}
    peer.may_answer.set()

    assert len(looks) == 1
    assert breaker.looked() == ""
    clock.now += 0.9
    assert breaker.look() in looks
    clock.now += 0.2
    assert breaker.look() not in looks
    assert eventually(lambda: peer.asked == 2, SOON)


def test_a_look_that_gets_no_answer_is_trouble_and_no_second_one_begins(
    clock: Clock, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "oncelery")
    breaker = Breaker(peer, name="broker", seconds=2)
    look = breaker.look()

    assert breaker.trouble == ""
    clock.now += 2.1
    assert {breaker.trouble for _ in range(5)} == {"no answer within 2 seconds"}
    clock.now += 3600
    assert breaker.look() is look
    assert peer.asked == 1

    peer.may_answer.set()
    look.result(SOON)
    assert breaker.trouble == ""
    assert [record.getMessage() for record in caplog.records] == [
        "the broker does not answer: no answer within 2 seconds",
        "the broker answers again",
    ]


def test_while_a_peer_is_in_trouble_looks_go_on_and_nobody_waits_for_them(clock: Clock, peer: Peer) -> None:
    peer.error = ConnectionError("refused")
    peer.may_answer.set()
    breaker = Breaker(peer, name="store")

    assert breaker.looked() == "refused"
    assert breaker.trouble == "refused"
    assert peer.asked == 1

    peer.error = None
    clock.now += 1.1
    assert breaker.trouble == "refused"
    assert eventually(lambda: breaker.trouble == "", SOON)
    assert peer.asked == 2


def test_a_forked_child_waits_for_no_look_of_its_parent(peer: Peer) -> None:
    breaker = Breaker(peer, name="store", seconds=0)
    breaker.look()
    assert eventually(lambda: breaker.trouble != "", SOON)

    pid = os.fork()
    if not pid:
        os._exit(1 if breaker.trouble else 0)
    assert os.waitpid(pid, 0)[1] == 0


def test_where_no_thread_can_be_started_the_next_caller_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    breaker = Breaker(lambda: None, name="store")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            breaker.look()

    assert breaker.looked() == ""
