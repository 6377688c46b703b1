"""The reference store: the protocol in its plainest form, in this process only. For tests, and the model of tests."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial, wraps
from types import MappingProxyType
from typing import Concatenate, ParamSpec, TypeVar, assert_never

from msgspec.structs import replace

from oncelery import answers as a
from oncelery.job import (
    DEFAULT_NAMESPACE,
    DISCARDED,
    NO_TIME,
    Answer,
    Cause,
    Duplicate,
    DuplicateCount,
    Job,
    JobSummary,
    Lease,
    OnDuplicate,
    Page,
    Progress,
    Query,
    Reason,
    State,
    Submission,
    Tally,
)
from oncelery.settlement import Bury, Cancel, Complete, Release, Settlement
from oncelery.stores.base import HOURS_KEPT, Clock
from oncelery.stores.memory.audit import Audit
from oncelery.stores.memory.entry import Entry
from oncelery.stores.memory.shelf import Shelf
from oncelery.stores.memory.submissions import Submissions, differ

P = ParamSpec("P")
R = TypeVar("R")


def atomic(verb: Callable[Concatenate[MemoryStore, datetime, P], R]) -> Callable[Concatenate[MemoryStore, P], R]:
    """Run a verb alone, with the clock read once."""

    @wraps(verb)
    def alone(self: MemoryStore, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:
            return verb(self, self._clock(), *args, **kwargs)

    return alone


class MemoryStore:
    """Keeps the ledger in this process."""

    shared = False
    namespace = DEFAULT_NAMESPACE

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or (lambda: datetime.now(UTC))
        self._lock = threading.Lock()
        self._shelf = Shelf()
        self._audit = Audit()
        self._submissions = Submissions(self._shelf, self._audit)
        self._decisions: Counter[tuple[str, str]] = Counter()

    # Verbs

    @atomic
    def reserve(self, now: datetime, submission: Submission, *, on_duplicate: OnDuplicate) -> a.ReserveAnswer:
        return self._submissions.reserve(now, submission, on_duplicate)

    def reserving(self, submission: Submission, *, on_duplicate: OnDuplicate) -> Callable[[], a.ReserveAnswer]:
        return partial(self.reserve, submission, on_duplicate=on_duplicate)

    @atomic
    def begin(
        self,
        now: datetime,
        submission: Submission,
        *,
        holder: str,
        worker: str,
        lease: timedelta,
        max_crashes: int,
        hold: bool,
    ) -> a.BeginAnswer:
        known = self._shelf.readable(now, submission.id)
        if known:
            known.set_right(now)
        entry = known or self._find_by_key(now, submission)
        if not isinstance(entry, Entry):
            return entry
        declined = self._decline(now, entry, submission, holder)
        if declined:
            return declined
        if entry.job.state is State.RUNNING and entry.job.holder == holder:
            return entry.granted(submission, lease)
        if entry.job.state is State.RUNNING:
            entry.end_run(now, Cause.LAPSE)
        if reason := entry.forbids_rerun(max_crashes, hold=hold):
            entry.supersede()
            entry.bury(now, reason)
            return a.Buried(self._shelf.ended(now, entry))
        if known:
            self._shelf.raise_watermark(now, entry)
        entry.grant(now, holder=holder, worker=worker, lease=lease)
        return entry.granted(submission, lease)

    def _decline(
        self, now: datetime, entry: Entry, submission: Submission, holder: str
    ) -> a.Busy | a.Later | a.Finished | a.Cancelled | a.Mismatched | None:
        job = entry.job
        match job.state:
            case State.CANCELLED:
                return a.Cancelled(job)
            case State.QUEUED if job.behind or (job.not_before or now) > now:
                entry.forget_receipts()
                return a.Later(job)
            case State.QUEUED:
                return None
            case State.RUNNING if job.holder == holder:
                return None
            case State.RUNNING if entry.lapsed(now):
                return a.Cancelled(self._shelf.end_lapsed(now, entry)) if job.cancel_requested else None
            case _:
                return self._meet(now, entry, submission)

    def _find_by_key(
        self, now: datetime, submission: Submission
    ) -> Entry | a.Busy | a.Finished | a.Mismatched | a.Absent:
        if named := self._shelf.named(now, submission.alias):
            entry, digest = named
            return self._meet(now, entry, submission, differs=differ(submission.digest, digest))
        keeper = self._shelf.keeper(now, submission.key)
        if keeper:
            keeper.set_right(now)
        if keeper and keeper.lapsed(now) and keeper.job.body == b"":
            self._shelf.end_lapsed(now, keeper)
            keeper = self._shelf.keeper(now, submission.key)
        if keeper:
            differs = differ(submission.key_digest, keeper.job.digest)
            return self._meet(now, keeper, submission, differs=differs)
        if submission.body is None:
            return a.Absent()
        return self._shelf.accept(now, replace(submission, delay=NO_TIME))

    def _meet(
        self, now: datetime, entry: Entry, submission: Submission, *, differs: bool = False
    ) -> a.Busy | a.Finished | a.Mismatched:
        if differs:
            return a.Mismatched(self._audit.answer(now, entry, submission, Answer.REFUSED))
        if entry.job.state is State.COMPLETED:
            return a.Finished(self._audit.answer(now, entry, submission, Answer.REPLAYED))
        if entry.job.state is State.BURIED:
            return a.Finished(self._audit.answer(now, entry, submission, Answer.BURIED))
        return a.Busy(self._audit.answer(now, entry, submission, Answer.BUSY))

    @atomic
    def renew(self, now: datetime, leases: Sequence[Lease]) -> Sequence[a.RenewAnswer]:
        return [self._renew(now, lease) for lease in leases]

    def _renew(self, now: datetime, lease: Lease) -> a.RenewAnswer:
        entry = self._shelf.entries.get(lease.job_id)
        if entry is None or entry.unaware_of(lease):
            return a.Absent()
        if not entry.owned_by(lease):
            return a.Fenced(entry.job.state)
        return a.Renewed(entry.renew(now, lease.duration), entry.job.cancel_requested)

    @atomic
    def settle(self, now: datetime, lease: Lease, settlement: Settlement) -> a.SettleAnswer:
        entry = self._shelf.entries.get(lease.job_id)
        if entry is None or entry.unaware_of(lease):
            return a.Absent()
        if entry.owned_by(lease):
            self._settle(now, entry, settlement)
        elif not entry.settled_by(lease, settlement):
            return a.Fenced(entry.job.state)
        return a.Settled(entry.job.state, "" if entry.job.state.live else entry.trail_id)

    def _settle(self, now: datetime, entry: Entry, settlement: Settlement) -> None:
        match settlement:
            case Complete():
                entry.complete(now, settlement)
            case Bury():
                entry.bury(now, settlement.reason, settlement.error)
            case Cancel():
                entry.cancel(now, settlement.reason)
            case Release():
                entry.end_run(now, settlement.cause, settlement.error)
                entry.amend(settlement.body, entry.job.digest)
                if entry.job.cancel_requested:
                    entry.cancel(now, entry.cancel_reason)
                else:
                    entry.queue(now, settlement.delay)
            case _:
                assert_never(settlement)
        self._shelf.ended(now, entry)

    @atomic
    def record(
        self,
        now: datetime,  # noqa: ARG002 - as every verb
        lease: Lease,
        *,
        progress: Progress | None = None,
        step: tuple[str, bytes] | None = None,
    ) -> a.RecordAnswer:
        entry = self._shelf.entries.get(lease.job_id)
        if entry is None or entry.unaware_of(lease):
            return a.Absent()
        if not entry.owned_by(lease):
            return a.Fenced(entry.job.state)
        entry.record(progress, step)
        return a.Recorded(entry.job.cancel_requested)

    @atomic
    def cancel(self, now: datetime, job_id: str, *, reason: str, force: bool = False) -> a.CancelAnswer:
        return self._cancel(now, self._shelf.readable(now, job_id), reason, force=force)

    @atomic
    def withdraw(self, now: datetime, job_id: str, *, reason: str) -> a.CancelAnswer | a.Existing:
        entry = self._shelf.readable(now, job_id)
        if entry and entry.job.state.live and entry.job.duplicates:
            return a.Existing(entry.job)
        return self._cancel(now, entry, reason, force=False)

    def _cancel(self, now: datetime, entry: Entry | None, reason: str, *, force: bool) -> a.CancelAnswer:
        if entry is None:
            return a.Absent()
        match state := entry.job.state:
            case State.COMPLETED | State.BURIED:
                return a.Finished(entry.job)
            case State.CANCELLED:
                return a.Cancelled(entry.job)
            case State.RUNNING if not force:
                entry.cancel_reason = entry.cancel_reason or reason
                entry.job = replace(entry.job, cancel_requested=True)
                return a.Requested(entry.job)
            case State.RUNNING | State.QUEUED:
                entry.supersede()
                entry.cancel(now, reason)
                return a.Cancelled(self._shelf.ended(now, entry))
            case _:
                assert_never(state)

    @atomic
    def revive(
        self, now: datetime, job_id: str, *, body: bytes | None = None, submission: Submission | None = None
    ) -> a.ReviveAnswer:
        entry = self._shelf.readable(now, job_id)
        if entry is None:
            return a.Absent()
        if entry.job.state is not State.BURIED:
            return a.NotBuried(entry.job)
        if submission:
            return self._submissions.resubmit(now, entry, submission)
        keeper = self._shelf.keeper(now, entry.job.key)
        if keeper:
            return a.Existing(keeper.job)
        entry.amend(body, entry.job.digest)
        entry.revive(now, self._shelf.fence(entry.job.key))
        self._shelf.make_last(entry)
        return a.Revived(entry.job)

    @atomic
    def discard(self, now: datetime, job_id: str) -> a.DiscardAnswer:
        entry = self._shelf.readable(now, job_id)
        if entry is None:
            return a.Absent()
        if entry.job.state is not State.BURIED:
            return a.NotBuried(entry.job)
        entry.discard(now, DISCARDED)
        return a.Discarded(entry.job)

    @atomic
    def received(self, now: datetime, job_id: str, *, limit: int, lease: timedelta | None = None) -> a.ReceivedAnswer:
        entry = self._shelf.readable(now, job_id)
        if entry is None:
            return a.Absent()
        if entry.job.state in (State.COMPLETED, State.BURIED):
            return a.Finished(entry.job)
        if entry.job.state is State.CANCELLED:
            return a.Cancelled(entry.job)
        if entry.job.state is State.QUEUED and not entry.receive(now, lease):
            return a.Busy(entry.job)
        if entry.received > limit:
            entry.bury(now, Reason.NEVER_STARTED)
            return a.Buried(self._shelf.ended(now, entry))
        return a.Counted(entry.received)

    @atomic
    def due(
        self,
        now: datetime,
        *,
        limit: int,
        empty_queues: Collection[str] = (),
        formats: Collection[str] | None = None,
    ) -> Sequence[Job]:
        taken: list[Job] = []
        ended: list[Job] = []
        self._shelf.set_right(now)
        for entry in sorted(self._shelf.entries.values(), key=lambda entry: entry.next_check):
            queue = entry.job.queue
            sent_before = now if queue in empty_queues else self._shelf.watermark(now, queue)
            if not entry.missing(now, sent_before):
                continue
            if entry.job.body == b"" or (entry.lapsed(now) and entry.job.cancel_requested):
                ended.append(self._shelf.end_lapsed(now, entry))
            elif len(taken) < limit and entry.is_readable(formats):
                entry.resend(now, sent_before)
                taken.append(entry.job)
        return taken + ended

    # Reading and housekeeping

    @atomic
    def get(self, now: datetime, job_id: str) -> Job | None:
        entry = self._shelf.readable(now, job_id)
        return entry.job if entry else None

    @atomic
    def last(self, now: datetime, key: str) -> Job | None:
        entry = self._shelf.last(now, key)
        return entry.job if entry else None

    @atomic
    def find(self, now: datetime, query: Query) -> Page[JobSummary]:
        jobs = [entry.job for entry in self._shelf.entries.values() if entry.readable(now) and query.matches(entry.job)]
        older = [job for job in jobs if not query.cursor or _position(job) < query.cursor]
        older.sort(key=_position, reverse=True)
        items = tuple(job.summary() for job in older[: query.limit])
        return Page(items=items, cursor=_position(items[-1]) if len(older) > len(items) else "")

    @atomic
    def duplicates(
        self, _now: datetime, *, cursor: str = "", limit: int = 50, task: str = "", scope: str = ""
    ) -> Page[Duplicate]:
        return self._audit.page(cursor, limit, task, scope)

    @atomic
    def duplicate_counts(
        self, now: datetime, *, since: datetime, task: str = "", scope: str = ""
    ) -> Sequence[DuplicateCount]:
        return self._audit.counts(max(since, now - HOURS_KEPT), task, scope)

    @atomic
    def count(self, _now: datetime, decisions: Mapping[tuple[str, str], int]) -> None:
        self._decisions.update(decisions)

    @atomic
    def tally(self, now: datetime) -> Tally:
        entries = self._shelf.entries.values()
        states = Counter(entry.job.state for entry in entries)
        checks = [entry.next_check for entry in entries if entry.job.state.live and not entry.job.behind]
        return Tally(
            states=MappingProxyType({state: states[state] for state in State}),
            lapsed=sum(entry.lapsed(now) for entry in entries),
            overdue=now - min(*checks, now) if checks else NO_TIME,
            decisions=MappingProxyType(dict(self._decisions)),
        )

    @atomic
    def prune(self, now: datetime, *, limit: int) -> int:
        old = [entry.job for entry in self._shelf.entries.values() if not entry.readable(now)][:limit]
        for job in old:
            self._shelf.forget(job)
        self._shelf.forget_paces(now)
        return len(old)

    def close(self) -> None: ...


def _position(job: JobSummary) -> str:
    return f"{job.changed_at.isoformat(timespec='microseconds')}/{job.id}"
