"""What must be true after every step, and what has to be remembered to tell."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

from .ledger import (
    BURIED,
    COMPLETED,
    CRASHED,
    ENDS,
    NEVER_STARTED,
    NO_JOB,
    RUNNING,
    Answer,
    Ledger,
    Record,
)

T = TypeVar("T")

INVARIANTS = {
    "I1": "a key has at most one committed outcome within its retention",
    "Ix": "every live job is in the due-index, or waits behind one that is",
    "I2": "no message is acknowledged unless its job has ended or is in the due-index",
    "I3": "the fences granted for a key strictly increase, also over a revival",
    "I4": "a superseded run changes nothing, and a run that nobody superseded is not refused",
    "I5": "once faults stop, every accepted job ends",
    "I6": "after max_crashes + 1 crashed runs a job is buried, and nothing counts as a crash or a death that was none",
    "I7": "every duplicate is answered with the result that was committed",
    "I8": "an ended job changes by revival and pruning only, and no run begins once a cancel is requested",
    "I9": "a settlement that is sent again is answered as before",
    "I10": "nothing takes effect without a grant, nor after a person has discarded it",
}

#: The worker that the record names as its holder; and any other one, which the store cannot tell from each other.
NAMED, UNNAMED = 1, 2


class Claim(NamedTuple):
    """What a worker says when it renews or settles."""

    job: int
    fence: int
    holder: int


class Memory(NamedTuple):
    """What has happened, as far as an invariant asks for it; by job, but for the first two."""

    #: The highest fence granted.
    top: int
    #: The job whose outcome is committed and within retention.
    window: int
    #: What each job has committed.
    results: tuple[int, ...]
    #: It has ended, or its message was answered.
    over: tuple[bool, ...]
    #: Runs that crashed, of those that were the holder's.
    wrecks: tuple[int, ...]
    #: The same, and runs whose lease lapsed while they were alive.
    scares: tuple[int, ...]
    #: Deaths before a run, and leases to open a message that were over while it was opened; since the last begin.
    duds: tuple[int, ...]
    #: A person has deleted it.
    discarded: tuple[bool, ...]
    #: Effects outside, counted where a configuration asks for it.
    effects: int = 0

    @classmethod
    def of(cls, jobs: int) -> Memory:
        none = (0,) * jobs
        no = (False,) * jobs
        return cls(0, NO_JOB, none, no, none, none, none, no)

    def wreck(self, job: int) -> Memory:
        return self.scare(job)._replace(wrecks=change(self.wrecks, job, self.wrecks[job] + 1))

    def scare(self, job: int) -> Memory:
        return self._replace(scares=change(self.scares, job, self.scares[job] + 1))

    def dud(self, job: int) -> Memory:
        return self._replace(duds=change(self.duds, job, self.duds[job] + 1))

    def forgive(self, job: int) -> Memory:
        return self._replace(duds=change(self.duds, job, 0))

    def count_anew(self, job: int) -> Memory:
        return self.forgive(job)._replace(wrecks=change(self.wrecks, job, 0), scares=change(self.scares, job, 0))

    def end(self, job: int) -> Memory:
        return self._replace(over=change(self.over, job, True))  # noqa: FBT003 - a value, not an option


def observe(
    memory: Memory, before: Ledger, after: Ledger, *, by_hand: bool, by_holder: bool
) -> tuple[Memory, set[str]]:
    """Remember what has changed from one ledger to the next; name the invariants that this breaks.

    By hand: an operator or the calendar did it. By the holder: the worker whose run it is.
    """
    broken: set[str] = set()
    freed = False
    for job, (old, new) in enumerate(zip(before.records, after.records, strict=True)):
        if old == new:
            continue
        broken |= {*judge_change(memory, job, old, new, by_hand=by_hand, by_holder=by_holder)}
        memory = remember(memory, job, old, new, by_hand=by_hand)
        freed = freed or bool(old and new and new.live and old.behind != new.behind)
        if not all(is_watched(after, record) for record in after.records):
            broken.add("Ix")
    # A job that was accepted to run after the one that ended is the key's from now on.
    return (memory._replace(window=NO_JOB) if freed else memory), broken


def judge_change(
    memory: Memory, job: int, old: Record | None, new: Record | None, *, by_hand: bool, by_holder: bool
) -> Iterable[str]:
    """Hold the change of one job against what has happened before."""
    if old and not old.live and not by_hand and (new is None or old._replace(holder=0) != new._replace(holder=0)):
        yield "I8"
    if new is None:
        return
    if old and old.state == RUNNING != new.state and not (by_hand or by_holder or old.lapsed):
        yield "I4"
    if is_grant(old, new) and new.fence <= memory.top:
        yield "I3"
    if is_grant(old, new) and old and old.cancel_requested:
        yield "I8"
    if new.crashes > memory.scares[job] or (new.reason == CRASHED and not memory.scares[job]):
        yield "I6"
    if new.received > memory.duds[job] or (new.reason == NEVER_STARTED and not memory.duds[job]):
        yield "I6"
    if is_commit(old, new) and memory.window != NO_JOB:
        yield "I1"
    if is_grant(old, new) and memory.discarded[job]:
        yield "I10"


def remember(memory: Memory, job: int, old: Record | None, new: Record | None, *, by_hand: bool) -> Memory:
    if new is None:  # its history is over, and with it all promises; unless it had none
        discarded = old is not None and old.state == BURIED
        return memory._replace(discarded=change(memory.discarded, job, discarded))
    if by_hand and old and old.state == BURIED and not new.live:
        memory = memory._replace(discarded=change(memory.discarded, job, True))  # noqa: FBT003 - a value, not an option
    if not new.live or old is None or not old.live:  # ended, accepted, or revived: counted anew
        memory = memory.count_anew(job)
    memory = memory._replace(over=change(memory.over, job, not new.live))
    if is_grant(old, new):
        memory = memory.forgive(job)._replace(top=new.fence)
    if is_commit(old, new):
        memory = memory._replace(window=job, results=change(memory.results, job, new.result))
    if by_hand and old and old.retained and not new.retained:
        memory = memory._replace(window=NO_JOB)
    return memory


def is_watched(ledger: Ledger, record: Record | None) -> bool:
    if record is None or not record.live:
        return True
    front = ledger.records[record.behind] if record.behind != NO_JOB else None
    return record.watched and (record.behind == NO_JOB or bool(front and front.live))


def is_grant(old: Record | None, new: Record) -> bool:
    return new.state == RUNNING and (old is None or (old.state, old.holder) != (RUNNING, new.holder))


def is_commit(old: Record | None, new: Record) -> bool:
    return new.state == COMPLETED and (old is None or (old.state, old.result) != (COMPLETED, new.result))


def judge_answer(memory: Memory, answer: Answer) -> str:
    """Hold a duplicate's answer against what was committed."""
    if answer.name == "Finished" and answer.state not in (COMPLETED, BURIED):
        return "I7"
    told = answer.name in ("Finished", "Existing") and answer.state == COMPLETED
    return "I7" if told and answer.result != memory.results[answer.job] else ""


