"""One job in the order in which it happened, from its record and the audit of duplicates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final

from oncelery.job import Attempt, Cause, Duplicate, Failure, Job, State

#: What a run's end without the job's end means.
CAUSES: Final[Mapping[Cause, str]] = MappingProxyType(
    {
        Cause.RETRY: "failed, and will be tried again",
        Cause.HANDBACK: "was handed back by a worker that stopped",
        Cause.CRASH: "died with its process",
        Cause.LAPSE: "went silent until its lease lapsed",
        Cause.BURIAL: "failed for good, and was revived",
    }
)

#: Runs that ended like this said nothing of their effect.
CUT_SHORT: Final = frozenset({Cause.CRASH, Cause.LAPSE})

_ENDS: Final[Mapping[State, str]] = MappingProxyType(
    {State.COMPLETED: "Completed", State.BURIED: "Buried", State.CANCELLED: "Cancelled"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Something happened to the job."""

    at: datetime
    #: How long after the job was accepted.
    after: timedelta = timedelta(0)
    #: Of which kind, for its mark: accepted, began, took over, ended, duplicate, or a state.
    kind: str
    what: str
    detail: str = ""
    error: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunShown:
    """One run of the job, past or present."""

    #: Which run of the job it is, through all its revivals.
    number: int
    fence: int
    worker: str
    holder: str
    begun_at: datetime
    ended_at: datetime | None
    #: How it ended, or that it runs.
    end: str
    #: Whether the run before it was cut short.
    took_over: bool
    lease_until: datetime | None = None
    #: When the lease was last renewed, where the task's policy is known here.
    renewed_at: datetime | None = None
    error: Failure | None = None

    @property
    def took(self) -> timedelta | None:
        """How long it ran."""
        return self.ended_at - self.begun_at if self.ended_at else None


def runs_of(job: Job, lease: timedelta | None = None) -> list[RunShown]:
    """Give all runs that the job remembers, oldest first."""
    runs: list[RunShown] = []
    before: Attempt | None = None
    # From the oldest that is kept on; attempts are counted anew after a revival, and not at all if handed back.
    first = job.past[0].number if job.past else job.attempt
    for number, attempt in enumerate(job.past, first):
        runs.append(_past(number, attempt, before))
        before = attempt
    # A job that was revived has no attempt yet, and no run but those before.
    if job.begun_at and job.attempt and all(attempt.fence != job.fence for attempt in job.past):
        runs.append(_newest(first + len(runs), job, before, lease))
    return runs


def story_of(job: Job, duplicates: Iterable[Duplicate]) -> list[Moment]:
    """Tell what happened, in order."""
    moments = sorted([*_life(job), *map(_answered, duplicates)], key=lambda moment: moment.at)
    return [replace(moment, after=moment.at - job.created_at) for moment in moments]


def _life(job: Job) -> Iterator[Moment]:
    by = f"by {job.caller}, " if job.caller else ""
    yield Moment(at=job.created_at, kind="accepted", what="Accepted", detail=f"{by}for queue {job.queue}")
    for place, run in enumerate(runs_of(job)):
        on = f"on {run.worker}, fence {run.fence}" if run.worker else f"fence {run.fence}"
        what = f"Run {run.number} {'took over' if run.took_over else 'began'}"
        yield Moment(at=run.begun_at, kind="took over" if run.took_over else "began", what=what, detail=on)
        if run.ended_at and place < len(job.past):
            yield Moment(at=run.ended_at, kind="ended", what=f"Run {run.number} {run.end}", error=run.error)
    if job.settled_at and job.state in _ENDS:
        yield Moment(at=job.settled_at, kind=job.state, what=_ENDS[job.state], detail=job.reason, error=job.error)


def _answered(duplicate: Duplicate) -> Moment:
    to = f"to {duplicate.caller}" if duplicate.caller else ""
    return Moment(at=duplicate.at, kind="duplicate", what=f"A duplicate was answered: {duplicate.answer}", detail=to)


def _past(number: int, attempt: Attempt, before: Attempt | None) -> RunShown:
    return RunShown(
        number=number,
        fence=attempt.fence,
        worker=attempt.worker,
        holder="",
        begun_at=attempt.begun_at,
        ended_at=attempt.ended_at,
        end=CAUSES[attempt.cause],
        took_over=_took_over(before),
        error=attempt.error,
    )


def _newest(number: int, job: Job, before: Attempt | None, lease: timedelta | None) -> RunShown:
    assert job.begun_at  # noqa: S101 - it has begun
    running = job.state is State.RUNNING
    return RunShown(
        number=number,
        fence=job.fence,
        worker=job.worker,
        holder=job.holder,
        begun_at=job.begun_at,
        ended_at=job.settled_at,
        end="is running" if running else f"ended as {job.state}",
        took_over=_took_over(before),
        lease_until=job.lease_until if running else None,
        renewed_at=job.lease_until - lease if running and lease and job.lease_until else None,
        error=job.error,
    )


def _took_over(before: Attempt | None) -> bool:
    return before is not None and before.cause in CUT_SHORT
