"""What the service asks of its store and its broker: in threads, and never for long."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest
from guarded.hand import Hand

from oncelery.breaker import Breaker
from oncelery.embedded.process import eventually
from oncelery.http import threads
from oncelery.http.problems import ProblemError
from oncelery.http.threads import LINE, THREADS, Peers

#: Longer than anything here takes on a busy machine; reached only by a test that fails.
SOON = 30.0


async def outcome(asking: asyncio.Task[str]) -> str:
    """Await an answer; the name of the problem where there is none."""
    try:
        return await asking
    except ProblemError as error:
        return error.problem.name if "Retry-After" in (error.headers or {}) else "without Retry-After"


def test_what_is_read_does_not_wait_for_what_the_broker_holds(hand: Hand) -> None:
    peers, go = Peers.of(hand.once), threading.Event()

    async def scene() -> str:
        held = [asyncio.create_task(peers.act(go.wait, SOON)) for _ in range(2 * THREADS)]
        try:
            return await asyncio.wait_for(peers.read(lambda: "read"), SOON)
        finally:
            go.set()
            await asyncio.gather(*held)

    assert asyncio.run(scene()) == "read"


def test_a_call_for_which_no_place_is_left_is_refused_at_once(hand: Hand) -> None:
    peers, go = Peers.of(hand.once), threading.Event()

    def wait() -> str:
        return "answered" if go.wait(SOON) else "not"

    async def scene() -> list[str]:
        asking = [asyncio.create_task(peers.read(wait)) for _ in range(THREADS + LINE + 3)]
        done, _ = await asyncio.wait(asking, timeout=SOON, return_when=asyncio.FIRST_COMPLETED)
        assert {await outcome(each) for each in done} == {"overloaded"}
        go.set()
        return [await outcome(each) for each in asking]

    assert Counter(asyncio.run(scene())) == {"answered": THREADS + LINE, "overloaded": 3}


def test_calls_of_a_silent_store_are_given_up_and_those_that_wait_for_a_thread_never_begin(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "SUSPICIOUS", 0.01)
    peers, go, begun = Peers(hand.once), threading.Event(), Counter[str]()
    peers.store = Breaker(lambda: go.wait(SOON), name="store", seconds=0.1, every=0.01)

    def call() -> str:
        begun["calls"] += 1
        return "late" if go.wait(SOON) else "not"

    async def scene() -> tuple[set[str], str, str]:
        asking = [asyncio.create_task(peers.read(call)) for _ in range(3 * THREADS)]
        given_up = {await outcome(each) for each in asking}
        refused = await outcome(asyncio.create_task(peers.read(call)))
        go.set()
        assert await asyncio.to_thread(eventually, lambda: not peers.store.trouble, SOON)
        return given_up, refused, await peers.read(lambda: "answered")

    assert asyncio.run(scene()) == ({"store-unavailable"}, "store-unavailable", "answered")
    assert begun["calls"] == THREADS


def test_a_slow_answer_of_a_store_that_is_well_is_waited_for(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "SUSPICIOUS", 0.01)
    peers, go, looks = Peers(hand.once), threading.Event(), Counter[str]()

    def look() -> None:
        looks["looks"] += 1
        if looks["looks"] == 3:
            go.set()

    peers.store = Breaker(look, name="store", every=0)

    assert asyncio.run(peers.read(lambda: "slow" if go.wait(SOON) else "not")) == "slow"


@pytest.mark.parametrize(("how", "problem"), [("read", "store-unavailable"), ("act", "broker-unavailable")])
def test_an_answer_that_takes_too_long_is_given_up(
    hand: Hand, monkeypatch: pytest.MonkeyPatch, how: str, problem: str
) -> None:
    monkeypatch.setattr(threads, "SUSPICIOUS", 0.01)
    monkeypatch.setattr(threads, "LONGEST", 0.05)
    peers, go = Peers(hand.once), threading.Event()

    async def scene() -> str:
        try:
            ask = getattr(peers, how)
            return await outcome(asyncio.create_task(ask(lambda: "late" if go.wait(SOON) else "not")))
        finally:
            go.set()

    assert asyncio.run(scene()) == problem
