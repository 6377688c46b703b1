"""The worker's step that sweeps, and a store that goes and comes back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kombu.exceptions import OperationalError

from oncelery.celery import sweeper
from oncelery.errors import StoreUnavailableError


class Worker:
    """A worker that sweeps when it is told to, with a store that answers or does not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.store_is_away = self.broker_is_away = False
        self.swept = 0
        monkeypatch.setattr(sweeper, "monotonic", lambda: self.now)
        once = SimpleNamespace(ledger=SimpleNamespace(get=self._get))
        self._consumer: Any = SimpleNamespace(app=SimpleNamespace(oncelery=once), connection_errors=())
        self._step = sweeper.Sweeper(self._consumer)

    def sweep(self, *, after: float = 0.0) -> int:
        self.now += after
        self._step._attempt(self._consumer, self._sweep)  # noqa: SLF001 - as the worker's timer does
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
