"""The one door to the store: validates what goes in, raises what is an error, tells what happened."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import perf_counter
from typing import NoReturn, TypeVar, assert_never

from msgspec.structs import replace

from oncelery import answers as a
from oncelery import events as e
from oncelery.errors import IdTakenError, LimitReachedError, PayloadMismatchError, TooLargeError
from oncelery.job import (
    LONGEST,
    NO_TIME,
    OWN_REASONS,
    Answer,
    Duplicate,
    DuplicateCount,
    Job,
    JobSummary,
    Lease,
    Lost,
    OnDuplicate,
    Page,
    Progress,
    Query,
    State,
    Submission,
    Tally,
)
from oncelery.policy import Policy
from oncelery.settlement import Bury, Cancel, Complete, Release, Settlement
from oncelery.stores.base import Store

E = TypeVar("E", bound=e.Event)

_KEY = re.compile("[0-9a-f]{64}")
_JOINED = {OnDuplicate.REJECT: Answer.REJECTED, OnDuplicate.TRAIL: Answer.AMENDED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most the ledger takes, in bytes; past it, keep the thing elsewhere and pass a reference."""

    body: int = 1 << 20
    result: int = 1 << 20
    step: int = 256 << 10
    #: Ids, task names, scopes, queues and the like, in characters.
    name: int = 255


