"""The contract of a store. `oncelery.testing.conformance` holds every implementation to it.

Rules for all verbs:

1. One atomic operation, one round trip; every decision uses the store's own clock, read once.
2. A write by a run compares (running, fence, holder) in the same step; a superseded run changes nothing.
3. A reply may be lost, and its verb be sent again: it does nothing that it has done before. `reserve`, `begin`,
   `renew`, `record`, `settle` and `cancel` then answer the same; of what the first call has ended or changed for
   good, `revive` and `discard` answer NotBuried, and a `begin` or `received` that has buried the job Finished.
   Only `received`, told of a death, counts it twice; and what `due` has taken comes back at its next check.
   A store that cannot answer raises StoreUnavailableError; that never means yes.
4. A fence is max(previous fence of the key + 1, store time in microseconds).
5. Every live job is in the due-index with a finite next check, written in the same step as the job.
6. A lapsed lease that nobody took may still renew and settle. Only `begin` and a forced `cancel` supersede.
   `renew`, `record` and `settle` answer Fenced to a run that was superseded. They answer Absent where the job is not
   known, or has a lower fence than the lease: a fail-over has undone the grant, and no other run has the job.
7. Any number of threads may use one store at once; a process that was forked may use its parent's.
8. A clock may be ahead for a moment. Nothing that was written then lasts for as long as it was ahead: `begin` and `due`
   take back what a live job cannot have (if queued, a change later than now; a lease longer than it was given for; a
   next check after a re-publication later than `SLOW_CHECK`). Only a finished job keeps its key for so much longer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from oncelery.answers import (
    BeginAnswer,
    CancelAnswer,
    DiscardAnswer,
    Existing,
    ReceivedAnswer,
    RecordAnswer,
    RenewAnswer,
    ReserveAnswer,
    ReviveAnswer,
    SettleAnswer,
)
from oncelery.job import (
    Duplicate,
    DuplicateCount,
    Job,
    JobSummary,
    Lease,
    OnDuplicate,
    Page,
    Progress,
    Query,
    Submission,
    Tally,
)
from oncelery.settlement import Settlement

#: Tells the time in tests. In life a store is made without one and uses its server's clock.
Clock = Callable[[], datetime]

#: How long a message may be under way before its absence is worth a thought.
PUBLISH_GRACE = timedelta(seconds=10)

#: A queued job is published again after this long, whatever the signs; also the most between two re-publications.
SLOW_CHECK = timedelta(hours=1)

#: How many duplicates the audit lists, about; older ones are only counted.
AUDIT_KEPT = 100_000

#: How long duplicates stay counted by the hour.
HOURS_KEPT = timedelta(days=90)


class Store(Protocol):
    """Keeps the ledger. Verbs first, then reading and housekeeping."""

    #: Whether other processes that open the same URL see the same ledger.
    shared: bool
    #: Keeps the ledgers apart that are in one place.
    namespace: str

    def reserve(self, submission: Submission, *, on_duplicate: OnDuplicate) -> ReserveAnswer:
        """Accept a job under its key, or answer with the one that is there.

        - The id is known: Reserved again if that job is still queued and has never begun; Mismatched if it has
          another key; else Existing.
        - The alias is known, and its job is live, or completed no longer ago than its retention, `ALIAS_RETENTION` at
          least, within its history: Mismatched if both have a digest and they differ; else Existing, `repeated`.
          Both are counted as a duplicate, whatever `on_duplicate` says.
        - The key's last job is live, or completed and within retention:
          Mismatched if both have a digest and they differ; else Existing, counted as a duplicate. (The digest of a
          submission with an alias is the alias's: it is neither compared here nor kept with the job.)
          `trail` and `replace` compare no digests with a live job (their point is a newer payload):
          `trail`: a job that has never begun takes over the new body and digest; behind one that has begun, the new
          submission is accepted as a queued job that waits `behind` it, or gives its body to the one already waiting.
          A body that was taken over reaches the worker in `Granted.body`.
          `replace`: a queued job is cancelled with reason "replaced" and the new one accepted; a running one is joined,
          and so is a queued one that another waits behind: it was running before, and that other is the newer one.
        - Otherwise (absent, past retention, buried, cancelled) a new job is accepted, queued.
        The alias is bound, with its digest, to the job that was accepted or is Existing; but not to a live one that
        `reject` keeps the caller from. A job has `ALIASES_KEPT` of them at most; they go when it goes.
        Before any is accepted (but not in the place of one that is replaced) the submission's quota is looked at, in
        the same step: with `max_active` queued and running jobs of its scope: Full. With `per_minute`, each accepted
        job takes a minute's part of the scope's time, which may be a minute ahead; if it would be more: Full, with how
        long that lasts. Duplicates take nothing, and are answered as ever.
        """

    def reserving(self, submission: Submission, *, on_duplicate: OnDuplicate) -> Callable[[], ReserveAnswer]:
        """Begin to `reserve`, and give a function that waits for the answer, to be called once.

        The caller does other work in between. Whether the store is asked now or then is its own choice; if nobody
        waits, the job may be there, and is swept.
        """

    def begin(
        self, submission: Submission, *, holder: str, worker: str, lease: timedelta, max_crashes: int, hold: bool
    ) -> BeginAnswer:
        """Ask to run a job: by its id if that is known, else by its key.

        By id (the stored key holds, whatever key the worker computed):
        - queued: Later if it is before `not_before` or `behind` a live job; else Granted, unless a limit below
          applies. The first grant of a job that was reserved without delay moves its queue's watermark (see `due`).
        - running under this holder: the same grant again. Under a live lease: Busy, counted as a duplicate.
        - running under a lapsed lease: the crash is counted and the run goes to `past` (cause "lapse"). A requested
          cancel makes it Cancelled; else Granted with a higher fence, unless a limit below applies.
        - the limits: more than `max_crashes` crashes and lapses: buried as "crashed". `hold`, and a run of this job
          was cut short: buried as "outcome unknown". Both answer Buried.
        - completed or buried: Finished, counted. Cancelled: Cancelled.
        By alias and then by key, when the id is unknown: the alias's job (see `reserve`) or the key's last job is live:
        Busy, or completed and within retention: Finished, both counted, or Mismatched if both have a digest and they
        differ. Else it is accepted, its alias is bound to it, and it is granted at once if the submission has a body;
        Absent if its body is None. (A lapsed run of a job with an empty body ends here as cancelled, "lapsed", and
        does not keep its key.)

        A grant, or Later, resets what `received` has noted and counted. `recovered` means that a run of this job was
        cut short, by a crash, a lapse or a handback, since it was accepted or revived: its effect may have happened.
        """

    def renew(self, leases: Sequence[Lease]) -> Sequence[RenewAnswer]:
        """Let each lease that is still ours last its `duration` from now, in one round trip; answers in order.

        Fenced if it is not ours, also past its history; Absent if the job, or this run's grant, is not known.
        """

    def settle(self, lease: Lease, settlement: Settlement) -> SettleAnswer:
        """End our run; Fenced or Absent as for `renew`. The last holder asking again gets its answer again.

        Complete: the result is kept byte for byte, and what replaced the task or why its result is omitted in fields
        beside it; the body goes. Bury and Cancel: the error or reason is kept.
        Release: to `past` and queued again, not before its delay, with another body if one is given (it reaches the
        worker in `Granted.body`); a handback gives its attempt back; a crash is counted in `crashes`. If a cancel is
        requested, the job is Cancelled instead, with the request's reason.
        Whatever ends the job lets the one that trails it begin (`Settled.next_id`).
        """

    def record(
        self, lease: Lease, *, progress: Progress | None = None, step: tuple[str, bytes] | None = None
    ) -> RecordAnswer:
        """Write progress, or a finished step (the first value of a name stays); Fenced or Absent as for `renew`.

        A step's name may be any string, also one with lone surrogates, and comes back as it is.
        """

    def cancel(self, job_id: str, *, reason: str, force: bool = False) -> CancelAnswer:
        """End a queued job, or ask a running one to end; `force` ends that too, superseding its run.

        Completed or buried: Finished (too late). Cancelled: Cancelled, unchanged.
        """

    def withdraw(self, job_id: str, *, reason: str) -> CancelAnswer | Existing:
        """Cancel a job as `cancel` does, but leave a live one as it is that has answered a duplicate: Existing."""

    def revive(self, job_id: str, *, body: bytes | None = None, submission: Submission | None = None) -> ReviveAnswer:
        """Queue a buried job again, with another body if one is given; or a `submission` in its place.

        Attempts, crashes and receipts start anew, and it waits behind no other; steps and `past` stay, the run that
        buried it goes there too, and the fence is no lower than that of the key's last job. Existing if its key has
        meanwhile another job that is live, or completed and within retention: the work is or was being done.

        A `submission` is what a corrected body makes under another key. The buried job ends as cancelled, with the
        reason "revived as " and the new id, and the submission is accepted, in one step: Resubmitted. It has neither
        steps nor past, and its quota is not looked at. Existing, and nothing changes, if its key has a job that is
        live, or completed and within retention, or if its id is known.
        """

    def discard(self, job_id: str) -> DiscardAnswer:
        """End a buried job as cancelled, with the reason "discarded": whatever message of it comes later runs nothing.

        Its error and its past stay for its history; its body goes.
        """

    def received(self, job_id: str, *, limit: int, lease: timedelta | None = None) -> ReceivedAnswer:
        """Tell of a delivery of a queued job that has not led to a run: who opens it may not survive that.

        - with a `lease`: it is about to be opened, by someone who begins within the lease, or else is dead. While
          somebody else's is not over: Busy, and nothing is noted.
        - with a `lease` of zero: it was opened, and waits; nobody is in danger any more.
        - without one: who opened it is dead.
        A death is counted, and so is, by the next who opens one, a lease that is over; with more than `limit` of them
        the job is Buried as "never started". Else Counted, with how many there are.

        A running job is not counted: Counted with what stands. Completed or buried: Finished. Cancelled: Cancelled.
        """

    def due(
        self, *, limit: int, empty_queues: Collection[str] = (), formats: Collection[str] | None = None
    ) -> Sequence[Job]:
        """Take up to `limit` jobs that should be published now, and set each its next check in the same step.

        - running under a lapsed lease (its worker is gone); if a cancel is requested, it ends here as cancelled.
        - queued, its message `PUBLISH_GRACE` overdue, and missing by a sign: the broker's queue is empty, or a job
          sent to the same queue later has begun (the watermark; none, if later than now), or `SLOW_CHECK` has passed.
          Not one that waits `behind` another: that one's end makes it due.
        - queued, and published again n times before: after PUBLISH_GRACE * 2**n, at most SLOW_CHECK.
          What `SLOW_CHECK` alone has told does not count: a backlog is old and healthy.

        A queued job counts as sent when it was reserved, released, revived or freed from waiting `behind`, plus its
        delay. Neither state nor fence changes: a slow holder may still win until someone begins.
        A job with an empty body is never published: where another would be, it ends as cancelled, "lapsed".
        What ends here is answered as well, as it is then; it does not count towards the limit.
        With `formats`, jobs whose body has another format stay due, for sweepers that can read it. A body that begins
        with a NUL names its format, up to the first newline; the format of any other is the empty string.
        """

    def get(self, job_id: str) -> Job | None:
        """Find a job by its id: live, buried, or finished and within its history."""

    def last(self, key: str) -> Job | None:
        """Find the newest job of a key, if it is still readable; not one that waits behind it."""

    def find(self, query: Query) -> Page[JobSummary]:
        """Page through jobs, newest change first; readable ones only.

        A page costs the same however large bodies, results, steps, past runs and tracebacks are: none of them is read.
        It may be shorter than `limit`, or empty, though there are more: then its cursor is not empty.
        """

    def duplicates(self, *, cursor: str = "", limit: int = 50, task: str = "", scope: str = "") -> Page[Duplicate]:
        """Page through the duplicates that were answered, newest first; `prune` forgets all but `AUDIT_KEPT`."""

    def duplicate_counts(self, *, since: datetime, task: str = "", scope: str = "") -> Sequence[DuplicateCount]:
        """Count answered duplicates by hour, task, scope and answer, from the hour of `since` on; oldest first.

        No further back than `HOURS_KEPT`. What it costs to count those of one scope does not depend on other scopes.
        """

    def count(self, decisions: Mapping[tuple[str, str], int]) -> None:
        """Add to the counters by (task, decision) that `tally` answers."""

    def tally(self) -> Tally:
        """Sum up the ledger."""

    def prune(self, *, limit: int) -> int:
        """Delete up to `limit` finished jobs past their history, and old audit; answer how many jobs went."""

    def close(self) -> None:
        """Let go of connections. The store may be used again; it then opens new ones."""
