"""The nouns of the ledger: what is submitted, the job it becomes, the lease to run it.

These, the answers, settlements and events are msgspec's structs: frozen as dataclasses can be, and made in a tenth of
the time, which counts where every task makes a dozen. Change one with `msgspec.structs.replace`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Generic, Self, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

T = TypeVar("T")
Text = TypeVar("Text", str, str | None)

#: Keeps the ledgers of several applications on one server apart; the Redis hash tag, the PostgreSQL schema.
DEFAULT_NAMESPACE = "oncelery"

#: How long a completed key answers duplicates with its result.
DEFAULT_RETENTION = timedelta(hours=24)

#: How long finished jobs stay readable by id.
DEFAULT_HISTORY = timedelta(days=7)

#: The longest of all times, 1000 years or so: past the year 9999 there are none that could be read again.
LONGEST = timedelta(days=365_000)

NO_TIME = timedelta(0)
MICROSECOND = timedelta(microseconds=1)

#: From when fences count: a fence is no less than the ledger's time in microseconds, when its run began.
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: How long a completed job answers the requests that are bound to it by their alias, at least.
ALIAS_RETENTION = timedelta(hours=24)

#: How many aliases a job may have; further requests find it by its key alone.
ALIASES_KEPT = 100

#: How many unfinished attempts a job remembers.
PAST_KEPT = 20

#: How many characters of a string a list shows; and how many bytes of its JSON a store reads for that.
SUMMARY_LENGTH = 500
SUMMARY_BYTES = 4096


class State(StrEnum):
    """Where a job stands. The SQL check constraint and the Lua scripts list the same five words."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    BURIED = "buried"
    CANCELLED = "cancelled"

    @property
    def live(self) -> bool:
        """Whether the job is still to end: it holds its key, and the sweeper watches it."""
        return self in (State.QUEUED, State.RUNNING)


class OnDuplicate(StrEnum):
    """What a submission does when its key has a live job."""

    JOIN = "join"
    REJECT = "reject"
    TRAIL = "trail"
    REPLACE = "replace"


class Durability(StrEnum):
    """What an acknowledged transition survives: see docs/guarantees.md."""

    FAST = "fast"
    SAFE = "safe"


#: Reasons for a cancellation that Oncelery itself gives: a dead letter was discarded; the lease of a job without a body
#: has lapsed, and nothing can publish it again; the job could not be published, and its caller got an error; a dead
#: letter was revived as the job whose id follows.
DISCARDED, LAPSED, NOT_PUBLISHED, REVIVED_AS = "discarded", "lapsed", "not published", "revived as "
#: Those that are acted upon. A caller's reason that equals one of them is quoted, so that it is not read as ours.
OWN_REASONS = frozenset({DISCARDED, LAPSED, NOT_PUBLISHED})


class Reason(StrEnum):
    """Why a job was buried; a cancelled job's reason is free text."""

    FAILED = "failed"
    EXHAUSTED = "exhausted"
    CRASHED = "crashed"
    NEVER_STARTED = "never started"
    OUTCOME_UNKNOWN = "outcome unknown"


class Cause(StrEnum):
    """Why a run ended without finishing its job."""

    RETRY = "retry"
    HANDBACK = "handback"
    CRASH = "crash"
    LAPSE = "lapse"
    #: It failed for good; later its job was revived.
    BURIAL = "burial"


class Lost(StrEnum):
    """What a job seems to have lost that the sweeper publishes again."""

    #: Its lease has lapsed.
    WORKER = "worker"
    MESSAGE = "message"


class Answer(StrEnum):
    """What a duplicate was answered, in the audit."""

    JOINED = "joined"
    REJECTED = "rejected"
    AMENDED = "amended"
    REFUSED = "refused"
    BUSY = "busy"
    REPLAYED = "replayed"
    BURIED = "buried"


class Quota(Struct, frozen=True, kw_only=True):
    """What one tenant may have of the ledger; 0 is no limit."""

    #: How many of its jobs may be queued or running at a time.
    max_active: int = 0
    #: How many it may have accepted in a minute: so many at once, and then evenly.
    per_minute: int = 0