def runs(memory: Memory, ledger: Ledger, claim: Claim) -> bool:
    """Whether the claim is that of the job's current run: nobody was granted the key after it, and it has not ended."""
    record = ledger.records[claim.job]
    named = record is not None and record.state == RUNNING and claim.holder == NAMED
    return named and claim.fence in (0, memory.top)  # 0: granted, but not told so yet


def judge_run(  # noqa: PLR0917 - before and after, who asked what, and the answer
    memory: Memory, before: Ledger, after: Ledger, claim: Claim, answer: Answer, how: str = ""
) -> str:
    """Hold what a run has changed, and what it was told, against whose job it is."""
    if runs(memory, before, claim):
        return "I4" if answer.name == "Fenced" else ""
    if after != before:
        return "I4"
    record = before.records[claim.job]
    again = how and record and claim.holder == NAMED and claim.fence == record.fence and record.state in ENDS[how]
    return "I9" if again and answer.name == "Fenced" else ""


def judge_ack(ledger: Ledger, memory: Memory, job: int) -> str:
    """Hold the end of a message against the record that must outlive it."""
    record = ledger.records[job]
    if record:
        return "I2" if record.live and not record.watched else ""
    return "" if memory.over[job] or any(ledger.records) else "I2"


def change(row: tuple[T, ...], place: int, value: T) -> tuple[T, ...]:
    return (*row[:place], value, *row[place + 1 :])