class Ledger:
    """Every verb of the domain, on any store."""

    def __init__(self, store: Store, *, limits: Limits | None = None) -> None:
        self.store = store
        self.events = e.Events()
        self.limits = limits or Limits()

    # Publishing

    def reserve(
        self, submission: Submission, *, on_duplicate: OnDuplicate = OnDuplicate.JOIN
    ) -> a.Reserved | a.Existing:
        """Accept a job under its key, or answer with the one that is there; raise if that one has another payload."""
        return self.reserving(submission, on_duplicate=on_duplicate)()

    def reserving(
        self, submission: Submission, *, on_duplicate: OnDuplicate = OnDuplicate.JOIN
    ) -> Callable[[], a.Reserved | a.Existing]:
        """Begin to `reserve`, and give a function that waits for the answer, to be called once."""
        self._check(submission)
        if submission.body is None:
            raise ValueError(
                f"job {submission.id!r} cannot be reserved without its body: nobody could publish it again"
            )
        started = perf_counter()
        wait = self.store.reserving(submission, on_duplicate=on_duplicate)
        return lambda: self._reserved(submission, on_duplicate, started, wait())

    def _reserved(
        self, submission: Submission, on_duplicate: OnDuplicate, started: float, answer: a.ReserveAnswer
    ) -> a.Reserved | a.Existing:
        if not isinstance(answer, a.Full) and submission.is_another_call(answer.job):
            raise IdTakenError(key=answer.job.key, job_id=submission.id, state=answer.job.state)
        match answer:
            case a.Reserved(job):
                self._emit(e.JobAccepted, job, started)
            case a.Existing(job, repeated):
                live = Answer.JOINED if repeated else _JOINED.get(on_duplicate, Answer.JOINED)
                word = Answer.REPLAYED if job.state is State.COMPLETED else live
                self._emit(e.DuplicateAnswered, job, started, answer=word)
            case a.Mismatched(job):
                self._refuse(job, started)
            case a.Full(wait):
                what = f"scope {submission.scope!r} has as many jobs as it may for now"
                raise LimitReachedError(what, key=submission.key, retry_after=wait)
            case _:
                assert_never(answer)
        return answer

    # Running

    def begin(
        self,
        submission: Submission,
        policy: Policy,
        *,
        worker: str = "",
        holder: str | None = None,
        restores: bool = False,
    ) -> a.Granted | a.Declined | a.Absent:
        """Ask to run a job. Repeat a call whose answer was lost with the same `holder`.

        A run that `restores` a job which the store has lost asks with its own `holder`, too.
        """
        self._check(submission)
        started = perf_counter()
        answer = self.store.begin(
            submission,
            holder=holder or os.urandom(16).hex(),
            worker=worker,
            lease=policy.lease,
            max_crashes=policy.max_crashes,
            hold=policy.on_takeover == "hold",
        )
        match answer:
            case a.Granted(lease) if restores:
                self._emit(e.RunRestored, lease, started, fence=lease.fence)
            case a.Granted(lease):
                self._emit(e.RunBegan, lease, started, fence=lease.fence, recovered=answer.recovered)
            case a.Busy(job):
                self._emit(e.DuplicateAnswered, job, started, answer=Answer.BUSY)
            case a.Finished(job):
                word = Answer.REPLAYED if job.state is State.COMPLETED else Answer.BURIED
                self._emit(e.DuplicateAnswered, job, started, answer=word)
            case a.Buried(job):
                self._emit(e.JobBuried, job, started, reason=job.reason)
            case a.Later(job) | a.Cancelled(job):
                self._emit(e.RunDeclined, job, started)
            case a.Mismatched(job):
                self._refuse(job, started)
            case a.Absent():
                pass
            case _:
                assert_never(answer)
        return answer

    def renew(self, leases: Sequence[Lease]) -> Sequence[a.RenewAnswer]:
        """Extend each lease that is still ours, all in one round trip."""
        return self.store.renew(leases)

    def record(
        self, lease: Lease, *, progress: Progress | None = None, step: tuple[str, bytes] | None = None
    ) -> a.RecordAnswer:
        """Write progress or a finished step, if the run is still ours."""
        if step:
            self.limit_step(*step)
        return self.store.record(lease, progress=progress, step=step)

    def limit_step(self, name: str, value: bytes = b"") -> None:
        """Refuse a step that is over its limits."""
        self._limit("step name", name, self.limits.name)
        self._limit(f"step {name!r}", value, self.limits.step)

    def limit_result(self, result: bytes) -> None:
        """Refuse a result that is over its limit."""
        self._limit("the result", result, self.limits.result)

    def settle(self, lease: Lease, settlement: Settlement) -> a.SettleAnswer:
        """End our run; the only way out of it."""
        if isinstance(settlement, Complete):
            settlement = self._kept(settlement)
        elif isinstance(settlement, Release) and settlement.delay > LONGEST:
            # Not refused: the run is over, and its job must not be left as if it were not.
            settlement = replace(settlement, delay=LONGEST)
        elif isinstance(settlement, Cancel):
            settlement = replace(settlement, reason=_quoted(settlement.reason))
        started = perf_counter()
        answer = self.store.settle(lease, settlement)
        match answer, settlement:
            case a.Settled(State.COMPLETED), _:
                self._emit(e.JobCompleted, lease, started)
            case a.Settled(State.QUEUED), Release(cause=cause, delay=delay):
                self._emit(e.JobReleased, lease, started, cause=cause, delay=delay)
            case a.Settled(State.BURIED), Bury():
                self._emit(e.JobBuried, lease, started, reason=settlement.reason)
            case a.Settled(State.CANCELLED), _:
                reason = settlement.reason if isinstance(settlement, Cancel) else "requested"
                self._emit(e.JobCancelled, lease, started, reason=reason)
        return answer

    def _kept(self, settlement: Complete) -> Complete:
        """Leave out a result that is over its limit: the run has finished, and so has its job."""
        try:
            self.limit_result(settlement.result)
        except TooLargeError as error:
            return replace(settlement, result=b"", omitted=str(error))
        return settlement

    def lose(self, lease: Lease) -> None:
        """Report that a run was superseded. Only the run knows: others may be fenced by its own settlement."""
        self._emit(e.LeaseLost, lease, perf_counter(), fence=lease.fence)

    # Operating

    def cancel(self, job_id: str, *, reason: str = "cancelled", force: bool = False) -> a.CancelAnswer:
        """End a queued job, or ask a running one to end; `force` supersedes its run."""
        started = perf_counter()
        answer = self.store.cancel(job_id, reason=_quoted(reason), force=force)
        self._tell_cancelled(answer, started)
        return answer

    def withdraw(self, job_id: str, *, reason: str) -> None:
        """Cancel a job that its caller does not want after all, unless others have been told that it will be done."""
        started = perf_counter()
        self._tell_cancelled(self.store.withdraw(job_id, reason=reason), started)

    def _tell_cancelled(self, answer: a.CancelAnswer | a.Existing, started: float) -> None:
        match answer:
            case a.Cancelled(job):
                self._emit(e.JobCancelled, job, started, reason=job.reason)
            case a.Requested(job):
                self._emit(e.CancelRequested, job, started)

    def revive(self, job_id: str, *, body: bytes | None = None, submission: Submission | None = None) -> a.ReviveAnswer:
        """Queue a dead letter again, with another body if one is given; or other work in its place."""
        if submission:
            self._check(submission)
        self._limit(f"body of job {job_id!r}", body or b"", self.limits.body)
        started = perf_counter()
        answer = self.store.revive(job_id, body=body, submission=submission)
        if isinstance(answer, a.Revived | a.Resubmitted):
            self._emit(e.JobRevived, answer.job, started)
        return answer

    def discard(self, job_id: str) -> a.DiscardAnswer:
        """End a dead letter for good: nothing of it will run."""
        started = perf_counter()
        answer = self.store.discard(job_id)
        if isinstance(answer, a.Discarded):
            self._emit(e.JobDiscarded, answer.job, started)
        return answer

    def received(self, job_id: str, *, limit: int, lease: timedelta | None = None) -> a.ReceivedAnswer:
        """Tell of a delivery that has not led to a run; over `limit` deaths the job is buried."""
        started = perf_counter()
        answer = self.store.received(job_id, limit=limit, lease=lease)
        if isinstance(answer, a.Buried):
            self._emit(e.JobBuried, answer.job, started, reason=answer.job.reason)
        return answer

    def due(
        self, *, limit: int = 100, empty_queues: Collection[str] = (), formats: Collection[str] | None = None
    ) -> Sequence[Job]:
        """Take jobs whose message or worker seems lost; the caller publishes those that are live."""
        started = perf_counter()
        jobs = self.store.due(limit=limit, empty_queues=empty_queues, formats=formats)
        for job in jobs:
            if job.state.live:
                self._emit(e.JobSwept, job, started, lost=Lost.WORKER if job.state is State.RUNNING else Lost.MESSAGE)
            else:
                self._emit(e.JobCancelled, job, started, reason=job.reason)
        return jobs

    # Reading and housekeeping

    def get(self, job_id: str) -> Job | None:
        """Find a job by its id."""
        return self.store.get(job_id)

    def last(self, key: str) -> Job | None:
        """Find the newest job of a key."""
        return self.store.last(key)

    def find(self, query: Query) -> Page[JobSummary]:
        """Page through jobs, newest change first."""
        return self.store.find(query)

    def duplicates(self, *, cursor: str = "", limit: int = 50, task: str = "", scope: str = "") -> Page[Duplicate]:
        """Page through the duplicates that were answered, newest first."""
        return self.store.duplicates(cursor=cursor, limit=limit, task=task, scope=scope)

    def duplicate_counts(self, *, since: datetime, task: str = "", scope: str = "") -> Sequence[DuplicateCount]:
        """Count answered duplicates by hour, task, scope and answer."""
        return self.store.duplicate_counts(since=since, task=task, scope=scope)

    def count(self, decisions: Mapping[tuple[str, str], int]) -> None:
        """Add to the counters that `tally` answers."""
        self.store.count(decisions)

    def tally(self) -> Tally:
        """Sum up the ledger."""
        return self.store.tally()

    def prune(self, *, limit: int = 1000) -> int:
        """Delete finished jobs past their history."""
        return self.store.prune(limit=limit)

    # The checks and the telling

    def _check(self, submission: Submission) -> None:
        for name in (submission.key, submission.alias) if submission.alias else (submission.key,):
            if not _KEY.fullmatch(name):
                raise ValueError(f"a key or alias is 64 hex digits, made by oncelery.fingerprint, not {name!r}")
        if not (submission.id and submission.task and submission.queue):
            raise ValueError(f"a submission needs its id, task and queue: {submission}")
        if not NO_TIME <= submission.delay <= LONGEST:
            raise ValueError(f"a delay is neither negative nor longer than {LONGEST.days} days: {submission.delay}")
        # All at once first: every call and every delivery comes by here.
        texts = (submission.id, submission.task, submission.queue, submission.scope, submission.caller)
        if max(map(len, texts)) > self.limits.name or len(submission.body or b"") > self.limits.body:
            for name in ("id", "task", "queue", "scope", "caller"):
                self._limit(name, getattr(submission, name), self.limits.name)
            self._limit(f"body of job {submission.id!r}", submission.body or b"", self.limits.body)

    def _limit(self, what: str, value: bytes | str, most: int) -> None:
        if len(value) > most:
            unit = "bytes" if isinstance(value, bytes) else "characters"
            raise TooLargeError(
                f"{what} has {len(value):,} {unit}, the limit is {most:,}: keep it elsewhere and pass a reference"
            )

    def _refuse(self, job: Job, started: float) -> NoReturn:
        self._emit(e.DuplicateAnswered, job, started, answer=Answer.REFUSED)
        raise PayloadMismatchError(key=job.key, job_id=job.id, state=job.state)

    def _emit(self, event: type[E], subject: Job | Lease, started: float, **details: object) -> None:
        if not self.events.subscribers:
            return
        job_id = subject.id if isinstance(subject, Job) else subject.job_id
        self.events.emit(
            event(
                task=subject.task,
                job_id=job_id,
                key=subject.key,
                scope=subject.scope,
                seconds=perf_counter() - started,
                attempt=subject.attempt,
                **details,
            )
        )


def _quoted(reason: str) -> str:
    """Return a caller's reason; in quotes if it would be read as one of our own."""
    return f'"{reason}"' if reason in OWN_REASONS else reason


class LedgerWithin(Ledger):
    """The ledger inside a caller's transaction: what happens there is told when the caller has committed."""

    def __init__(self, outside: Ledger, store: Store) -> None:
        super().__init__(store, limits=outside.limits)
        self._outside = outside
        self._held: list[e.Event] = []
        self.events.subscribe(self._hold)

    def _hold(self, event: e.Event) -> None:
        if isinstance(event, e.DuplicateAnswered):
            # The caller has its answer, whether it commits or not.
            self._outside.events.emit(event)
        else:
            self._held.append(event)

    def emit_held(self) -> None:
        """Tell what has happened, now that it has."""
        while self._held:
            self._outside.events.emit(self._held.pop(0))
