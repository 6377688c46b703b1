"""Planted bugs: the protocol with one thing wrong. The search must find each, by the invariant that it breaks."""

# ruff: noqa: ARG002 - a bug often lies in what it does not look at

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .invariants import judge_ack
from .ledger import (
    JOIN,
    NO_JOB,
    QUEUED,
    RUNNING,
    TRAIL,
    Answer,
    Answered,
    Ledger,
    Record,
    Store,
    granted,
    tell,
)
from .protocol import Protocol
from .steps import ACT, BY_NAME, CALL, FAULT, PROGRESS, Books, Bounds, Step, Worker, name

# Of the store: who may write


class SettleChecksTheStateOnly(Store):
    """Settle asks whether the job is running, not whether it is run by us."""

    def owns(self, record: Record, fence: int, holder: int) -> bool:
        return record.state == RUNNING


class SettleChecksNothing(Store):
    """Settle writes what it is told."""

    def owns(self, record: Record, fence: int, holder: int) -> bool:
        return True


class SettleForgetsTheState(Store):
    """Settle compares fence and holder, but not that the job is still running."""

    def owns(self, record: Record, fence: int, holder: int) -> bool:
        return (record.fence, record.holder) == (fence, holder)


class RenewChecksTheStateOnly(Store):
    """Renew extends whoever's lease it is."""

    def renew(self, ledger: Ledger, job: int, fence: int, holder: int) -> Answered:
        record = ledger.records[job]
        if record and record.state == RUNNING:
            return super().renew(ledger, job, record.fence, record.holder)
        return super().renew(ledger, job, fence, holder)


class SweeperBumpsTheFence(Store):
    """The sweeper revokes a lapsed lease, where only begin may."""

    def due(self, ledger: Ledger, job: int) -> tuple[Ledger, bool]:
        ledger, publish = super().due(ledger, job)
        record = ledger.get(job)
        if publish and record.state == RUNNING:
            ledger = ledger.put(job, record._replace(fence=record.fence + 1))
        return ledger, publish


class ReviveResetsTheFence(Store):
    """A revived job starts from nothing."""

    def revived(self, ledger: Ledger, record: Record) -> Record:
        return super().revived(ledger, record)._replace(fence=0)


class ReviveForgetsTheKeysFence(Store):
    """A revived job goes on from its own last fence, although another job of its key has been granted since."""

    def revived(self, ledger: Ledger, record: Record) -> Record:
        return super().revived(ledger, record)._replace(fence=record.fence)


# Of the store: requests that are sent again


class BeginIsNotIdempotent(Store):
    """A holder that asks again, its reply lost, is told that the job is busy: with itself."""

    def begin_running(self, ledger: Ledger, job: int, record: Record, holder: int) -> Answered:
        return super().begin_running(ledger, job, record._replace(holder=-1), holder)


class SettleIsNotIdempotent(Store):
    """A holder that completes again, its reply lost, is told that it was fenced."""

    def settle(self, ledger: Ledger, job: int, fence: int, holder: int, how: str) -> Answered:
        record = ledger.records[job]
        if record and not self.owns(record, fence, holder):
            return ledger, Answer("Fenced", job, record.state)
        return super().settle(ledger, job, fence, holder, how)


class ReserveOverwrites(Store):
    """A reservation that is sent again puts the job back to the start."""

    def reserve(self, ledger: Ledger, job: int, on_duplicate: str) -> Answered:
        known = ledger.records[job]
        if known and known.live:
            return self.reserved(ledger.put(job, Record(fence=known.fence)), job)
        return super().reserve(ledger, job, on_duplicate)


# Of the store: crashes


class CrashesAreCountedPerDelivery(Store):
    """The count lives with the message, and starts anew with the next one."""

    def begin_running(self, ledger: Ledger, job: int, record: Record, holder: int) -> Answered:
        return super().begin_running(ledger, job, record._replace(crashes=0), holder)

    def release(self, ledger: Ledger, job: int, record: Record, how: str) -> Ledger:
        return super().release(ledger, job, record._replace(crashes=0), how)


class ReportedCrashIsNotCounted(Store):
    """A crash that the parent reports is taken for a handback."""

    def settle(self, ledger: Ledger, job: int, fence: int, holder: int, how: str) -> Answered:
        return super().settle(ledger, job, fence, holder, "handback" if how == "crash" else how)