class Submission(Struct, frozen=True, kw_only=True):
    """Work offered under a key: by a publisher to `reserve`, by a worker to `begin`."""

    id: str
    key: str
    task: str
    #: The message to publish again if broker or worker loses it. None: not at hand (a worker's first `begin`).
    #: Empty: never to be published; such a job ends when its lease lapses.
    body: bytes | None = None
    #: What the caller calls this request (`Idempotency-Key`), beside the key of the work; empty: nothing.
    alias: str = ""
    #: Digest of the payload, where the caller chose a name: of the alias if there is one, else of the key.
    digest: str = ""
    #: What a task id was sent after, where it is part of a canvas: the same id after something else is another call.
    follows: str = ""
    scope: str = ""
    queue: str = "celery"
    caller: str = ""
    delay: timedelta = timedelta(0)
    #: How long the completed job answers duplicates, and how long it stays readable (never less).
    retention: timedelta = DEFAULT_RETENTION
    history: timedelta = DEFAULT_HISTORY
    durability: Durability = Durability.FAST
    #: What its scope may have. Not for a job without a scope.
    quota: Quota | None = None

    def is_another_call(self, job: Job) -> bool:
        """Whether that job has this id, but was sent after something else."""
        return job.id == self.id and self.follows not in ("", job.follows)

    @property
    def key_digest(self) -> str:
        """The digest that calls under the same key must share; empty where that is no matter of the key."""
        return "" if self.alias else self.digest

    def accepted(self, now: datetime, *, fence: int = 0, behind: str = "") -> Job:
        """Give the job that this becomes; it starts from the fence its key had last."""
        return Job(
            id=self.id,
            key=self.key,
            task=self.task,
            state=State.QUEUED,
            scope=self.scope,
            queue=self.queue,
            caller=self.caller,
            digest=self.key_digest,
            follows=self.follows,
            body=self.body,
            created_at=now,
            changed_at=now,
            not_before=now + self.delay if self.delay else None,
            fence=fence,
            behind=behind,
        )


class Lease(Struct, frozen=True, kw_only=True):
    """The bounded right of one run. Ownership is (running, fence, holder); `until` only says when others may ask."""

    job_id: str
    key: str
    task: str
    scope: str
    holder: str
    fence: int
    attempt: int
    crashes: int
    until: datetime
    duration: timedelta
    durability: Durability = Durability.FAST


class Failure(Struct, frozen=True, kw_only=True):
    """An exception as text; never revived as an object."""

    type: str
    message: str
    traceback: str = ""


class Progress(Struct, frozen=True, kw_only=True):
    """How far a run says it has come."""

    done: float
    total: float | None = None
    stage: str | None = None
    message: str | None = None


class Attempt(Struct, frozen=True, kw_only=True):
    """A run that ended without finishing its job."""

    number: int
    fence: int
    worker: str
    begun_at: datetime
    ended_at: datetime
    cause: Cause
    error: Failure | None = None


class JobSummary(Struct, frozen=True, kw_only=True):
    """A job as a list shows it: whatever may be large is left out, or cut (see `SUMMARY_LENGTH`)."""

    id: str
    key: str
    task: str
    state: State
    scope: str = ""
    queue: str = "celery"
    caller: str = ""

    created_at: datetime
    #: The last transition; the order of `find`.
    changed_at: datetime
    not_before: datetime | None = None
    begun_at: datetime | None = None
    settled_at: datetime | None = None
    #: Until when a duplicate is answered with the result; None unless completed.
    retained_until: datetime | None = None

    #: The current run, or the last one.
    holder: str = ""
    worker: str = ""
    fence: int = 0
    lease_until: datetime | None = None
    attempt: int = 0
    crashes: int = 0

    cancel_requested: bool = False
    #: The job of the same key that must end before this one may begin (`on_duplicate="trail"`).
    behind: str = ""
    #: Why it was buried or cancelled.
    reason: str = ""
    error: Failure | None = None
    #: Why the result is not kept: too large, or not serialisable. Empty if it is kept.
    result_omitted: str = ""
    progress: Progress | None = None
    #: How many duplicates were answered with this job.
    duplicates: int = 0

    def shortened(self) -> Self:
        """Cut strings to what a list shows of them: of an error the first line, and no traceback."""
        error, progress = self.error, self.progress
        return replace(
            self,
            reason=_cut(self.reason),
            error=error and Failure(type=_cut(error.type), message=_cut(error.message.split("\n", 1)[0])),
            result_omitted=_cut(self.result_omitted),
            progress=progress and replace(progress, stage=_cut(progress.stage), message=_cut(progress.message)),
        )


