"""The ends of a run that only the worker's main process learns of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery.exceptions import TimeLimitExceeded
from guarded.hand import Hand

from oncelery.answers import Granted
from oncelery.celery.background import Background
from oncelery.celery.request import GuardedRequest
from oncelery.job import Lease, State, Submission
from oncelery.policy import Policy


class TimedOut(GuardedRequest):
    """The request of a run that the hard time limit has ended, and what becomes of its message."""

    def __init__(self, hand: Hand, lease: Lease) -> None:
        self.id = lease.job_id
        self.acknowledged = False
        self._task = SimpleNamespace(
            name=lease.task,
            policy=Policy(retry_on=(TimeLimitExceeded,)),
            backend=hand.app.backend,
            ignore_result=False,
            store_errors_even_if_ignored=False,
            oncelery=SimpleNamespace(
                app=hand.app,
                ledger=hand.once.ledger,
                board=SimpleNamespace(take_down=lambda _: lease),
                background=Background(),
            ),
        )
        self._request_dict: dict[str, Any] = {}

    def acknowledge(self) -> None:
        self.acknowledged = True


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
