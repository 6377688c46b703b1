"""Counts what this process decides, and adds it to the ledger's counters every few seconds.

There they are one sum for all processes, so that no exporter has to be told of prefork children, and figures outlive
the process they were counted in. One that is killed, or ends while the store is away, takes its last seconds of counts
with it.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic

from oncelery import events as e
from oncelery.errors import OnceleryError

_logger = logging.getLogger("oncelery")

#: How long counts may wait in the process, in seconds.
FLUSH_EVERY = 5.0

#: How long a process that ends may wait for the store to take its counts, in seconds.
FAREWELL_SECONDS = 1.0

#: Up to how many seconds a run counts as short, less short, and so on.
RUN_BOUNDS = ("0.01", "0.05", "0.1", "0.5", "1", "5", "10", "30", "60", "300", "900", "3600", "+Inf")
_BOUNDS = tuple(float(bound) for bound in RUN_BOUNDS)

#: Parts the word of a counter from its detail, as in "released/retry" and "run/0.5".
SEPARATOR = "/"

#: The word under which runs are counted by their bound, and the one under which their time is added up.
RUN = "run"
RUN_MICROSECONDS = "run microseconds"


def bounds_of(counts: Mapping[str, int], share: float) -> tuple[str, str] | None:
    """Give the bounds, in seconds, between which this quantile of a task's run times lies; None before any has run."""
    runs = [counts.get(f"{RUN}{SEPARATOR}{bound}", 0) for bound in RUN_BOUNDS]
    enough, total = sum(runs) * share, 0
    for lower, bound, count in zip(("0", *RUN_BOUNDS), RUN_BOUNDS, runs, strict=False):
        total += count
        if total and total >= enough:
            return lower, bound
    return None


def detail_of(event: e.Event) -> str:
    """Tell what else is counted of an event, beside its word; empty if nothing is."""
    match event:
        case e.DuplicateAnswered(answer=answer):
            return answer
        case e.JobReleased(cause=cause):
            return cause
        case e.JobBuried(reason=reason):
            return reason
        case e.JobSwept(lost=lost):
            return lost
        case _:
            return ""


class Counting:
    """Adds up events by (task, word). Hearing one costs an append; the rest is done when counts are flushed."""

    def __init__(self, count: Callable[[Mapping[tuple[str, str], int]], None]) -> None:
        #: `Ledger.count`, as a rule.
        self._count = count
        self.start_anew()
        _all.add(self)
        # What is registered last is called first: before stores that were opened until now are closed.
        atexit.unregister(flush_all)
        atexit.register(flush_all)

    def start_anew(self) -> None:
        """Forget everything: in a forked child, what was heard is its parent's to count, and the thread is not here."""
        self._heard: deque[tuple[float, e.Event]] = deque()
        self._counts: Counter[tuple[str, str]] = Counter()
        #: The fence and the time of each run that has begun here, by its job.
        self._begun: dict[str, tuple[int, float]] = {}
        self._flushing = threading.Lock()
        self._thread: threading.Thread | None = None
        #: Whether that thread has still to begin.
        self._awaited = False
        self._ending = threading.Event()
        #: Whether counts are flushed by a thread that is there while any wait. Off where somebody else calls `flush`.
        self.by_itself = True

    def __call__(self, event: e.Event) -> None:
        """Hear of an event."""
        self._heard.append((monotonic(), event))
        if not self._awaited and self.by_itself:
            self._flush_later()

    def flush_at_last(self) -> None:
        """Flush once more, at the end of the process; a store that is away does not hold it up."""
        self._ending.set()
        # In the thread that is there while counts wait: an interpreter that is ending starts no others.
        if self._thread and self._thread.is_alive():
            self._thread.join(FAREWELL_SECONDS)
        else:
            self.flush()

    def flush(self) -> None:
        """Add what has been heard to the ledger's counters; what a store that is away does not take waits."""
        with self._flushing:
            self._awaited = False
            for _ in range(len(self._heard)):
                self._add(*self._heard.popleft())
            if not self._counts:
                return
            try:
                self._count(self._counts)
                self._counts.clear()
            except OnceleryError as error:
                _logger.info("could not add to the counters, will try again: %s", error)
                if self.by_itself and not self._ending.is_set():
                    self._flush_later()

    def _flush_later(self) -> None:
        self._awaited = True
        self._thread = threading.Thread(target=self._wait_and_flush, name="oncelery-counting", daemon=True)
        # An interpreter that is ending starts no threads; it flushes once more itself.
        with suppress(RuntimeError):
            self._thread.start()

    def _wait_and_flush(self) -> None:
        self._ending.wait(FLUSH_EVERY)
        self.flush()

    def _add(self, at: float, event: e.Event) -> None:
        task = event.task
        self._counts[task, event.decision] += 1
        if detail := detail_of(event):
            self._counts[task, f"{event.decision}{SEPARATOR}{detail}"] += 1
        match event:
            case e.RunBegan(fence=fence):
                self._begun[event.job_id] = (fence, at)
            case e.RunRestored(fence=fence):
                # The same run: its time counts from where it began.
                self._begun[event.job_id] = (fence, self._begun.get(event.job_id, (0, at))[1])
            case e.LeaseLost(fence=fence):
                # What took over may run in this very process, under the same id but a higher fence.
                if self._begun.get(event.job_id, (0, at))[0] == fence:
                    del self._begun[event.job_id]
            case e.JobCompleted() | e.JobReleased() | e.JobBuried() | e.JobCancelled():
                if begun := self._begun.pop(event.job_id, None):
                    self._add_run(task, at - begun[1])

    def _add_run(self, task: str, seconds: float) -> None:
        self._counts[task, f"{RUN}{SEPARATOR}{RUN_BOUNDS[bisect_left(_BOUNDS, seconds)]}"] += 1
        self._counts[task, RUN_MICROSECONDS] += round(seconds * 1e6)


_all: weakref.WeakSet[Counting] = weakref.WeakSet()


def flush_all() -> None:
    """Flush whatever this process has counted; for its end."""
    for counting in list(_all):
        counting.flush_at_last()


def _start_all_anew() -> None:
    for counting in list(_all):
        counting.start_anew()


os.register_at_fork(after_in_child=_start_all_anew)