class LapseIsNotCounted(Store):
    """A lease that lapsed is taken over without a count."""

    def begin_running(self, ledger: Ledger, job: int, record: Record, holder: int) -> Answered:
        if record.lapsed and not record.cancel_requested and record.holder != holder:
            return self.grant(ledger, job, record, holder)
        return super().begin_running(ledger, job, record, holder)


class LiveLeaseIsTakenOver(Store):
    """A second delivery takes a lease that has not lapsed."""

    def begin_running(self, ledger: Ledger, job: int, record: Record, holder: int) -> Answered:
        return super().begin_running(ledger, job, record._replace(lapsed=True), holder)


class LaterKeepsTheReceipts(Store):
    """A delivery that reached begin, but too early, still counts as one that never did."""

    def put_off(self, ledger: Ledger, job: int, record: Record) -> Answered:
        return ledger, super().put_off(ledger, job, record)[1]


class DeliveriesAreCountedWhenTheyCome(Store):
    """A delivery counts as one that led to no run before anybody knows what becomes of it."""

    def receive(self, record: Record, how: str) -> Record:
        return record._replace(received=record.received + (how == "opening"))


class DiscardLeavesNoTrace(Store):
    """A dead letter that is discarded is deleted, so that a copy of its message is a new job."""

    def discarded(self, ledger: Ledger, job: int, record: Record) -> Ledger:
        return self.forget(ledger, job)


# Of the store: what keeps a job alive


class NoDueIndex(Store):
    """Nothing watches a job but its message."""

    def accept(self, ledger: Ledger, job: int, *, empty: bool = False) -> Ledger:
        ledger = super().accept(ledger, job, empty=empty)
        return ledger.put(job, ledger.get(job)._replace(watched=False))


class SkipAndAcknowledge(Store):
    """The usual recipe, SET NX EX: if the key is there, the task is skipped and counts as done."""

    def begin_running(self, ledger: Ledger, job: int, record: Record, holder: int) -> Answered:
        if record.holder == holder:
            return super().begin_running(ledger, job, record, holder)
        return ledger, tell("Finished", ledger, job)


class RetentionIsForgotten(Store):
    """The lock is removed when the task is done, so that the next duplicate runs."""

    def apply(self, ledger: Ledger, job: int, record: Record, how: str) -> Ledger:
        ledger = super().apply(ledger, job, record, how)
        return ledger.put(job, ledger.get(job)._replace(retained=False))


class CancelIsNotHonouredAtRelease(Store):
    """A job whose cancel was requested goes back to the queue."""

    def release(self, ledger: Ledger, job: int, record: Record, how: str) -> Ledger:
        return ledger.put(job, record._replace(state=QUEUED, lapsed=False))


class EmptyBodiesAreNotSwept(Store):
    """A call that was released has no message to fetch it from the queue, and keeps its key."""

    def due(self, ledger: Ledger, job: int) -> tuple[Ledger, bool]:
        record = ledger.get(job)
        return (ledger, False) if record.empty and record.state == QUEUED else super().due(ledger, job)


# Of the store: jobs in line


class TrailIsNotFreed(Store):
    """The job that waits is not told that the one before it has ended."""

    def follow(self, ledger: Ledger, trail: int, fence: int) -> Ledger:
        return ledger


class ReviveKeepsTheTrail(Store):
    """A revived job still leads the one that has long gone on, and passes its key to it when it ends again."""

    def revived(self, ledger: Ledger, record: Record) -> Record:
        return super().revived(ledger, record)._replace(trail=record.trail)


class ReviveKeepsThePlaceBehind(Store):
    """A job that was buried while it waited for another still does when it is revived, and that one has long ended."""

    def revived(self, ledger: Ledger, record: Record) -> Record:
        return super().revived(ledger, record)._replace(behind=record.behind)

    def waits(self, ledger: Ledger, record: Record) -> bool:
        return record.early or record.behind != NO_JOB


# Of those who use it


class TwoStepTakeover(Protocol):
    """A worker reads that a lease is over, and in another step writes that it is its own."""

    def begin_steps(self, books: Books, worker: Worker) -> Iterator[Step]:
        record = books.ledger.records[worker.job]
        if record and worker.how == "has read":
            record = record._replace(state=RUNNING, crashes=record.crashes + 1, lapsed=False)
            ledger = books.ledger.put(worker.job, record._replace(fence=record.fence + 1, holder=worker.holder))
            answered = ledger, granted(ledger, worker.job)
            then = worker._replace(phase="running", how="", fence=record.fence + 1)
            yield from self.send(books, worker, "begin", answered, then, worker, "")
        elif record and record.state == RUNNING and record.lapsed:
            label = f"{{w}} reads that the lease of {name(worker.job)} is over"
            yield self.step(label, PROGRESS, books, books, worker, worker._replace(how="has read"))
        else:
            yield from super().begin_steps(books, worker)