class Job(JobSummary, frozen=True, kw_only=True):
    """One accepted submission, as the ledger knows it now."""

    digest: str = ""
    follows: str = ""
    #: Kept while the job may be published again (queued, running, buried), then dropped.
    body: bytes | None = None
    #: Earlier runs that did not finish the job, oldest first; the newest `PAST_KEPT` of them.
    past: tuple[Attempt, ...] = ()
    result: bytes | None = None
    #: What took the place of the task (`Task.replace`), packed; the job has no result then.
    replaced_by: bytes | None = None
    steps: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}))

    def summary(self) -> JobSummary:
        """Return what a list shows of it."""
        return JobSummary(**{name: getattr(self, name) for name in JobSummary.__struct_fields__}).shortened()

    def keeps_key(self, now: datetime) -> bool:
        """Whether a new submission gets this job back."""
        # A retention of nothing keeps no key, whatever the clock said when the job ended.
        ended = self.settled_at or now
        return self.state.live or bool(self.retained_until and self.retained_until > max(now, ended))

    def lease(self, duration: timedelta, durability: Durability) -> Lease:
        """Give the lease of the run under way."""
        assert self.lease_until is not None  # noqa: S101 - a running job has a lease
        return Lease(
            job_id=self.id,
            key=self.key,
            task=self.task,
            scope=self.scope,
            holder=self.holder,
            fence=self.fence,
            attempt=self.attempt,
            crashes=self.crashes,
            until=self.lease_until,
            duration=duration,
            durability=durability,
        )


class Query(Struct, frozen=True, kw_only=True):
    """Which jobs to find, newest change first. Empty means any."""

    states: frozenset[State] = frozenset()
    task: str = ""
    scope: str = ""
    since: datetime | None = None
    until: datetime | None = None
    cursor: str = ""
    limit: int = 50

    def matches(self, job: JobSummary) -> bool:
        """Whether the job is among those asked for, whatever the page."""
        return (
            (not self.states or job.state in self.states)
            and self.task in ("", job.task)
            and self.scope in ("", job.scope)
            and (self.since is None or job.changed_at >= self.since)
            and (self.until is None or job.changed_at < self.until)
        )


class Page(Struct, Generic[T], frozen=True, kw_only=True):
    """Some of what was asked for, and the cursor that continues it (empty at the end)."""

    items: tuple[T, ...]
    cursor: str = ""


class Duplicate(Struct, frozen=True, kw_only=True):
    """One duplicate and what it was answered."""

    at: datetime
    job_id: str
    task: str
    scope: str
    caller: str
    answer: Answer


class DuplicateCount(Struct, frozen=True, kw_only=True):
    """How many duplicates of a task and scope were given an answer in one hour."""

    hour: datetime
    task: str
    scope: str
    answer: Answer
    count: int


class Tally(Struct, frozen=True, kw_only=True):
    """How the ledger stands as a whole."""

    states: Mapping[State, int]
    #: Running jobs whose lease has lapsed.
    lapsed: int
    #: How long the most overdue live job has waited for its check.
    overdue: timedelta
    #: What `count` has added up, by (task, decision).
    decisions: Mapping[tuple[str, str], int]


def _cut(text: Text) -> Text:
    return text and text[:SUMMARY_LENGTH]
