"""One job of the memory store and each way it can change. No clock, no index: the time is always an argument."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType

from msgspec.structs import replace

from oncelery.answers import Granted
from oncelery.job import (
    ALIAS_RETENTION,
    EPOCH,
    MICROSECOND,
    NO_TIME,
    PAST_KEPT,
    Attempt,
    Cause,
    Failure,
    Job,
    Lease,
    Progress,
    Reason,
    State,
    Submission,
)
from oncelery.settlement import Bury, Cancel, Complete, Release, Settlement
from oncelery.stores.base import PUBLISH_GRACE, SLOW_CHECK

#: Which states each settlement may lead to.
ENDS: dict[type[Settlement], frozenset[State]] = {
    Complete: frozenset({State.COMPLETED}),
    Bury: frozenset({State.BURIED}),
    Cancel: frozenset({State.CANCELLED}),
    Release: frozenset({State.QUEUED, State.CANCELLED}),
}


@dataclass(slots=True)
class Entry:
    """A job, and what only the store needs to know of it."""

    job: Job
    retention: timedelta
    history: timedelta
    #: When its message was last sent, as far as the ledger knows; ahead of time while it is delayed.
    sent_at: datetime
    next_check: datetime
    #: How often the sweeper has published it since then, but for those times when it was merely old.
    resent: int = 0
    received: int = 0
    #: How long the lease of its run is.
    lease_for: timedelta = NO_TIME
    #: Until when someone who opens a message of it is taken to be alive.
    opened_until: datetime | None = None
    #: A run of it was cut short: its effect may have happened.
    interrupted: bool = False
    #: Its body is not the one first submitted.
    amended: bool = False
    cancel_reason: str = ""
    #: The job that waits behind this one.
    trail_id: str = ""

    @classmethod
    def accept(cls, submission: Submission, now: datetime, *, fence: int, behind: str = "") -> Entry:
        """Queue a new job. It starts from the fence its key had last."""
        sent_at = now + submission.delay
        job = submission.accepted(now, fence=fence, behind=behind)
        history = max(submission.history, submission.retention)
        return cls(job, submission.retention, history, sent_at, next_check=sent_at + SLOW_CHECK)

    # Questions

    def readable(self, now: datetime) -> bool:
        """Whether the job is still to be shown: all but the finished ones past their history."""
        settled_at = self.job.settled_at
        return settled_at is None or self.job.state is State.BURIED or settled_at + self.history > now

    def answers_alias(self, now: datetime) -> bool:
        """Whether a request that is bound to this job gets it back."""
        if self.job.state is not State.COMPLETED or self.job.settled_at is None:
            return self.job.state.live
        return self.readable(now) and self.job.settled_at + max(self.retention, ALIAS_RETENTION) > now

    def lapsed(self, now: datetime) -> bool:
        """Whether it is running under a lease that is over."""
        return self.job.lease_until is not None and self.job.lease_until <= now

    def missing(self, now: datetime, sent_before: datetime) -> bool:
        """Whether its message or its worker seems to be lost; messages sent before that time are, by a sign."""
        if not self.job.state.live or self.job.behind:
            return False
        if self.next_check <= now:
            return True
        waiting = self.job.state is State.QUEUED and not self.resent and self.sent_at + PUBLISH_GRACE <= now
        return waiting and self.sent_at < sent_before

    def is_readable(self, formats: Collection[str] | None) -> bool:
        """Whether its body has one of these formats; one that begins with a NUL names it, up to the first newline."""
        body = self.job.body or b""
        name = body[1:].partition(b"\n")[0].decode() if body.startswith(b"\0") else ""
        return formats is None or name in formats

    def forbids_rerun(self, max_crashes: int, *, hold: bool) -> Reason | None:
        """Why no further run may begin after one that was cut short, if so."""
        if self.job.crashes > max_crashes:
            return Reason.CRASHED
        return Reason.OUTCOME_UNKNOWN if self.interrupted and hold else None

    def owned_by(self, lease: Lease) -> bool:
        """Whether this lease is the one that runs it."""
        return self.job.state is State.RUNNING and self.last_run_was(lease)

    def unaware_of(self, lease: Lease) -> bool:
        """Whether this lease was not granted here: a fence never goes down."""
        return self.job.fence < lease.fence

    def settled_by(self, lease: Lease, settlement: Settlement) -> bool:
        """Whether this very settlement of this run was applied before."""
        return self.last_run_was(lease) and self.job.state in ENDS[type(settlement)]

    def last_run_was(self, lease: Lease) -> bool:
        """Whether no run has begun, and nobody has superseded it, since this lease was granted."""
        return (self.job.fence, self.job.holder) == (lease.fence, lease.holder)

    # Changes

    def grant(self, now: datetime, *, holder: str, worker: str, lease: timedelta) -> None:
        """Queued to running, under a higher fence."""
        self.forget_receipts()
        self.resent = 0
        self.lease_for = lease
        self.next_check = now + lease
        self.job = replace(
            self.job,
            state=State.RUNNING,
            changed_at=now,
            begun_at=now,
            lease_until=now + lease,
            not_before=None,
            holder=holder,
            worker=worker,
            fence=max(self.job.fence + 1, (now - EPOCH) // MICROSECOND),
            attempt=self.job.attempt + 1,
        )

    def granted(self, submission: Submission, lease: timedelta) -> Granted:
        """Tell the holder what it holds."""
        job = self.job
        held = job.lease(lease, submission.durability)
        return Granted(held, self.interrupted, job.steps, job.body if self.amended else None)

    def renew(self, now: datetime, lease: timedelta) -> datetime:
        """Let the lease last its duration from now, whatever a clock that was ahead has written."""
        until = now + lease
        self.lease_for = lease
        self.next_check = until
        self.job = replace(self.job, lease_until=until)
        return until

    def set_right(self, now: datetime) -> None:
        """Take back what a clock that was ahead has written: no time of a live job is later than it can be."""
        job = self.job
        if not job.state.live:
            return
        if job.state is State.QUEUED and (ahead := job.changed_at - now) > NO_TIME:
            self.job = job = replace(job, changed_at=now, not_before=job.not_before and job.not_before - ahead)
            self.sent_at = min(self.sent_at, max(now, job.not_before or now))
            self.next_check = min(self.next_check, self.sent_at + SLOW_CHECK)
        if job.lease_until:
            self.job = job = replace(job, lease_until=min(job.lease_until, now + self.lease_for))
        latest = now + SLOW_CHECK if self.resent else job.lease_until
        if latest:
            self.next_check = min(self.next_check, max(latest, job.lease_until or latest))

    def record(self, progress: Progress | None, step: tuple[str, bytes] | None) -> None:
        """Note progress, or a step; the first value of a step stays."""
        if progress:
            self.job = replace(self.job, progress=progress)
        if step:
            self.job = replace(self.job, steps=MappingProxyType({step[0]: step[1], **self.job.steps}))

    def end_run(self, now: datetime, cause: Cause, error: Failure | None = None) -> None:
        """Move the run to the past, before the job is queued, granted again, or ended."""
        self._note_run(now, cause, error)
        job = self.job
        self.interrupted = self.interrupted or cause is not Cause.RETRY
        self.job = replace(
            job,
            attempt=job.attempt - (cause is Cause.HANDBACK),
            crashes=job.crashes + (cause in (Cause.CRASH, Cause.LAPSE)),
            error=error or job.error,
            lease_until=None,
        )

    def _note_run(self, ended_at: datetime, cause: Cause, error: Failure | None) -> None:
        job = self.job
        assert job.begun_at is not None  # noqa: S101 - there is a run to note
        attempt = Attempt(
            number=job.attempt,
            fence=job.fence,
            worker=job.worker,
            begun_at=job.begun_at,
            ended_at=ended_at,
            cause=cause,
            error=error,
        )
        self.job = replace(job, past=(*job.past, attempt)[-PAST_KEPT:])

    def queue(self, now: datetime, delay: timedelta) -> None:
        """Back to queued; its message counts as sent when the delay is over."""
        self.resent = 0
        self.sent_at = now + delay
        self.next_check = self.sent_at + SLOW_CHECK
        not_before = self.sent_at if delay else None
        self.job = replace(self.job, state=State.QUEUED, changed_at=now, not_before=not_before, lease_until=None)

    def resend(self, now: datetime, sent_before: datetime) -> None:
        """Note that the sweeper publishes it now; the next time comes ever later."""
        waiting = self.job.state is State.QUEUED and not self.resent
        if waiting and sent_before <= self.sent_at <= now - SLOW_CHECK:
            # Merely old, as a backlog is: soon again would be a copy too many, and signs go on to tell.
            self.next_check = now + SLOW_CHECK
            return
        self.resent += 1
        # A job may wait for months, and there are no times that long.
        self.next_check = now + min(PUBLISH_GRACE * 2 ** min(self.resent, 30), SLOW_CHECK)

    def follow(self, now: datetime, fence: int) -> None:
        """Stop waiting behind another job, which has ended under this fence."""
        not_before = self.job.not_before or now
        self.sent_at = max(now, not_before)
        # No sign is needed: whoever ended that job may have died before it published this one.
        self.next_check = self.sent_at + PUBLISH_GRACE
        changed_at = self.job.changed_at if not_before > now else now
        self.job = replace(self.job, behind="", changed_at=changed_at, fence=max(self.job.fence, fence))

    def amend(self, body: bytes | None, digest: str) -> None:
        """Take over a newer payload, which the worker then gets from the ledger instead of the message."""
        if body is not None:
            self.amended = True
            self.job = replace(self.job, body=body, digest=digest)

    def revive(self, now: datetime, fence: int) -> None:
        """Buried to queued, with all counters cleared, under no lower fence than the key's last job had."""
        job = self.job
        noted = job.past[-1].begun_at if job.past else None
        if job.begun_at and job.settled_at and job.begun_at != noted:
            self._note_run(job.settled_at, Cause.BURIAL, job.error)
        self.interrupted = False
        self.forget_receipts()
        self.cancel_reason = self.trail_id = ""
        self.job = replace(self.job, attempt=0, crashes=0, reason="", error=None, settled_at=None, behind="")
        self.job = replace(self.job, fence=max(self.job.fence, fence))
        self.queue(now, NO_TIME)

    def complete(self, now: datetime, settlement: Complete) -> None:
        """Running to completed."""
        self.job = replace(
            self.job,
            result=settlement.result,
            replaced_by=settlement.replaced_by,
            result_omitted=settlement.omitted,
            error=None,
            retained_until=now + self.retention,
        )
        self._end(now, State.COMPLETED)

    def bury(self, now: datetime, reason: Reason, error: Failure | None = None) -> None:
        """Live to buried; the body stays, for a revival."""
        body = self.job.body
        self.job = replace(self.job, reason=reason, error=error or self.job.error)
        self._end(now, State.BURIED)
        self.job = replace(self.job, body=body)

    def cancel(self, now: datetime, reason: str) -> None:
        """Live to cancelled."""
        self.job = replace(self.job, reason=reason)
        self._end(now, State.CANCELLED)

    def discard(self, now: datetime, reason: str) -> None:
        """Buried to cancelled; what went before it or came after it has long gone on."""
        self.supersede()
        self.trail_id = ""
        self.job = replace(self.job, behind="")
        self.cancel(now, reason)

    def receive(self, now: datetime, lease: timedelta | None) -> bool:
        """Note how a delivery goes before it leads to a run; whether it may be opened."""
        if lease == NO_TIME:
            self.opened_until = None
            return True
        if lease and self.opened_until and self.opened_until > now + lease:
            # Written by a clock that was ahead.
            self.opened_until = None
        if lease is None or (self.opened_until and self.opened_until <= now):
            self.received += 1
        elif self.opened_until:
            return False
        self.opened_until = now + lease if lease else None
        return True

    def forget_receipts(self) -> None:
        """Count and note anew what comes without a run."""
        self.received = 0
        self.opened_until = None

    def supersede(self) -> None:
        """Leave the run no claim to what ended its job."""
        self.job = replace(self.job, holder="")

    def _end(self, now: datetime, state: State) -> None:
        self.job = replace(
            self.job,
            state=state,
            changed_at=now,
            settled_at=now,
            lease_until=None,
            not_before=None,
            body=None,
            cancel_requested=False,
        )