class UnfencedReleaseAfterUnknownCommit(Protocol):
    """A worker that does not hear whether it has completed puts the job back, whatever it has become."""

    def settle_steps(self, books: Books, worker: Worker, how: str) -> Iterator[Step]:
        record = books.ledger.records[worker.job]
        if worker.phase == "settling" and how == "complete" and record:
            ledger = books.ledger.put(worker.job, record._replace(state=QUEUED, watched=True, retained=False))
            then = worker._replace(phase="ending", how="reject")
            yield self.step(
                f"{{w}} puts {name(worker.job)} back", PROGRESS, books, books._replace(ledger=ledger), worker, then
            )
        else:
            yield from super().settle_steps(books, worker, how)


class ErrorAtBeginMeansYes(Protocol):
    """A worker that gets no answer runs."""

    def begin_steps(self, books: Books, worker: Worker) -> Iterator[Step]:
        yield from super().begin_steps(books, worker)
        label = f"{{w}}: begin {name(worker.job)}: no answer"
        yield self.step(label, FAULT, books, books, worker, worker._replace(phase="running"))


class ErrorAtReserveMeansYes(Protocol):
    """A caller that gets no answer publishes, and says that the job is accepted."""

    def caller_steps(self, books: Books, job: int) -> Iterator[Step]:
        yield from super().caller_steps(books, job)
        if books.callers[job] == "new":
            label = f"caller: reserve {name(job)}: no answer, published all the same"
            yield self.step(label, FAULT, books, self.call(books, job, "done"), post=("publish", job))


class NotReserved(Protocol):
    """A caller publishes, says that the job is accepted, and leaves the rest to the broker."""

    def owed(self, books: Books, job: int) -> bool:
        return books.callers[job] == "done"


class LiveRecordsExpire(Protocol):
    """Every record has a TTL, also that of a job still to be done."""

    def calendar_steps(self, books: Books, job: int) -> Iterator[Step]:
        yield from super().calendar_steps(books, job)
        if books.ledger.get(job).live:
            after = books._replace(acts=books.acts - 1, ledger=self.store.forget(books.ledger, job))
            yield self.step(f"the record of {name(job)} expires", ACT, books, after, by_hand=True)


class AcknowledgesFirst(Protocol):
    """A worker acknowledges what it receives before it does anything; harmless, once the job is reserved."""

    def begin_steps(self, books: Books, worker: Worker) -> Iterator[Step]:
        if worker.phase == "got" and worker.how != "acknowledged":
            broken = judge_ack(books.ledger, books.memory, worker.job)
            then = worker._replace(how="acknowledged", tag=False)
            label, post = f"{{w}} acknowledges {name(worker.job)} first", ("acknowledge", worker.job)
            yield self.step(label, PROGRESS, books, books, worker, then, post=post, broken=broken)
        else:
            yield from super().begin_steps(books, worker)


class AbsentIsSuperseded(Protocol):
    """A run whose job the store has lost takes that for another run's, ends, and acknowledges."""

    def lost(self, worker: Worker) -> Worker:
        return worker._replace(phase="ending", how="")


class RestoredByAnybody(Protocol):
    """A run whose job the store has lost goes on without a record, and completes what was given to another since."""

    def restore_steps(self, books: Books, worker: Worker) -> Iterator[Step]:
        record = books.ledger.records[worker.job]
        if record and record.state == RUNNING:
            fence = worker._replace(phase="done", holder=record.holder, fence=record.fence)
            yield self.step(f"{{w}} goes on with {name(worker.job)}", PROGRESS, books, books, worker, fence)
        else:
            yield from super().restore_steps(books, worker)


class SilenceMeansDone(Protocol):
    """A worker that waits too long for the store acknowledges, as if its outcome were recorded."""

    def give_up_steps(self, books: Books, worker: Worker, label: str, ledger: Ledger) -> Iterator[Step]:
        for step in super().give_up_steps(books, worker, label, ledger):
            yield step._replace(worker=step.worker._replace(how=""))


class Mutant(NamedTuple):
    """What is wrong, within which bounds it shows, and what it breaks."""

    bug: type[Store | Protocol]
    breaks: tuple[str, ...]
    bounds: Bounds = Bounds(faults=2, acts=1)

    def protocol(self) -> Protocol:
        return mutated(self.bug)(self.bounds)


