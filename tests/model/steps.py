"""What a step is, and whom and what it changes: the books, the workers, and whom the record names."""

from __future__ import annotations

from typing import NamedTuple

from .invariants import NAMED, UNNAMED, Claim, Memory
from .ledger import JOIN, NOBODY, Ledger
from .mail import Post

# What a step is: one that will be made in the end, a fault, or an act of the task, an operator or the calendar.
PROGRESS, FAULT, ACT = "progress", "fault", "act"

#: Before the phase of a worker whose run the store has lost.
LOST = "lost "

#: The fence of any run that is over.
OLD = -1

#: Ways to submit without a reservation: a message sent by name; a call that runs under the ledger without a message.
BY_NAME, CALL = "name", "call"


class Bounds(NamedTuple):
    """How much may happen in one configuration."""

    workers: int = 2
    #: Any mix of so many faults.
    faults: int = 3
    #: Any mix of so many acts: failures and stops of the task, cancels, revivals, days that pass.
    acts: int = 1
    #: How each submission of the key comes: reserved ("join", "trail", "replace"), by "name", or as a "call".
    submissions: tuple[str, ...] = (JOIN,)
    #: Acknowledging any copy removes the only one in `unacked`; else each delivery has a tag of its own.
    redis: bool = True
    #: Copies of one job's message that may wait in the broker.
    copies: int = 2
    max_crashes: int = 1
    #: Buried after a crash, instead of run again.
    hold: bool = False
    #: Deaths before a run beyond which a job is buried; -1: workers do not tell of them.
    receipts: int = -1
    #: Whether a request may arrive after its sender has sent it again.
    late: bool = False
    #: Whether the store may fail over, and have lost a live job whose message or run is elsewhere.
    failovers: bool = False
    #: Whether the store may be silent for so long that a worker gives up, and gives the message back.
    silent: bool = False
    #: Whether an operator may delete dead letters.
    discards: bool = False
    #: Whether to count effects.
    effects: bool = False


class Worker(NamedTuple):
    """A worker, and the message it has: idle, got, noted, body, running, done, settling, ending; or its child.

    After "lost ", a phase to which it comes back once it has recorded its run again.

    The child is dead, of its run; or a victim of the message, which it did not survive opening.
    """

    phase: str = "idle"
    job: int = 0
    holder: int = UNNAMED
    fence: int = 0
    #: The broker counts the message as delivered to it. (With Redis, `Mail.unacked` does so for all.)
    tag: bool = False
    #: How it settles; or how it ends the message: "reject", "park", "answered", or plainly.
    how: str = ""
    #: A request of its own that is still on its way although it has sent it again.
    late: str = ""


IDLE = Worker()


class Books(NamedTuple):
    """All but the workers and the mail."""

    ledger: Ledger
    #: Where each submission stands: new, reserved, done, joined, gone.
    callers: tuple[str, ...]
    acts: int
    memory: Memory


class Step(NamedTuple):
    """One thing that happens; `broken` names the invariants that it breaks."""

    label: str
    kind: str
    books: Books
    worker: Worker
    post: Post
    broken: tuple[str, ...]
    #: Bits of the jobs whose record no longer names the worker that it named.
    renamed: int


def rename(before: Ledger, after: Ledger, worker: Worker) -> tuple[Ledger, Worker, int]:
    """Name the worker that was granted a job; give the bits of the jobs whose holder is no longer who it was."""
    renamed = 0
    for job, (old, new) in enumerate(zip(before.records, after.records, strict=True)):
        if new and new.holder == UNNAMED:
            after = after.put(job, new._replace(holder=NAMED))
            worker = worker._replace(holder=NAMED)
            renamed |= 1 << job
        elif old and old.holder == NAMED and (new is None or new.holder == NOBODY):
            worker = unnamed(worker) if worker.job == job else worker
            renamed |= 1 << job
    return after, worker, renamed


def unnamed(worker: Worker) -> Worker:
    """Give the worker whom the record no longer names. Its fence is an old one, whichever that was."""
    return worker._replace(holder=UNNAMED, fence=OLD if worker.fence else 0)


def forget_holder(ledger: Ledger, job: int) -> Ledger:
    """Forget a name that nobody bears any more: no worker will ever say it again."""
    return ledger.put(job, ledger.get(job)._replace(holder=NOBODY))


def leave(worker: Worker) -> Worker:
    return worker._replace(phase="idle", tag=False, how="") if worker.late else IDLE


def claim(worker: Worker) -> Claim:
    return Claim(worker.job, worker.fence, worker.holder)


def who(worker: Worker) -> str:
    return "{w}'s parent" if worker.phase in ("dead", "victim") else "{w}"


def name(job: int) -> str:
    return f"J{job + 1}"
