"""The worker's step that sweeps, and a store that goes and comes back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from amqp.exceptions import ChannelError, MessageNacked
from guarded.hand import Hand
from kombu import Queue
from kombu.exceptions import OperationalError
from kombu.transport.memory import Channel

from oncelery.celery import sweeper
from oncelery.celery.background import Background
from oncelery.errors import StoreUnavailableError
from oncelery.stores.base import PUBLISH_GRACE, SLOW_CHECK


class Worker:
    """A worker that sweeps when it is told to, with a store that answers or does not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.store_is_away = self.broker_is_away = False
        self.swept = 0
        monkeypatch.setattr(sweeper, "monotonic", lambda: self.now)
        once = SimpleNamespace(ledger=SimpleNamespace(get=self._get), background=Background())
        self._step = sweeper.Sweeper(SimpleNamespace(app=SimpleNamespace(oncelery=once)))

    def sweep(self, *, after: float = 0.0) -> int:
        self.now += after
        self._step._attempt(self._sweep, ())  # noqa: SLF001 - as the worker's thread does
        return self.swept

    def _get(self, _job_id: str) -> None:
        if self.store_is_away:
            raise StoreUnavailableError("the store does not answer")

    def _sweep(self) -> None:
        if self.broker_is_away:
            raise OperationalError("the broker does not answer")
        self.swept += 1


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    return Worker(monkeypatch)


def test_a_sweep_is_not_begun_with_a_store_that_does_not_answer(worker: Worker) -> None:
    assert worker.sweep() == 1

    worker.store_is_away = True

    assert worker.sweep(after=2) == 1


def test_owners_have_time_to_renew_their_leases_when_the_store_is_back(worker: Worker) -> None:
    worker.store_is_away = True
    worker.sweep()
    worker.store_is_away = False

    assert worker.sweep() == 0
    assert worker.sweep(after=sweeper.OWNERS_FIRST / 2) == 0
    assert worker.sweep(after=sweeper.OWNERS_FIRST / 2) == 1


def test_nobody_is_waited_for_after_the_broker_was_away(worker: Worker) -> None:
    worker.broker_is_away = True
    worker.sweep()
    worker.broker_is_away = False

    assert worker.sweep() == 1


class Away:
    """Something that goes away in the middle of a sweep, and how often it was asked since."""

    def __init__(self, error: Exception) -> None:
        self.asked = 0
        self._error = error

    def __call__(self, *_: object, **__: object) -> None:
        self.asked += 1
        raise self._error


def lose(hand: Hand, count: int, *, serializer: str = "json") -> None:
    """Send jobs whose messages are lost."""
    amqp: Any = hand.app.amqp
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(amqp, "send_task_message", lambda *_, **__: None)
        for _ in range(count):
            hand.tasks.joining.apply_async((hand.name(),), serializer=serializer)
    hand.clock.now += PUBLISH_GRACE * 2


@pytest.fixture
def three_lost(hand: Hand) -> Hand:
    """Give a world with three jobs whose messages are lost."""
    lose(hand, 3)
    return hand


def test_a_broker_that_goes_away_in_the_middle_of_a_sweep_is_not_waited_for_once_for_each_job(
    three_lost: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = Away(OperationalError("the broker is away"))
    with monkeypatch.context() as patch:
        patch.setattr(three_lost.app.amqp, "send_task_message", away)
        with pytest.raises(OperationalError):
            three_lost.once.sweep()
    assert away.asked == 1

    three_lost.clock.now += PUBLISH_GRACE * 2

    assert three_lost.once.sweep().published == 3


def test_a_full_queue_is_asked_once_in_a_sweep_and_keeps_back_no_other(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def send(_producer: object, _name: str, _message: object, *, queue: Queue, **_: object) -> None:
        asked.append(queue.name)
        if queue.name == "full":
            raise OperationalError from MessageNacked()

    monkeypatch.setattr(hand.app.amqp, "send_task_message", send)
    for queue in ("full", "full", hand.queue):
        hand.tasks.joining.apply_async((hand.name(),), queue=queue)
    asked.clear()
    hand.clock.now += SLOW_CHECK * 2

    swept = hand.once.sweep()

    assert (swept.published, swept.failed) == (1, 2)
    assert sorted(asked) == sorted(["full", hand.queue])


def test_a_store_that_goes_away_in_the_middle_of_a_sweep_is_not_waited_for_once_for_each_job(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The ledger is asked before a pickle is opened.
    monkeypatch.setitem(hand.app.conf, "accept_content", ["json", "pickle"])
    lose(hand, 3, serializer="pickle")
    away = Away(StoreUnavailableError("the store is away"))
    with monkeypatch.context() as patch:
        patch.setattr(hand.store, "received", away)
        with pytest.raises(StoreUnavailableError):
            hand.once.sweep()
    assert away.asked == 1

    hand.clock.now += PUBLISH_GRACE * 2

    assert hand.once.sweep().published == 3


def test_a_sweeper_leaves_the_jobs_of_a_fleet_that_accepts_other_content_to_that_fleet(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose(hand, 1, serializer="pickle")
    monkeypatch.setitem(hand.app.conf, "accept_content", ["json"])

    assert hand.once.sweep().published == 0
    monkeypatch.setitem(hand.app.conf, "accept_content", ["json", "pickle"])

    assert hand.once.sweep().published == 1


def test_a_sweep_goes_on_while_there_is_more_to_publish(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeper, "BATCH", 2)
    lose(hand, 5)

    # The first two are in the queue by then, so that it is not empty any more.
    assert hand.once.sweep().published == 5


def test_a_queue_that_is_empty_is_so_at_every_priority(hand: Hand) -> None:
    hand.tasks.joining.apply_async((hand.name(),), priority=10)
    hand.drop()
    hand.clock.now += PUBLISH_GRACE * 2

    assert hand.once.sweep().published == 1


@pytest.mark.parametrize(("code", "found"), [("404", True), (404, True), (403, False)])
def test_only_a_queue_that_is_not_there_is_taken_for_empty(
    hand: Hand, monkeypatch: pytest.MonkeyPatch, *, code: str | int, found: bool
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ChannelError("refused", (50, 10), "Channel.queue_declare", code)  # type: ignore[arg-type] # kombu has it as text

    monkeypatch.setattr(Channel, "queue_declare", refuse)

    if found:
        assert hand.queue in sweeper.empty_queues(hand.once)
    else:
        with pytest.raises(ChannelError):
            sweeper.empty_queues(hand.once)
