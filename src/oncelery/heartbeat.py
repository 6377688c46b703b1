"""Renews this process's leases: one thread for all runs, started with the first one."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from math import inf
from time import monotonic

from oncelery.ledger import Ledger
from oncelery.run import Run

_logger = logging.getLogger("oncelery")

#: A lease is renewed when a third of it has passed, so that two renewals may fail before it lapses.
RENEWALS = 3

#: How long to wait, in seconds, after a renewal that the store did not answer: when it is back, owners come first.
RETRY = 0.5


class Renewal:
    """A run whose lease is renewed while a block lasts; when next, and until when at all, by the monotonic clock."""

    __slots__ = ("_heartbeat", "end", "every", "next", "run")

    def __init__(self, heartbeat: Heartbeat, run: Run, at_most: timedelta | None) -> None:
        self._heartbeat = heartbeat
        self.run = run
        self.every = run.lease.duration.total_seconds() / RENEWALS
        now = monotonic()
        self.next = now + self.every
        self.end = inf if at_most is None else now + at_most.total_seconds()

    def __enter__(self) -> None:
        self._heartbeat.add(self)

    def __exit__(self, *_: object) -> None:
        self._heartbeat.remove(self)


class Heartbeat:
    """Keeps the leases of running jobs alive, and passes on what the ledger says of them."""

    def __init__(self, ledger: Ledger, *, renewed: Callable[[], None] = lambda: None) -> None:
        self._ledger = ledger
        #: Called after each round of renewals.
        self._renewed = renewed
        self._start_anew()

    def _start_anew(self) -> None:
        self._pid = os.getpid()
        self._renewals: set[Renewal] = set()
        self._tick = inf
        self._sooner = threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def renewing(self, run: Run, *, at_most: timedelta | None = None) -> Renewal:
        """Renew the run's lease until the block ends, but no longer than `at_most`."""
        return Renewal(self, run, at_most)

    def add(self, renewal: Renewal) -> None:
        """Renew that lease from now on."""
        if self._pid != os.getpid():
            # After a fork the thread is gone, and the lock may have been held by it.
            self._start_anew()
        if renewal.every < self._tick:
            self._tick = renewal.every
            self._sooner.set()
        # Before it is added: if no thread can be started, the run ends here, and no later one may renew it for ever.
        if self._thread is None:
            self._start_thread()
        self._renewals.add(renewal)

    def remove(self, renewal: Renewal) -> None:
        """Renew that lease no more."""
        self._renewals.discard(renewal)

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
            if due := self.due(monotonic()):
                answered = self._renew(due)

    def due(self, now: float) -> list[Renewal]:
        """Tell whose leases are to be renewed at this time of the monotonic clock."""
        return [each for each in list(self._renewals) if each.next <= now <= each.end and not each.run.lost]

    def _renew(self, due: list[Renewal]) -> bool:
        leases = [each.run.lease for each in due]
        try:
            answers = self._ledger.renew(leases)
        except Exception as error:  # noqa: BLE001 - of whatever kind: without this thread all leases would lapse
            # They stay due, so that the next tick tries again.
            _logger.warning("could not renew %d leases: %s", len(due), error)
            return False
        for each, lease, answer in zip(due, leases, answers, strict=True):
            each.next = monotonic() + each.every
            try:
                each.run.renewed(lease, answer)
            except Exception as error:  # noqa: BLE001 - as above
                each.next = monotonic()
                _logger.warning("could not record job %s again, after the ledger lost it: %s", lease.job_id, error)
        self._renewed()
        return True
