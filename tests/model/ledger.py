"""The store's verbs, as `oncelery.stores.base` promises them, over a ledger that is a plain value.

Time is an event: a lease has lapsed or not, a delay is over or not. A holder is any number that stands for one.
"""

from __future__ import annotations

from typing import NamedTuple

from oncelery.job import DISCARDED, OnDuplicate, Reason, State

# Plain strings: they hash faster than members of an enum.
QUEUED, RUNNING = State.QUEUED.value, State.RUNNING.value
COMPLETED, BURIED, CANCELLED = State.COMPLETED.value, State.BURIED.value, State.CANCELLED.value
CRASHED, UNKNOWN = Reason.CRASHED.value, Reason.OUTCOME_UNKNOWN.value
FAILED, NEVER_STARTED = Reason.FAILED.value, Reason.NEVER_STARTED.value
JOIN, TRAIL, REPLACE = OnDuplicate.JOIN.value, OnDuplicate.TRAIL.value, OnDuplicate.REPLACE.value

NOT_OPENED, OPENED, OVERDUE = 0, 1, 2

NOBODY = 0
NO_JOB = -1

#: The ways to settle, and the states that each may lead to.
ENDS = {
    "complete": (COMPLETED,),
    "bury": (BURIED,),
    "cancel": (CANCELLED,),
    "retry": (QUEUED, CANCELLED),
    "handback": (QUEUED, CANCELLED),
    "crash": (QUEUED, CANCELLED),
}


class Record(NamedTuple):
    """One job. Its number is its place in the ledger."""

    state: str = QUEUED
    fence: int = 0
    holder: int = NOBODY
    #: Its lease is over.
    lapsed: bool = False
    begun: bool = False
    #: Its `not_before` has not come.
    early: bool = False
    crashes: int = 0
    #: A run of it was cut short: its effect may have happened.
    interrupted: bool = False
    cancel_requested: bool = False
    received: int = 0
    #: Someone opens a message of it, and is taken to be alive: NOT_OPENED, OPENED, or OVERDUE.
    opened: int = 0
    behind: int = NO_JOB
    trail: int = NO_JOB
    #: Its body is empty: it is never published.
    empty: bool = False
    reason: str = ""
    #: What it completed with: the fence of the run.
    result: int = 0
    #: Completed and within retention.
    retained: bool = False
    #: In the due-index.
    watched: bool = True

    @property
    def live(self) -> bool:
        return self.state in (QUEUED, RUNNING)


class Ledger(NamedTuple):
    """The jobs of one key. None: not accepted yet, or deleted."""

    records: tuple[Record | None, ...]
    last: int = NO_JOB
    #: The least that the store's clock is known to tell, in fences. It stands still unless days must have passed.
    clock: int = 0

    def put(self, job: int, record: Record | None) -> Ledger:
        return self._replace(records=(*self.records[:job], record, *self.records[job + 1 :]))

    def get(self, job: int) -> Record:
        record = self.records[job]
        assert record is not None
        return record


class Answer(NamedTuple):
    """What a verb answers: the name of a class in `oncelery.answers`, and the job it speaks of."""

    name: str
    job: int = NO_JOB
    state: str = ""
    fence: int = 0
    result: int = 0
    flag: bool = False  # Granted: recovered. Renewed: cancel_requested.


Answered = tuple[Ledger, Answer]


