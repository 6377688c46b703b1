"""What the ledger is told before a message is opened, and what becomes of one that is not."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from celery.worker import strategy
from guarded.hand import Hand
from kombu.utils.limits import TokenBucket

from oncelery.answers import Buried
from oncelery.celery.request import guarded_strategy
from oncelery.errors import StoreUnavailableError
from oncelery.job import State

RESENT = {"oncelery_resent": True}


class Delivery:
    """A message for a worker's main process, and all that happens to it there, in order."""

    def __init__(self, hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
        self.happened: list[Any] = []
        self.job_id = hand.tasks.joining.delay(hand.name()).id
        self.headers: dict[str, Any] = {"id": self.job_id}
        self.delivery_info = {"redelivered": False}
        told = hand.once.ledger.received

        def received(job_id: str, *, limit: int, lease: timedelta | None = None) -> object:
            self.happened.append(lease)
            return told(job_id, limit=limit, lease=lease)

        monkeypatch.setattr(hand.once.ledger, "received", received)
        monkeypatch.setattr(strategy, "default", lambda *_, **__: lambda *_, **__: self.happened.append("received"))
        self.buckets: dict[str, TokenBucket] = {}
        consumer = SimpleNamespace(connection=None, connection_errors=(), task_buckets=self.buckets)
        self._receive = guarded_strategy(hand.tasks.joining, hand.app, consumer)

    @property
    def payload(self) -> object:
        self.happened.append("read")
        return None

    def arrive(self) -> list[Any]:
        self._receive(self, None, lambda *_: self.happened.append("acknowledged"), None, [])
        return self.happened


@pytest.fixture
def delivery(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> Delivery:
    return Delivery(hand, monkeypatch)


def test_of_a_message_that_comes_for_the_first_time_nothing_is_told(delivery: Delivery) -> None:
    assert delivery.arrive() == ["received"]


@pytest.mark.parametrize("redelivered", [True, False])
def test_a_message_that_has_come_before_is_opened_under_a_lease(
    hand: Hand, delivery: Delivery, *, redelivered: bool
) -> None:
    delivery.delivery_info["redelivered"] = redelivered
    delivery.headers |= {} if redelivered else RESENT

    assert delivery.arrive() == [hand.tasks.joining.policy.lease, "read", timedelta(0), "received"]


def test_a_message_of_which_a_copy_is_being_opened_is_put_away(hand: Hand, delivery: Delivery) -> None:
    lease = hand.tasks.joining.policy.lease
    delivery.headers |= RESENT
    hand.store.received(delivery.job_id, limit=9, lease=lease)

    assert delivery.arrive() == [lease, "acknowledged"]


def test_whoever_died_of_opening_it_counts_once_their_lease_is_over(hand: Hand, delivery: Delivery) -> None:
    lease = hand.tasks.joining.policy.lease
    delivery.headers |= RESENT
    for _ in range(hand.once.settings.max_received):
        assert not isinstance(hand.store.received(delivery.job_id, limit=9, lease=lease), Buried)
        hand.clock.now += lease

    assert delivery.arrive() == [lease, "acknowledged"]
    assert hand.job(delivery.job_id).state is State.BURIED
    assert hand.app.AsyncResult(delivery.job_id).state == "FAILURE"


def test_a_worker_goes_on_although_nobody_can_be_told_of_a_dead_letter(
    hand: Hand, delivery: Delivery, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise ConnectionError

    monkeypatch.setattr(hand.app.backend, "mark_as_failure", away)
    delivery.headers |= RESENT
    hand.store.received(delivery.job_id, limit=0)

    assert delivery.arrive() == [hand.tasks.joining.policy.lease, "acknowledged"]


@pytest.mark.parametrize("waits", [False, True])
def test_a_copy_of_what_waits_for_a_rate_limit_is_put_away(hand: Hand, delivery: Delivery, *, waits: bool) -> None:
    bucket = TokenBucket(1)
    bucket.add((SimpleNamespace(id=delivery.job_id if waits else "another"), 1))
    delivery.buckets["joining"] = bucket
    delivery.headers |= RESENT

    opened = [hand.tasks.joining.policy.lease, "read", timedelta(0), "received"]
    assert delivery.arrive() == (["acknowledged"] if waits else opened)


def test_what_was_discarded_is_not_opened(hand: Hand, delivery: Delivery) -> None:
    hand.store.received(delivery.job_id, limit=0)
    hand.once.dead_letters.discard(delivery.job_id)
    delivery.headers |= RESENT

    assert delivery.arrive() == [hand.tasks.joining.policy.lease, "acknowledged"]


def test_a_message_goes_on_when_the_ledger_cannot_be_told(
    hand: Hand, delivery: Delivery, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise StoreUnavailableError("away")

    monkeypatch.setattr(hand.once.ledger, "received", away)
    delivery.headers |= RESENT

    assert delivery.arrive() == ["received"]
