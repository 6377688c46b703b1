"""Numbers that are added up: outcomes by minute, durations by task, duplicates by hour."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from time import monotonic
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from oncelery.events import DuplicateAnswered, JobReleased, RunBegan
from oncelery.job import Cause, Duplicate, DuplicateCount, Page, State, Tally
from oncelery.operations.queries import each
from oncelery.telemetry.counting import RUN, RUN_BOUNDS, RUN_MICROSECONDS, SEPARATOR, bounds_of

if TYPE_CHECKING:
    from oncelery.celery.extension import Oncelery

T = TypeVar("T")

#: What is counted by the minute, in the order in which it is drawn: how jobs ended, and duplicates.
OUTCOMES: Final = (State.COMPLETED.value, State.BURIED.value, State.CANCELLED.value, DuplicateAnswered.decision)

#: How far back minutes are kept.
SPAN: Final = timedelta(hours=6)

#: How much is read at once of what has happened since somebody looked.
READ_AT_MOST: Final = 1000

#: How late a change may be seen: a transaction's is as old as its statement, and there once it is committed.
OVERLAP: Final = timedelta(seconds=3)

#: How old figures may be, in seconds; all who look within it share them.
FRESH: Final = 0.8

#: When nobody has looked for so long, what was known then is no longer told, in seconds.
FORGOTTEN_AFTER: Final = 60.0


class Lately(Generic[T]):
    """Answers what was found out last; finds out anew in the background, when somebody asks and it is old."""

    def __init__(self, find_out: Callable[[], T], *, every: float) -> None:
        self._find_out = find_out
        self._every = every
        self._lock = threading.Lock()
        self._known: T | None = None
        self._asked = self._looked = float("-inf")
        self._asking = False

    def __call__(self) -> T | None:
        """Answer; None when nothing is known yet, or not since long ago."""
        with self._lock:
            if monotonic() - self._looked > FORGOTTEN_AFTER:
                self._known = None
            self._looked = monotonic()
            # Never two at once: one that gets no answer would be joined by another every few seconds.
            if not self._asking and monotonic() - self._asked > self._every:
                self._asking, self._asked = True, monotonic()
                threading.Thread(target=self._ask, name="oncelery-dashboard", daemon=True).start()
            return self._known

    def _ask(self) -> None:
        try:
            self._known = self._find_out()
        finally:
            self._asking = False


class Tail(Generic[T]):
    """Gives what has come to a list, of which the newest comes first, since this was last asked."""

    def __init__(self, page_at: Callable[[str], Page[T]], at: Callable[[T], datetime]) -> None:
        self._page_at = page_at
        self._at = at
        self._newest: datetime | None = None
        #: What was given lately, which comes again because of the overlap.
        self._known: set[T] = set()
        #: From when on nothing was left out.
        self.complete_from = datetime.now(UTC) - SPAN

    def new(self) -> list[T]:
        """Give what is new; of very much only the newest."""
        stop = self._newest - OVERLAP if self._newest else self.complete_from
        read = list(islice(takewhile(lambda item: self._at(item) >= stop, each(self._page_at)), READ_AT_MOST))
        if len(read) == READ_AT_MOST:
            self.complete_from = _minute(self._at(read[-1])) + timedelta(minutes=1)
        new = [item for item in read if item not in self._known]
        # What a store's clock that was ahead has written must not hide what comes after it.
        newest = max(map(self._at, read), default=self._newest)
        self._newest = newest and min(newest, datetime.now(UTC))
        self._known = {item for item in read if self._newest and self._at(item) >= self._newest - OVERLAP}
        return new


@dataclass(frozen=True, slots=True)
class Minute:
    """What happened in one minute."""

    at: datetime
    counts: Mapping[str, int]


class Pulse:
    """How jobs end, by the minute, and how the ledger stands: read from it when somebody looks, and then kept."""

    def __init__(self, once: Oncelery) -> None:
        self._once = once
        self._lock = threading.Lock()
        self._ended = Tail(self._ended_at, lambda ended: ended.at)
        self._answered: Tail[Duplicate] = Tail(
            lambda cursor: once.duplicates.find(cursor=cursor, limit=200), lambda duplicate: duplicate.at
        )
        self._minutes: dict[datetime, Counter[str]] = {}
        self._minutes_read = self._tally_read = float("-inf")
        self._tally: Tally | None = None
        #: How long the ledger took for its last sum.
        self.round_trip = timedelta(0)

    def tally(self) -> Tally:
        """Give the sum of the ledger, not older than a moment."""
        with self._lock:
            started = monotonic()
            if self._tally is None or started - self._tally_read > FRESH:
                self._tally = self._once.ledger.tally()
                self._tally_read = monotonic()
                self.round_trip = timedelta(seconds=self._tally_read - started)
            return self._tally

    def minutes(self, span: timedelta) -> list[Minute]:
        """Give each minute since so long ago, also those in which nothing happened; none that is not whole."""
        with self._lock:
            if monotonic() - self._minutes_read > FRESH:
                self._read()
                self._minutes_read = monotonic()
            now = _minute(datetime.now(UTC))
            first = max(now - span, self._ended.complete_from, self._answered.complete_from)
            count = max(int((now - first) / timedelta(minutes=1)) + 1, 1)
            moments = [now - timedelta(minutes=back) for back in range(count - 1, -1, -1)]
            return [Minute(at, dict(self._minutes.get(at, {}))) for at in moments]

    def _read(self) -> None:
        # Each is given but once: it counts before the store is asked again, which may fail.
        for ended in self._ended.new():
            self._count(ended.at, ended.state.value)
        for duplicate in self._answered.new():
            self._count(duplicate.at, DuplicateAnswered.decision)
        for old in [at for at in self._minutes if at < datetime.now(UTC) - SPAN]:
            del self._minutes[old]

    def _count(self, at: datetime, word: str) -> None:
        self._minutes.setdefault(_minute(at), Counter())[word] += 1

    def _ended_at(self, cursor: str) -> Page[Ended]:
        page = self._once.jobs.find(states=ENDS, cursor=cursor, limit=200)
        return Page(items=tuple(Ended(job.changed_at, job.id, job.state) for job in page.items), cursor=page.cursor)


class Ended(NamedTuple):
    """A job that ended."""

    at: datetime
    job_id: str
    state: State


ENDS: Final = (State.COMPLETED, State.BURIED, State.CANCELLED)


def _minute(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(second=0, microsecond=0)


@dataclass(kw_only=True)
class TaskFigures:
    """What the counters tell of one task, since they began."""

    name: str
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def runs(self) -> int:
        """How many runs have ended, so that their time is known."""
        return sum(self.counts[f"{RUN}{SEPARATOR}{bound}"] for bound in RUN_BOUNDS)

    @property
    def began(self) -> int:
        """How many runs have begun, also those that took their counts with them when they were killed."""
        return max(self.counts[RunBegan.decision], self.runs, self.cut_short)

    @property
    def cut_short(self) -> int:
        """How many runs died with their process, or were taken over."""
        return self.counts[f"{JobReleased.decision}{SEPARATOR}{Cause.CRASH}"] + self.counts["fenced"]

    @property
    def jobs(self) -> int:
        """How many jobs were accepted."""
        return self.counts["accepted"]

    @property
    def crash_rate(self) -> float | None:
        """How many of a hundred runs were cut short."""
        return 100 * self.cut_short / self.began if self.began else None

    @property
    def mean(self) -> timedelta | None:
        """How long a run takes on average."""
        return timedelta(microseconds=self.counts[RUN_MICROSECONDS] / self.runs) if self.runs else None

    def within(self, share: float) -> str:
        """Tell within how many seconds so large a share of all runs ended: the bound that the counters know."""
        lower, bound = bounds_of(self.counts, share) or ("", "")
        if bound == "+Inf":
            return f"> {_worded(lower)}"
        return f"≤ {_worded(bound)}" if bound else ""


def by_task(decisions: Mapping[tuple[str, str], int]) -> dict[str, TaskFigures]:
    """Sort the counters by task."""
    tasks: dict[str, TaskFigures] = {}
    for (task, counted), count in decisions.items():
        tasks.setdefault(task, TaskFigures(name=task)).counts[counted] += count
    return tasks


def by_hour(counts: Iterable[DuplicateCount], since: datetime) -> list[tuple[datetime, Counter[str]]]:
    """Sort counts of duplicates by hour and answer; an hour without any is there, too."""
    hours: defaultdict[datetime, Counter[str]] = defaultdict(Counter)
    for count in counts:
        hours[count.hour][count.answer] += count.count
    first = since.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    now = datetime.now(UTC)
    span = int((now - first) / timedelta(hours=1)) + 1
    return [(at, hours[at]) for at in (first + timedelta(hours=n) for n in range(span))]


def ranked(counts: Iterable[DuplicateCount]) -> Sequence[tuple[tuple[str, str], Counter[str]]]:
    """Sort counts of duplicates by task and scope, the most first."""
    found: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for count in counts:
        found[count.task, count.scope][count.answer] += count.count
    return list(islice(sorted(found.items(), key=lambda item: (-item[1].total(), item[0])), 100))


def _worded(bound: str) -> str:
    seconds = float(bound)
    if seconds < 1:
        return f"{seconds * 1000:g} ms"
    return f"{seconds:g} s" if seconds < 60 else f"{seconds / 60:g} min"  # noqa: PLR2004 - a minute