class Store:
    """The verbs. Each takes a ledger and gives the next one, with the answer."""

    max_crashes = 1
    #: Deaths before a run, beyond which a job is buried as never started.
    receipts = 2
    hold = False

    def reserve(self, ledger: Ledger, job: int, on_duplicate: str) -> Answered:
        known = ledger.records[job]
        if known:
            return ledger, tell("Existing" if known.begun or known.state != QUEUED else "Reserved", ledger, job)
        keeper = self.keeper(ledger)
        if keeper == NO_JOB:
            return self.reserved(self.accept(ledger, job), job)
        front = ledger.get(keeper)
        if front.state == COMPLETED or on_duplicate == JOIN:
            return ledger, tell("Existing", ledger, keeper)
        if on_duplicate == TRAIL and front.begun and front.trail == NO_JOB:
            ledger = ledger.put(keeper, front._replace(trail=job))
            return self.reserved(ledger.put(job, Record(fence=front.fence, behind=keeper)), job)
        if on_duplicate == TRAIL:
            return ledger, tell("Existing", ledger, keeper if front.trail == NO_JOB else front.trail)
        if front.state == RUNNING or front.trail != NO_JOB:
            return ledger, tell("Existing", ledger, keeper)
        ledger = self.end(ledger, keeper, front, CANCELLED, reason="replaced")
        return self.reserved(self.accept(ledger, job), job)

    def reserved(self, ledger: Ledger, job: int) -> Answered:
        return ledger, tell("Reserved", ledger, job)

    def begin(self, ledger: Ledger, job: int, holder: int, *, body: bool, empty: bool = False) -> Answered:
        record = ledger.records[job]
        if record is None:
            keeper = self.keeper(ledger)
            if keeper != NO_JOB and ledger.get(keeper).empty and ledger.get(keeper).lapsed:
                ledger = self.end_lapsed(ledger, keeper)
                keeper = self.keeper(ledger)
            if keeper != NO_JOB:
                return ledger, tell("Busy" if ledger.get(keeper).live else "Finished", ledger, keeper)
            if not body:
                return ledger, Answer("Absent")
            ledger = self.accept(ledger, job, empty=empty)
            record = ledger.get(job)
        if record.state in (COMPLETED, BURIED):
            return ledger, tell("Finished", ledger, job)
        if record.state == CANCELLED:
            return ledger, tell("Cancelled", ledger, job)
        if record.state == RUNNING:
            return self.begin_running(ledger, job, record, holder)
        if self.waits(ledger, record):
            return self.put_off(ledger, job, record)
        return self.grant(ledger, job, record, holder)

    def begin_running(self, ledger: Ledger, job: int, record: Record, holder: int) -> Answered:
        if record.holder == holder:
            return ledger, granted(ledger, job)
        if not record.lapsed:
            return ledger, tell("Busy", ledger, job)
        if record.cancel_requested:
            return (ledger := self.end_lapsed(ledger, job)), tell("Cancelled", ledger, job)
        return self.grant(ledger, job, cut_short(record, "lapse"), holder)

    def put_off(self, ledger: Ledger, job: int, record: Record) -> Answered:
        # This delivery has reached begin, so that it is no sign of a body that kills its worker.
        record = record._replace(received=0, opened=NOT_OPENED)
        return (ledger := ledger.put(job, record)), tell("Later", ledger, job)

    def waits(self, ledger: Ledger, record: Record) -> bool:
        return record.early or (record.behind != NO_JOB and ledger.get(record.behind).live)

    def grant(self, ledger: Ledger, job: int, record: Record, holder: int) -> Answered:
        if record.crashes > self.max_crashes or (record.interrupted and self.hold):
            reason = CRASHED if record.crashes > self.max_crashes else UNKNOWN
            ledger = self.end(ledger, job, record, BURIED, reason=reason, holder=NOBODY)
            return ledger, tell("Buried", ledger, job)
        record = record._replace(
            state=RUNNING,
            fence=max(record.fence + 1, ledger.clock),
            holder=holder,
            lapsed=False,
            begun=True,
            received=0,
            opened=NOT_OPENED,
        )
        return (ledger := ledger.put(job, record)), granted(ledger, job)

    def renew(self, ledger: Ledger, job: int, fence: int, holder: int) -> Answered:
        record = ledger.records[job]
        if record is None or record.fence < fence:
            return ledger, Answer("Absent")
        if not self.owns(record, fence, holder):
            return ledger, Answer("Fenced", job, record.state)
        ledger = ledger.put(job, record._replace(lapsed=False))
        return ledger, Answer("Renewed", job, flag=record.cancel_requested)

    def settle(self, ledger: Ledger, job: int, fence: int, holder: int, how: str) -> Answered:
        record = ledger.records[job]
        if record is None or record.fence < fence:
            return ledger, Answer("Absent")
        if self.owns(record, fence, holder):
            ledger = self.apply(ledger, job, record, how)
        elif not (record.fence == fence and record.holder == holder and record.state in ENDS[how]):
            return ledger, Answer("Fenced", job, record.state)
        return ledger, Answer("Settled", job, ledger.get(job).state)

    def owns(self, record: Record, fence: int, holder: int) -> bool:
        return record.state == RUNNING and record.fence == fence and record.holder == holder

    def apply(self, ledger: Ledger, job: int, record: Record, how: str) -> Ledger:
        match how:
            case "complete":
                return self.end(ledger, job, record, COMPLETED, result=record.fence, retained=True)
            case "bury":
                return self.end(ledger, job, record, BURIED, reason=FAILED)
            case "cancel":
                return self.end(ledger, job, record, CANCELLED, reason="asked")
            case _:
                return self.release(ledger, job, cut_short(record, how), how)

    def release(self, ledger: Ledger, job: int, record: Record, how: str) -> Ledger:
        if record.cancel_requested:
            return self.end(ledger, job, record, CANCELLED, reason="asked")
        return ledger.put(job, record._replace(state=QUEUED, lapsed=False, early=how == "retry"))

    def cancel(self, ledger: Ledger, job: int, *, force: bool) -> Answered:
        record = ledger.records[job]
        if record is None:
            return ledger, Answer("Absent")
        if record.state in (COMPLETED, BURIED):
            return ledger, tell("Finished", ledger, job)
        if record.state == RUNNING and not force:
            ledger = ledger.put(job, record._replace(cancel_requested=True))
            return ledger, tell("Requested", ledger, job)
        if record.live:
            ledger = self.end(ledger, job, record, CANCELLED, reason="asked", holder=NOBODY)
        return ledger, tell("Cancelled", ledger, job)

    def revive(self, ledger: Ledger, job: int) -> Answered:
        record = ledger.records[job]
        if record is None:
            return ledger, Answer("Absent")
        if record.state != BURIED:
            return ledger, tell("NotBuried", ledger, job)
        keeper = self.keeper(ledger)
        if keeper != NO_JOB:
            return ledger, tell("Existing", ledger, keeper)
        ledger = ledger.put(job, self.revived(ledger, record))._replace(last=job)
        return ledger, tell("Revived", ledger, job)

    def revived(self, ledger: Ledger, record: Record) -> Record:
        """Give what remains of a dead letter; what once stood before or behind it in line has gone on."""
        fence = max(record.fence, self.last_fence(ledger))
        return Record(fence=fence, holder=record.holder, begun=record.begun, empty=record.empty)

    def discard(self, ledger: Ledger, job: int) -> Answered:
        record = ledger.records[job]
        if record is None:
            return ledger, Answer("Absent")
        if record.state != BURIED:
            return ledger, tell("NotBuried", ledger, job)
        ledger = self.discarded(ledger, job, record)
        return ledger, tell("Discarded", ledger, job)

    def discarded(self, ledger: Ledger, job: int, record: Record) -> Ledger:
        record = record._replace(behind=NO_JOB, trail=NO_JOB)
        return self.end(ledger, job, record, CANCELLED, reason=DISCARDED, holder=NOBODY)

    def received(self, ledger: Ledger, job: int, how: str = "dead") -> Answered:
        """Tell of a delivery before a run: someone is "opening" it, it was "opened", or who did so is "dead"."""
        record = ledger.records[job]
        if record is None:
            return ledger, Answer("Absent")
        if record.state in (COMPLETED, BURIED):
            return ledger, tell("Finished", ledger, job)
        if record.state == CANCELLED:
            return ledger, tell("Cancelled", ledger, job)
        if record.state == QUEUED and how == "opening" and record.opened == OPENED:
            return ledger, tell("Busy", ledger, job)
        if record.state == QUEUED:
            record = self.receive(record, how)
        if record.received > self.receipts:
            ledger = self.end(ledger, job, record, BURIED, reason=NEVER_STARTED)
            return ledger, tell("Buried", ledger, job)
        return ledger.put(job, record), Answer("Counted", job, result=record.received)

    def receive(self, record: Record, how: str) -> Record:
        died = how == "dead" or (how == "opening" and record.opened == OVERDUE)
        return record._replace(received=record.received + died, opened=OPENED if how == "opening" else NOT_OPENED)

    def due(self, ledger: Ledger, job: int) -> tuple[Ledger, bool]:
        """Check a job whose time has come; whether to publish it again. Neither state nor fence changes."""
        record = ledger.get(job)
        if not (record.live and record.watched) or record.behind != NO_JOB:
            return ledger, False
        missing = record.lapsed or (record.state == QUEUED and not record.early)
        if missing and (record.empty or record.cancel_requested):
            return self.end_lapsed(ledger, job), False
        return ledger, missing

    # Time

    def lapse(self, ledger: Ledger, job: int) -> Ledger:
        return ledger.put(job, ledger.get(job)._replace(lapsed=True))

    def tire(self, ledger: Ledger, job: int) -> Ledger:
        """Let the lease of whoever opens a message be over."""
        return ledger.put(job, ledger.get(job)._replace(opened=OVERDUE))

    def ripen(self, ledger: Ledger, job: int) -> Ledger:
        return ledger.put(job, ledger.get(job)._replace(early=False))

    def expire(self, ledger: Ledger, job: int) -> Ledger:
        """Let a completed job's retention pass."""
        return ledger.put(job, ledger.get(job)._replace(retained=False))

    def prune(self, ledger: Ledger, job: int) -> Ledger:
        """Let a finished job's history pass."""
        return self.forget(ledger, job)

    # What verbs share

    def keeper(self, ledger: Ledger) -> int:
        """Find the job that a new submission gets back."""
        last = ledger.records[ledger.last] if ledger.last != NO_JOB else None
        return ledger.last if last and (last.live or last.retained) else NO_JOB

    def last_fence(self, ledger: Ledger) -> int:
        last = ledger.records[ledger.last] if ledger.last != NO_JOB else None
        return last.fence if last else 0

    def accept(self, ledger: Ledger, job: int, *, empty: bool = False) -> Ledger:
        return ledger.put(job, Record(fence=self.last_fence(ledger), empty=empty))._replace(last=job)

    def end(
        self,
        ledger: Ledger,
        job: int,
        record: Record,
        state: str,
        *,
        reason: str = "",
        holder: int | None = None,
        result: int = 0,
        retained: bool = False,
    ) -> Ledger:
        """End a job, and let the one that waits behind it follow. Its counters have no more to say."""
        record = record._replace(
            state=state,
            lapsed=False,
            early=False,
            cancel_requested=False,
            crashes=0,
            interrupted=False,
            received=0,
            opened=NOT_OPENED,
            watched=False,
            reason=reason,
            holder=record.holder if holder is None else holder,
            result=result,
            retained=retained,
        )
        ledger = ledger.put(job, record)
        front = ledger.records[record.behind] if record.behind != NO_JOB else None
        if front and front.trail == job:
            ledger = ledger.put(record.behind, front._replace(trail=NO_JOB))
        return self.follow(ledger, record.trail, record.fence)

    def follow(self, ledger: Ledger, trail: int, fence: int) -> Ledger:
        waiting = ledger.records[trail] if trail != NO_JOB else None
        if waiting is None:
            return ledger
        waiting = waiting._replace(behind=NO_JOB, fence=max(waiting.fence, fence))
        return ledger.put(trail, waiting)._replace(last=trail)

    def end_lapsed(self, ledger: Ledger, job: int) -> Ledger:
        record = ledger.get(job)
        reason = "asked" if record.cancel_requested else "lapsed"
        return self.end(ledger, job, record, CANCELLED, reason=reason, holder=NOBODY)

    def forget(self, ledger: Ledger, job: int) -> Ledger:
        """Delete a job. The clock has gone on since its last run, so that a fence given anew is still higher."""
        fences = [record.fence for record in ledger.records if record]
        ledger = ledger.put(job, None)._replace(clock=max(ledger.clock, *fences) + 1)
        return ledger._replace(last=NO_JOB) if ledger.last == job else ledger


def tell(name: str, ledger: Ledger, job: int) -> Answer:
    record = ledger.records[job]
    return Answer(name, job, record.state if record else "", result=record.result if record else 0)


def granted(ledger: Ledger, job: int) -> Answer:
    record = ledger.get(job)
    return Answer("Granted", job, record.state, fence=record.fence, flag=record.interrupted)


def cut_short(record: Record, how: str) -> Record:
    """End the record's run without an outcome. Who asks for a retry knows that there was no effect."""
    crashes = record.crashes + (how in ("crash", "lapse"))
    return record._replace(crashes=crashes, interrupted=record.interrupted or how != "retry")
