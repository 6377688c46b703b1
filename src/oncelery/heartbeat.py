"""Renews this process's leases: one thread for all runs, started with the first one."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic

from oncelery.ledger import Ledger
from oncelery.run import Run

_logger = logging.getLogger("oncelery")

#: A lease is renewed when a third of it has passed, so that two renewals may fail before it lapses.
RENEWALS = 3

#: How long to wait, in seconds, after a renewal that the store did not answer: when it is back, owners come first.
RETRY = 0.5


@dataclass(slots=True)
class _Watch:
    """When a run is to be renewed next, and until when at all, by the monotonic clock."""

    next: float
    end: float


class _Watching:
    """While its block lasts, the run's lease is renewed."""

    __slots__ = ("_at_most", "_heartbeat", "_run")

    def __init__(self, heartbeat: Heartbeat, run: Run, at_most: timedelta) -> None:
        self._heartbeat = heartbeat
        self._run = run
        self._at_most = at_most

    def __enter__(self) -> None:
        self._heartbeat.add(self._run, self._at_most)

    def __exit__(self, *_: object) -> None:
        self._heartbeat.remove(self._run)


class Heartbeat:
    """Keeps the leases of running jobs alive, and passes on what the ledger says of them."""

    def __init__(self, ledger: Ledger, *, renewed: Callable[[], None] = lambda: None) -> None:
        self._ledger = ledger
        #: Called after each round of renewals.
        self._renewed = renewed
        self._start_anew()

    def _start_anew(self) -> None:
        self._pid = os.getpid()
        self._runs: dict[Run, _Watch] = {}
        self._tick = float("inf")
        self._sooner = threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def watch(self, run: Run, *, at_most: timedelta = timedelta.max) -> _Watching:
        """Renew the run's lease until the block ends, but no longer than `at_most`."""
        return _Watching(self, run, at_most)

    def add(self, run: Run, at_most: timedelta) -> None:
        """Renew the run's lease from now on, but no longer than `at_most`."""
        if self._pid != os.getpid():
            # After a fork the thread is gone, and the lock may have been held by it.
            self._start_anew()
        every = run.lease.duration.total_seconds() / RENEWALS
        if every < self._tick:
            self._tick = every
            self._sooner.set()
        # Before it is noted: a run that cannot be watched ends here; a later thread must not renew it for ever.
        if self._thread is None:
            self._start_thread()
        now = monotonic()
        self._runs[run] = _Watch(now + every, now + at_most.total_seconds())

    def remove(self, run: Run) -> None:
        """Renew the run's lease no more."""
        self._runs.pop(run, None)

    def _start_thread(self) -> None:
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(target=self._beat, name="oncelery-heartbeat", daemon=True)
                thread.start()
                # Not before: where no thread can be started, the next run tries again.
                self._thread = thread

    def _beat(self) -> None:
        answered = True
        while True:
            # Half the shortest interval: a renewal is then at most half an interval late.
            if self._sooner.wait(self._tick / 2 if answered else min(self._tick / 2, RETRY)):
                self._sooner.clear()
            if runs := self.due(monotonic()):
                answered = self._renew(runs)

    def due(self, now: float) -> list[Run]:
        """Tell whose leases are to be renewed at this time of the monotonic clock."""
        return [run for run, watch in list(self._runs.items()) if watch.next <= now <= watch.end and not run.lost]

    def _renew(self, runs: list[Run]) -> bool:
        try:
            renewals = self._ledger.renew([run.lease for run in runs])
        except Exception as error:  # noqa: BLE001 - of whatever kind: without this thread all leases would lapse
            # They stay due, so that the next tick tries again.
            _logger.warning("could not renew %d leases: %s", len(runs), error)
            return False
        for run, answer in zip(runs, renewals, strict=True):
            run.renewed(answer)
            if watch := self._runs.get(run):
                watch.next = monotonic() + run.lease.duration.total_seconds() / RENEWALS
        self._renewed()
        return True
