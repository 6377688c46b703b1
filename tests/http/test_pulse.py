from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from queue import Queue

import pytest
from guarded.hand import Hand
from guarded.plain_browser import bury

from oncelery.embedded.process import eventually
from oncelery.errors import StoreUnavailableError
from oncelery.http.dashboard import figures
from oncelery.http.dashboard.figures import Lately, Minute, Pulse


def happened(pulse: Pulse) -> dict[str, int]:
    """Add up what the pulse tells of the last hour."""
    total: Counter[str] = Counter()
    for minute in pulse.minutes(timedelta(hours=1)):
        total.update(minute.counts)
    return dict(total)


def test_what_happened_by_the_minute_is_what_the_ledger_has_whenever_one_looks(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "FRESH", 0)
    hand.clock.now = datetime.now(UTC) - timedelta(minutes=30)
    name = hand.name()
    hand.tasks.joining.delay(name)
    hand.tasks.joining.delay(name)
    hand.deliver_all()
    pulse = Pulse(hand.once)

    assert happened(pulse) == {"completed": 1, "duplicate": 1}
    hand.clock.now = datetime.now(UTC)
    bury(hand)
    hand.tasks.joining.delay(name)
    assert happened(pulse) == {"completed": 1, "duplicate": 2, "buried": 1}
    assert happened(pulse) == {"completed": 1, "duplicate": 2, "buried": 1}
    told = [minute for minute in pulse.minutes(timedelta(hours=1)) if minute.counts]
    assert timedelta(minutes=29) <= told[1].at - told[0].at <= timedelta(minutes=31)


def test_what_was_found_out_when_somebody_last_looked_long_ago_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    now, answers = 0.0, Queue[str]()
    monkeypatch.setattr(figures, "monotonic", lambda: now)
    lately = Lately(answers.get, every=5)

    assert lately() is None
    answers.put("no worker")
    assert eventually(lambda: lately() == "no worker", 30)
    now += 3600
    assert lately() is None
    answers.put("one worker")
    assert eventually(lambda: lately() == "one worker", 30)


def test_while_nothing_is_found_out_nobody_else_is_sent_to_find_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now, answers, asked = 0.0, Queue[str](), Queue[str]()
    monkeypatch.setattr(figures, "monotonic", lambda: now)

    def find_out() -> str:
        asked.put("asked")
        return answers.get()

    lately = Lately(find_out, every=5)
    for _ in range(20):
        assert lately() is None
        now += 10

    assert asked.get(timeout=30) == "asked"
    assert asked.empty()
    answers.put("nobody")
    assert eventually(lambda: lately() == "nobody", 30)


def test_a_clock_that_was_ahead_hides_nothing_that_comes_after(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "FRESH", 0)
    hand.clock.now = datetime.now(UTC) + timedelta(days=1)
    hand.tasks.joining.delay(hand.name())
    hand.deliver_all()
    pulse = Pulse(hand.once)
    happened(pulse)

    hand.clock.now = datetime.now(UTC)
    hand.tasks.joining.delay(hand.name())
    hand.deliver_all()

    assert happened(pulse) == {"completed": 1}
    assert happened(pulse) == {"completed": 1}


def test_a_change_that_is_seen_late_is_counted_once(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "FRESH", 0)
    now = hand.clock.now = datetime.now(UTC) - timedelta(minutes=1)
    hand.tasks.joining.delay(hand.name())
    hand.deliver_all()
    pulse = Pulse(hand.once)
    assert happened(pulse) == {"completed": 1}

    # As by a transaction that was begun before, and is committed after the last look.
    hand.clock.now = now - timedelta(seconds=1)
    hand.tasks.joining.delay(hand.name())
    hand.deliver_all()

    assert happened(pulse) == {"completed": 2}


def test_nothing_is_lost_when_the_store_fails_between_two_reads(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(**_: object) -> None:
        raise StoreUnavailableError

    monkeypatch.setattr(figures, "FRESH", 0)
    hand.clock.now = datetime.now(UTC)
    hand.tasks.joining.delay(hand.name())
    hand.deliver_all()
    pulse = Pulse(hand.once)

    with monkeypatch.context() as patch:
        patch.setattr(hand.once.duplicates, "find", away)
        with pytest.raises(StoreUnavailableError):
            happened(pulse)

    assert happened(pulse) == {"completed": 1}


def test_of_more_than_is_read_at_once_no_minute_is_told_in_part(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "READ_AT_MOST", 3)
    now = datetime.now(UTC).replace(second=30)
    for ago in (4, 3, 3, 2, 1):
        hand.clock.now = now - timedelta(minutes=ago)
        hand.tasks.joining.delay(hand.name())
        hand.deliver_all()

    minutes = Pulse(hand.once).minutes(timedelta(hours=1))

    assert happened_in(minutes) == [1, 1]
    assert minutes[0].at >= now.replace(second=0, microsecond=0) - timedelta(minutes=2)


def happened_in(minutes: Sequence[Minute]) -> list[int]:
    return [minute.counts["completed"] for minute in minutes if minute.counts]
