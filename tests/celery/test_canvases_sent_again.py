"""A canvas object that is sent more than once: another call each time, though Celery 5.7 keeps its last task's id."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from celery import chain, chord, group
from celery.exceptions import Reject
from guarded.hand import Away, Hand

from oncelery.errors import PayloadMismatchError

#: How often each canvas is sent.
TIMES = 3


class Parts:
    """The signatures of one test."""

    def __init__(self, hand: Hand) -> None:
        self.hand = hand
        self.name = hand.name()

    def inc(self, *x: int) -> Any:
        return self.hand.app.tasks["guarded-increment"].s(*x, self.name)

    def told(self, what: str = "increment") -> list[Any]:
        return [entry.payload for entry in self.hand.told(self.name, what)]


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("piped", [False, True])
def test_a_chain_sent_again_with_other_arguments_runs_all_its_tasks(hand: Hand, *, at_once: bool, piped: bool) -> None:
    parts = Parts(hand)
    canvas = parts.inc() | parts.inc() if piped else chain(parts.inc(), parts.inc())

    values = []
    for x in (10, 20, 30):
        result = canvas.apply_async((x,))
        if not at_once:
            hand.deliver_all()
            values.append(result.get(timeout=1))
            # Celery's backends do not write over a success.
            result.forget()
    hand.deliver_all()

    assert sorted(parts.told()) == [10, 11, 20, 21, 30, 31]
    assert at_once or values == [12, 22, 32]
    assert {job.state for job in hand.jobs()} == {"completed"}


@pytest.mark.parametrize("task", ["notifying", "excluding"])
def test_a_chain_sent_again_with_equal_arguments_runs_again_where_equal_calls_do(hand: Hand, task: str) -> None:
    first, last = hand.name(), hand.name()
    guarded = hand.app.tasks[task]
    canvas = chain(guarded.si(first), guarded.si(last, "done"))

    for _ in range(TIMES):
        result = canvas.delay()
        hand.deliver_all()
        assert result.get(timeout=1) == "done"
        result.forget()

    assert (len(hand.told(first)), len(hand.told(last))) == (TIMES, TIMES)


def test_a_chain_sent_again_within_its_retention_is_answered_each_time(hand: Hand) -> None:
    parts, noted = Parts(hand), hand.name()
    canvas = chain(parts.inc(1), parts.inc())
    canvas.link(hand.tasks.notifying.si(noted))

    for _ in range(TIMES):
        result = canvas.delay()
        hand.deliver_all()
        assert result.get(timeout=1) == 3
        result.forget()

    assert parts.told() == [1, 2]
    assert len(hand.told(noted)) == TIMES


def test_a_chain_that_one_task_sends_again_runs_each_time(hand: Hand) -> None:
    parts, once = Parts(hand), hand.once
    canvas = chain(parts.inc(), parts.inc())
    canvas.link(hand.tasks.notifying.si(parts.name))

    @once.task(name="sends-often")
    def sends_often() -> None:
        for x in (10, 20, 30):
            canvas.apply_async((x,))

    sends_often.delay()
    hand.deliver_all()

    assert sorted(parts.told()) == [10, 11, 20, 21, 30, 31]
    assert len(hand.told(parts.name)) == TIMES


def test_errbacks_of_a_chain_sent_again_are_called_each_time(hand: Hand) -> None:
    parts, noted = Parts(hand), hand.name()
    canvas = chain(parts.inc(), hand.app.tasks["guarded-refuse"].s(parts.name))

    for x in (10, 20, 30):
        canvas.apply_async((x,), link_error=hand.tasks.notifying.si(noted))
        hand.deliver_all()

    assert parts.told("refuse") == [11, 21, 31]
    assert len(hand.told(noted)) == TIMES


def test_a_chain_that_ends_in_a_chord_runs_its_body_each_time(hand: Hand) -> None:
    parts = Parts(hand)
    canvas = chain(parts.inc(), chord([parts.inc(), parts.inc()], hand.app.tasks["guarded-total"].s(parts.name)))

    values = []
    for x in (10, 20, 30):
        result = canvas.apply_async((x,))
        hand.deliver_all()
        values.append(result.get(timeout=1))
        result.forget()

    assert values == [24, 44, 64]
    assert len(parts.told("total")) == TIMES


@pytest.mark.parametrize("task", ["notifying", "excluding"])
def test_a_signature_frozen_by_hand_runs_in_each_canvas(hand: Hand, task: str) -> None:
    parts, name = Parts(hand), hand.name()
    frozen = hand.app.tasks[task].si(name, 1)
    frozen.freeze()

    for canvas in (
        chain(parts.inc(1), frozen, parts.inc()),
        group([frozen, parts.inc(5)]),
        chord([frozen, parts.inc(1)], hand.app.tasks["guarded-total"].s(parts.name)),
        chord([parts.inc(1), parts.inc(2)], frozen),
    ):
        canvas.apply_async()
        hand.deliver_all()

    assert len(hand.told(name)) == 4


def test_a_predecessor_that_is_delivered_again_runs_its_successor_once(hand: Hand) -> None:
    first, last = hand.name(), hand.name()
    notify = hand.tasks.notifying
    canvas = chain(notify.si(first), notify.si(last))
    canvas.delay()
    hand.deliver_all()
    with hand.captured() as sent:
        result: Any = canvas.delay()
    hand.deliver_all()

    # As if its worker had died before it told.
    result.parent.forget()
    sent.again()
    hand.deliver_all()

    assert (len(hand.told(first)), len(hand.told(last))) == (2, 2)


def test_a_chord_that_is_published_again_by_its_predecessor_runs_once(hand: Hand) -> None:
    first, last = hand.name(), hand.name()
    notify = hand.tasks.notifying
    canvas = chain(notify.si(first), chord([notify.si(last, 1), notify.si(last, 2)], notify.si(last, 3)))
    with hand.captured() as sent:
        result: Any = canvas.delay()
    hand.deliver_all()

    result.parent.parent.forget()
    sent.again()
    hand.deliver_all()

    assert (len(hand.told(first)), len(hand.told(last))) == (1, 3)


def test_a_canvas_sent_while_the_ledger_is_away_is_told_apart_by_the_worker(hand: Hand) -> None:
    first, last = hand.name(), hand.name()
    plain, notify = hand.app.tasks["plain-increment"], hand.tasks.notifying
    canvas = chain(plain.si(1, first), notify.si(last))
    canvas.delay()
    hand.deliver_all()

    canvas.delay()
    with hand.ledger_down():
        hand.deliver()
    hand.deliver_all()

    assert len(hand.told(last)) == 2


def test_a_canvas_whose_successor_is_sent_by_other_code_is_told_apart_by_the_worker(hand: Hand) -> None:
    name = hand.name()
    notify = hand.tasks.notifying
    for root in ("root-1", "root-2"):
        hand.once.send_unguarded(notify.name, (name,), task_id="kept", root_id=root, parent_id=f"after-{root}")
        hand.deliver_all()

    assert len(hand.told(name)) == 2


# What a successor's publication raises


def successor_that_cannot_be_published(hand: Hand) -> Any:
    """Give a signature whose idempotency key stands for another payload."""
    taken = hand.name()
    hand.tasks.joining.apply_async((hand.name(), 1), idempotency_key=taken)
    hand.deliver_all()
    return hand.tasks.joining.si(hand.name(), 2).set(idempotency_key=taken)


@pytest.mark.parametrize("kind", ["guarded", "plain"])
def test_a_successor_that_cannot_be_published_fails_and_its_predecessor_does_not(
    hand: Hand, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = hand.name()
    lament = hand.app.tasks["plain-lament"].s(name)
    canvas = chain(
        hand.app.tasks[f"{kind}-increment"].si(1, name),
        successor_that_cannot_be_published(hand).set(link_error=[lament]),
        hand.app.tasks["plain-increment"].si(5, name),
    )

    result: Any = canvas.delay()
    with caplog.at_level(logging.ERROR, "oncelery"):
        hand.deliver_all()

    assert result.parent.parent.get(timeout=1) == 2
    with pytest.raises(PayloadMismatchError):
        result.parent.get(timeout=1)
    assert result.state == "FAILURE"
    assert len(hand.told(name, "lament")) == 1
    assert [entry.payload for entry in hand.told(name, "increment")] == [1]
    (line,) = [record.getMessage() for record in caplog.records if record.name == "oncelery"]
    assert result.parent.id in line


def test_a_callback_that_cannot_be_published_fails_alone(hand: Hand) -> None:
    name = hand.name()
    increment = hand.app.tasks["guarded-increment"]
    links = [successor_that_cannot_be_published(hand), increment.si(5, name)]

    result = increment.apply_async((1, name), link=links)
    hand.deliver_all()

    assert result.get(timeout=1) == 2
    assert [entry.payload for entry in hand.told(name, "increment")] == [1, 5]


def test_a_successor_that_the_broker_does_not_take_is_left_to_the_sweeper(hand: Hand) -> None:
    name = hand.name()
    increment = hand.app.tasks["guarded-increment"]
    result: Any = chain(increment.s(1, name), increment.s(name)).delay()

    with hand.broker_down():
        hand.deliver()
    assert result.parent.get(timeout=1) == 2
    hand.clock.advance(hours=2)
    hand.once.sweep()
    hand.deliver_all()

    assert result.get(timeout=1) == 3


def test_a_successor_that_neither_ledger_nor_broker_takes_is_published_when_its_predecessor_comes_again(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = hand.name()
    increment, reserving = hand.app.tasks["guarded-increment"], hand.once.ledger.reserving
    with hand.captured() as sent:
        result: Any = chain(increment.s(1, name), increment.s(name)).delay()

    monkeypatch.setattr(hand.once.ledger, "reserving", Away().reserving)
    with hand.broker_down(), pytest.raises(Reject):
        hand.deliver()
    monkeypatch.setattr(hand.once.ledger, "reserving", reserving)
    sent.again()
    hand.deliver_all()

    assert (result.parent.get(timeout=1), result.get(timeout=1)) == (2, 3)
    assert [entry.payload for entry in hand.told(name, "increment")] == [1, 2]


def test_a_call_within_a_task_raises_there(hand: Hand) -> None:
    signature = successor_that_cannot_be_published(hand)

    @hand.once.task(name="calls-another")
    def calls_another() -> str:
        with pytest.raises(PayloadMismatchError):
            signature.apply_async()
        return "seen"

    result = calls_another.delay()
    hand.deliver_all()

    assert result.get(timeout=1) == "seen"
