"""The ends of a run that only the worker's main process learns of."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from celery.exceptions import TimeLimitExceeded
from guarded.hand import Hand
from msgspec.structs import replace

from oncelery.answers import Granted
from oncelery.celery.background import Background
from oncelery.celery.request import GuardedRequest
from oncelery.errors import StoreUnavailableError
from oncelery.job import Durability, Lease, State, Submission
from oncelery.policy import Policy


class TimedOut(GuardedRequest):
    """The request of a run that the hard time limit has ended, and what becomes of its message."""

    def __init__(self, hand: Hand, lease: Lease, *, is_shown: bool = True) -> None:
        self.id = lease.job_id
        self.acknowledged = self.requeued = False
        self._task = SimpleNamespace(
            name=lease.task,
            policy=Policy(retry_on=(TimeLimitExceeded,)),
            backend=hand.app.backend,
            ignore_result=False,
            store_errors_even_if_ignored=False,
            oncelery=SimpleNamespace(
                app=hand.app,
                ledger=hand.once.ledger,
                board=SimpleNamespace(take_down=lambda _: lease if is_shown else None),
                background=Background(),
                broker=hand.once.broker,
            ),
        )
        self._request_dict: dict[str, Any] = {}

    def acknowledge(self) -> None:
        self.acknowledged = True

    def reject(self, requeue: bool = False) -> None:  # noqa: FBT001, FBT002 - Celery's own
        self.requeued = requeue


@pytest.mark.parametrize("away", ["backend", "broker"])
def test_the_message_of_a_run_that_is_forgiven_its_time_limit_is_acknowledged_whoever_is_away(
    hand: Hand, monkeypatch: pytest.MonkeyPatch, away: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ConnectionError(away)

    job = hand.job(hand.tasks.joining.delay(hand.name()))
    granted = hand.once.ledger.begin(Submission(id=job.id, key=job.key, task=job.task), Policy())
    assert isinstance(granted, Granted)
    if away == "backend":
        monkeypatch.setattr(hand.app.backend, "mark_as_retry", refuse)
    else:
        monkeypatch.setattr(hand.once, "send_unguarded", refuse)
    request = TimedOut(hand, granted.lease)

    request.on_timeout(soft=False, timeout=1)

    assert request.acknowledged
    assert hand.job(job.id).state is State.QUEUED


@pytest.mark.parametrize("ledger", ["silent", "unaware", "aware"])
def test_a_time_limit_before_the_run_has_begun_loses_no_job(
    hand: Hand, monkeypatch: pytest.MonkeyPatch, ledger: str
) -> None:
    def stay_silent(_: str) -> None:
        raise StoreUnavailableError

    job = hand.job(hand.tasks.joining.delay(hand.name()))
    lease = replace(job, lease_until=job.created_at).lease(timedelta(seconds=30), Durability.FAST)
    request = TimedOut(hand, lease, is_shown=False)
    if ledger == "silent":
        monkeypatch.setattr(hand.once.ledger, "get", stay_silent)
    elif ledger == "unaware":
        monkeypatch.setattr(hand.once.ledger, "get", lambda _: None)

    request.on_timeout(soft=False, timeout=1)

    assert (request.acknowledged, request.requeued) == (ledger == "aware", ledger != "aware")
