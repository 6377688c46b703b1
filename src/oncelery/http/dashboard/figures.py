"""Numbers that are added up: outcomes by minute, durations by task, duplicates by hour."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from oncelery.events import DuplicateAnswered, JobBuried, JobCancelled, JobCompleted, JobReleased, RunBegan
from oncelery.job import Cause, DuplicateCount, Job, Page, State, Tally
from oncelery.telemetry.counting import RUN, RUN_BOUNDS, RUN_MICROSECONDS, SEPARATOR

if TYPE_CHECKING:
    from oncelery.celery.extension import Oncelery

T = TypeVar("T")

#: What is counted by the minute, in the order in which it is drawn.
OUTCOMES: Final = (
    JobCompleted.decision,
    JobReleased.decision,
    JobBuried.decision,
    JobCancelled.decision,
    DuplicateAnswered.decision,
)

#: How far back minutes are kept.
SPAN: Final = timedelta(hours=6)

#: How much of the ledger is read to know the minutes before anybody looked.
READ_AT_MOST: Final = 1000

#: How old a sum of the ledger may be, in seconds; all who look within it share one.
FRESH: Final = 0.8

#: How long nobody may have looked for the counters to tell in which minute something happened, in seconds.
GAP: Final = 30.0


class Lately(Generic[T]):
    """Answers what was found out last; finds out anew in the background, when somebody asks and it is old."""

    def __init__(self, find_out: Callable[[], T], *, every: float) -> None:
        self._find_out = find_out
        self._every = every
        self._lock = threading.Lock()
        self._known: T | None = None
        self._asked = float("-inf")

    def __call__(self) -> T | None:
        """Answer; None when nothing is known yet."""
        with self._lock:
            if monotonic() - self._asked > self._every:
                self._asked = monotonic()
                threading.Thread(target=self._ask, name="oncelery-dashboard", daemon=True).start()
            return self._known

    def _ask(self) -> None:
        self._known = self._find_out()


@dataclass(frozen=True, slots=True)
class Minute:
    """What happened in one minute."""

    at: datetime
    counts: Mapping[str, int]


class Pulse:
    """What the ledger decides, by the minute.

    While anybody looks, from its counters. Of the time before, from the newest jobs and duplicates that it keeps.
    """

    def __init__(self, once: Oncelery) -> None:
        self._once = once
        self._lock = threading.Lock()
        self._minutes: dict[datetime, Counter[str]] = {}
        self._tally: Tally | None = None
        self._totals: Counter[str] = Counter()
        self._read_at = float("-inf")
        #: From when on the minutes tell everything.
        self.since = datetime.now(UTC)
        #: How long the ledger took for its last sum.
        self.round_trip = timedelta(0)

    def tally(self) -> Tally:
        """Give the sum of the ledger, not older than a moment."""
        with self._lock:
            if self._tally is None or monotonic() - self._read_at > FRESH:
                started = monotonic()
                tally = self._once.ledger.tally()
                self.round_trip = timedelta(seconds=monotonic() - started)
                self._add(tally, after=started - self._read_at)
                self._tally, self._read_at = tally, monotonic()
            return self._tally

    def minutes(self, span: timedelta) -> list[Minute]:
        """Give each minute since so long ago, also those in which nothing happened; none from before `since`."""
        self.tally()
        now = _minute(datetime.now(UTC))
        first = max(now - span, self.since)
        count = int((now - first) / timedelta(minutes=1)) + 1
        with self._lock:
            return [
                Minute(at, dict(self._minutes.get(at, {})))
                for at in (now - timedelta(minutes=back) for back in range(count - 1, -1, -1))
            ]

    def _add(self, tally: Tally, *, after: float) -> None:
        totals = Counter[str]()
        for (_task, counted), count in tally.decisions.items():
            if counted in OUTCOMES:
                totals[counted] += count
        if after > GAP:
            self._read_past()
        else:
            self._minutes.setdefault(_minute(datetime.now(UTC)), Counter()).update(totals - self._totals)
        self._totals = totals
        for old in [at for at in self._minutes if at < datetime.now(UTC) - SPAN]:
            del self._minutes[old]

    def _read_past(self) -> None:
        """Read anew what happened in the minutes before."""
        now = datetime.now(UTC)
        jobs, duplicates = self._once.jobs, self._once.duplicates
        ended = {State.COMPLETED, State.BURIED, State.CANCELLED}
        found, known_from = _newest(
            lambda cursor: jobs.find(states=ended, since=now - SPAN, cursor=cursor, limit=200),
            _ends_of,
        )
        answered, audited_from = _newest(
            lambda cursor: duplicates.find(cursor=cursor, limit=200),
            lambda duplicate: [(duplicate.at, DuplicateAnswered.decision)],
        )
        self.since = max(now - SPAN, _next_minute(known_from), _next_minute(audited_from))
        self._minutes = {}
        for at, word in [*found, *answered]:
            self._minutes.setdefault(_minute(at), Counter())[word] += 1


def _ends_of(job: Job) -> list[tuple[datetime, str]]:
    """Tell when the job ended, and when runs of it did that had not finished it; the newest first."""
    released = [(run.ended_at, JobReleased.decision) for run in job.past if run.cause is not Cause.LAPSE]
    return [(job.changed_at, job.state.value), *released]


def _newest(
    page_at: Callable[[str], Page[T]], read: Callable[[T], list[tuple[datetime, str]]]
) -> tuple[list[tuple[datetime, str]], datetime]:
    """Read so many of the newest; tell from when on they are all there."""
    found: list[tuple[datetime, str]] = []
    cursor, count, oldest = "", 0, datetime.min.replace(tzinfo=UTC)
    while count < READ_AT_MOST:
        page = page_at(cursor)
        for item in page.items:
            (oldest, word), *more = read(item)
            found += [(oldest, word), *more]
        count += len(page.items)
        cursor = page.cursor
        if not cursor:
            return found, datetime.min.replace(tzinfo=UTC)
    return found, oldest


def _minute(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(second=0, microsecond=0)


def _next_minute(at: datetime) -> datetime:
    return _minute(at) + timedelta(minutes=1) if at.year > 1 else at


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
        """How many runs have begun."""
        return self.counts[RunBegan.decision]

    @property
    def jobs(self) -> int:
        """How many jobs were accepted."""
        return self.counts["accepted"]

    @property
    def crash_rate(self) -> float | None:
        """How many of a hundred runs were cut short: died with their process, or were taken over."""
        cut_short = self.counts[f"{JobReleased.decision}{SEPARATOR}{Cause.CRASH}"] + self.counts["fenced"]
        return 100 * cut_short / self.began if self.began else None

    @property
    def mean(self) -> timedelta | None:
        """How long a run takes on average."""
        return timedelta(microseconds=self.counts[RUN_MICROSECONDS] / self.runs) if self.runs else None

    def within(self, share: float) -> str:
        """Tell within how many seconds so large a share of all runs ended: the bound that the counters know."""
        enough, total = self.runs * share, 0
        for lower, bound in zip(("0", *RUN_BOUNDS), RUN_BOUNDS, strict=False):
            total += self.counts[f"{RUN}{SEPARATOR}{bound}"]
            if total and total >= enough:
                return f"> {_worded(lower)}" if bound == "+Inf" else f"≤ {_worded(bound)}"
        return ""


def by_task(decisions: Mapping[tuple[str, str], int]) -> dict[str, TaskFigures]:
    """Sort the counters by task."""
    tasks: dict[str, TaskFigures] = {}
    for (task, counted), count in decisions.items():
        tasks.setdefault(task, TaskFigures(name=task)).counts[counted] += count
    return tasks


def by_hour(counts: Iterable[DuplicateCount], since: datetime) -> list[tuple[datetime, Counter[str]]]:
    """Sort counts of duplicates by hour and answer; an hour without any is there, too."""
    hours: defaultdict[datetime, Counter[str]] = defaultdict(Counter)
    for each in counts:
        hours[each.hour][each.answer] += each.count
    first = since.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    now = datetime.now(UTC)
    span = int((now - first) / timedelta(hours=1)) + 1
    return [(at, hours[at]) for at in (first + timedelta(hours=n) for n in range(span))]


def ranked(counts: Iterable[DuplicateCount]) -> Sequence[tuple[tuple[str, str], Counter[str]]]:
    """Sort counts of duplicates by task and scope, the most first."""
    found: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for each in counts:
        found[each.task, each.scope][each.answer] += each.count
    return list(islice(sorted(found.items(), key=lambda item: (-item[1].total(), item[0])), 100))


def _worded(bound: str) -> str:
    seconds = float(bound)
    if seconds < 1:
        return f"{seconds * 1000:g} ms"
    return f"{seconds:g} s" if seconds < 60 else f"{seconds / 60:g} min"  # noqa: PLR2004 - a minute