def mutated(bug: type[Store | Protocol]) -> type[Protocol]:
    """Give the protocol with this bug in it."""
    if issubclass(bug, Protocol):
        return bug
    return type(bug.__name__, (Protocol,), {"store_type": bug})


MUTANTS = (
    Mutant(SettleChecksTheStateOnly, ("I4",)),
    Mutant(SettleChecksNothing, ("I1", "I4", "I8")),
    Mutant(SettleForgetsTheState, ("I4",)),
    Mutant(RenewChecksTheStateOnly, ("I4",)),
    Mutant(SweeperBumpsTheFence, ("I4",)),
    Mutant(ReviveResetsTheFence, ("I3",), Bounds(faults=0, acts=2)),
    Mutant(ReviveForgetsTheKeysFence, ("I3",), Bounds(faults=0, acts=3, submissions=(JOIN, JOIN))),
    Mutant(BeginIsNotIdempotent, ("I6",)),
    Mutant(SettleIsNotIdempotent, ("I9",)),
    Mutant(ReserveOverwrites, ("I4",)),
    Mutant(CrashesAreCountedPerDelivery, ("I6",), Bounds(faults=3, acts=0)),
    Mutant(ReportedCrashIsNotCounted, ("I6",), Bounds(faults=3, acts=0)),
    Mutant(LapseIsNotCounted, ("I6",), Bounds(faults=3, acts=0)),
    Mutant(LiveLeaseIsTakenOver, ("I6",)),
    Mutant(LaterKeepsTheReceipts, ("I6",), Bounds(faults=2, acts=1, receipts=2)),
    Mutant(DeliveriesAreCountedWhenTheyCome, ("I6",), Bounds(faults=2, acts=0, receipts=2)),
    Mutant(DiscardLeavesNoTrace, ("I10",), Bounds(faults=1, acts=2, discards=True)),
    Mutant(NoDueIndex, ("Ix", "I2", "I5")),
    Mutant(SkipAndAcknowledge, ("I5", "I7")),
    Mutant(RetentionIsForgotten, ("I1",), Bounds(faults=0, acts=0, submissions=(JOIN, JOIN))),
    Mutant(CancelIsNotHonouredAtRelease, ("I8",), Bounds(faults=0, acts=2)),
    Mutant(EmptyBodiesAreNotSwept, ("I5",), Bounds(faults=1, acts=1, submissions=(CALL, CALL))),
    Mutant(TrailIsNotFreed, ("Ix", "I5"), Bounds(faults=0, acts=0, submissions=(TRAIL, TRAIL))),
    Mutant(ReviveKeepsTheTrail, ("I8",), Bounds(workers=1, faults=0, acts=3, submissions=(TRAIL, TRAIL), copies=1)),
    Mutant(
        ReviveKeepsThePlaceBehind, ("Ix",), Bounds(faults=1, acts=2, submissions=(TRAIL, TRAIL), receipts=0, copies=1)
    ),
    Mutant(TwoStepTakeover, ("I1", "I8")),
    Mutant(UnfencedReleaseAfterUnknownCommit, ("I1", "I8")),
    Mutant(ErrorAtBeginMeansYes, ("I10",)),
    Mutant(ErrorAtReserveMeansYes, ("I5",)),
    Mutant(NotReserved, ("I5",), Bounds(faults=1, acts=0, submissions=(BY_NAME,))),
    Mutant(LiveRecordsExpire, ("I2", "I5")),
    Mutant(AbsentIsSuperseded, ("I2", "I5"), Bounds(faults=1, acts=0, failovers=True)),
    Mutant(RestoredByAnybody, ("I4",), Bounds(faults=2, acts=0, failovers=True)),
    Mutant(SilenceMeansDone, ("I2",), Bounds(faults=1, acts=0, silent=True, submissions=(BY_NAME,))),
    Mutant(AcknowledgesFirst, ("I2",), Bounds(faults=1, acts=0, submissions=(BY_NAME,))),
)

#: Found as well, but not at once.
SLOW_MUTANTS = (
    Mutant(
        ReviveKeepsTheTrail, ("I1",), Bounds(workers=1, faults=0, acts=3, submissions=(TRAIL, TRAIL, JOIN), copies=1)
    ),
    Mutant(
        ReviveKeepsThePlaceBehind, ("I5",), Bounds(faults=1, acts=2, submissions=(TRAIL, TRAIL), receipts=0, copies=1)
    ),
)
