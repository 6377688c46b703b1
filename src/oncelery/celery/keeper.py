"""The prefork parent's help: it renews the leases of children that cannot, and lets go of those of dead ones.

A child's heartbeat is a thread, and C code that keeps the GIL starves it; the parent has a GIL of its own. The board is
memory that both see, so showing a lease on it costs a task no system call.
"""

from __future__ import annotations

import logging
import math
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec
from billiard.process import current_process
from celery import bootsteps
from celery.worker.consumer.tasks import Tasks
from kombu.exceptions import OperationalError

from oncelery.answers import Fenced
from oncelery.celery.publishing import publish_again
from oncelery.codec import decode, encode
from oncelery.errors import OnceleryError
from oncelery.job import Cause, Lease, State
from oncelery.settlement import Release

if TYPE_CHECKING:
    from oncelery.celery.extension import Oncelery

_logger = logging.getLogger("oncelery")

#: How many children one parent can have.
SLOTS = 256
#: Bytes for one child: a lease as JSON, with names of the greatest length.
SIZE = 4096

#: How often the parent looks at its children, in seconds.
LOOK_EVERY = 0.25

#: When the lease was last renewed (by a clock that all processes of a machine share), by whom it is held, and its
#: length as JSON.
_HEAD = struct.Struct("<dii")
_TIME = struct.Struct("<d")


@dataclass(frozen=True, slots=True)
class Held:
    """A lease on the board."""

    place: int
    renewed_at: float
    pid: int
    lease: Lease


class Board:
    """What each child of this process holds. Made before the children are forked."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, SLOTS * SIZE)
        self._parent = os.getpid()
        #: Jobs whose children the parent has ended, because it stops or has lost its connection.
        self.interrupted: set[str] = set()

    def show(self, lease: Lease) -> AbstractContextManager[None]:
        """Show a lease to the parent while it is held; inside another one, in place of that."""
        place = self._place(pid := os.getpid())
        if place is None or len(written := encode(lease)) > SIZE - _HEAD.size:
            return NOT_SHOWN
        return _Shown(self._memory, place, pid, written)

    def renewed(self) -> None:
        """Tell the parent that this child has renewed its lease itself."""
        place = self._place(os.getpid())
        if place is not None:
            self.note_renewal(place)

    def note_renewal(self, place: int) -> None:
        """Note that the lease at this place was renewed just now."""
        # Nothing but the time: the child may be showing another lease at this very moment.
        _TIME.pack_into(self._memory, place, monotonic())

    def give_up(self, held: Held) -> None:
        """Note that this lease is lost and need not be renewed again, unless the child shows another by now."""
        if _TIME.unpack_from(self._memory, held.place)[0] == held.renewed_at:
            _TIME.pack_into(self._memory, held.place, math.inf)

    def held(self) -> Iterator[Held]:
        """Read what the children hold."""
        for place in range(0, SLOTS * SIZE, SIZE):
            renewed_at, pid, length = _HEAD.unpack_from(self._memory, place)
            if length:
                # A child that is writing just now is read on the next look.
                with suppress(msgspec.DecodeError):
                    written = self._memory[place + _HEAD.size : place + _HEAD.size + length]
                    yield Held(place, renewed_at, pid, decode(written, Lease))

    def take_down(self, job_id: str) -> Lease | None:
        """Take the lease of a job whose child is dead."""
        for held in self.held():
            if held.lease.job_id == job_id:
                self.remove(held)
                return held.lease
        return None

    def remove(self, held: Held) -> None:
        """Take a lease down, unless another child shows one in its place by now."""
        if _HEAD.unpack_from(self._memory, held.place)[1] == held.pid:
            _HEAD.pack_into(self._memory, held.place, 0.0, 0, 0)

    def _place(self, pid: int) -> int | None:
        index = getattr(current_process(), "index", None)
        return index * SIZE if pid != self._parent and index is not None and index < SLOTS else None


class _Shown:
    """What is written at a child's place on the board while a block lasts."""

    __slots__ = ("_before", "_memory", "_pid", "_place", "_written")

    def __init__(self, memory: mmap.mmap, place: int, pid: int, written: bytes) -> None:
        self._memory = memory
        self._place = place
        self._pid = pid
        self._written = written

    def __enter__(self) -> None:
        memory, place, written = self._memory, self._place, self._written
        _, pid, length = _HEAD.unpack_from(memory, place)
        # Not what a dead child left there.
        self._before = memory[place : place + _HEAD.size + length] if pid == self._pid else b""
        # The length goes last, so that a parent that looks meanwhile sees nothing rather than half a lease.
        _HEAD.pack_into(memory, place, 0.0, self._pid, 0)
        memory[place + _HEAD.size : place + _HEAD.size + len(written)] = written
        _HEAD.pack_into(memory, place, monotonic(), self._pid, len(written))

    def __exit__(self, *_: object) -> None:
        _HEAD.pack_into(self._memory, self._place, 0.0, self._pid, 0)
        self._memory[self._place : self._place + len(self._before)] = self._before


#: For a process that is no child, or a lease too long for the board.
NOT_SHOWN: AbstractContextManager[None] = nullcontext()


class Keeper(bootsteps.StartStopStep):
    """The worker's step: looks after its children."""

    requires = (Tasks,)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._once: Oncelery = consumer.app.oncelery
        self._timer: Any = None

    def start(self, consumer: Any) -> None:
        """Begin to look."""
        self._timer = consumer.timer.call_repeatedly(LOOK_EVERY, self._look, (consumer,))

    def stop(self, _consumer: Any) -> None:
        """Look no more."""
        if self._timer:
            self._timer.cancel()

    def shutdown(self, _consumer: Any) -> None:
        """Hand back what the children held that a cold shutdown has ended, so that others need not wait."""
        for held in self._once.board.held():
            if not _is_alive(held.pid):
                self._let_go(held, Cause.HANDBACK)

    def _look(self, consumer: Any) -> None:
        # Billiard hears of a child's death at once only if no later child was forked with the same pipes open, and
        # else looks every five seconds.
        consumer.pool.maintain_pool()
        now = monotonic()
        late = []
        board = list(self._once.board.held())
        # Who was told to end and has settled its job is forgotten: a later run of that job may crash.
        self._once.board.interrupted &= {held.lease.job_id for held in board}
        for held in board:
            if not _is_alive(held.pid):
                # The request of a child that the parent has ended itself does not report it.
                handback = held.lease.job_id in self._once.board.interrupted
                self._let_go(held, Cause.HANDBACK if handback else Cause.CRASH)
            elif now - held.renewed_at > held.lease.duration.total_seconds() / 2 and not _is_stopped(held.pid):
                late.append(held)
        if late:
            self._renew(late)

    def _renew(self, late: list[Held]) -> None:
        try:
            answers = self._once.ledger.renew([held.lease for held in late])
        except OnceleryError as error:
            _logger.warning("could not renew %d leases for children: %s", len(late), error)
            return
        for held, answer in zip(late, answers, strict=True):
            if isinstance(answer, Fenced):
                self._once.board.give_up(held)
            else:
                self._once.board.note_renewal(held.place)

    def _let_go(self, held: Held, cause: Cause) -> None:
        self._once.board.remove(held)
        self._once.board.interrupted.discard(held.lease.job_id)
        try:
            self._once.ledger.settle(held.lease, Release(cause=cause))
            job = self._once.ledger.get(held.lease.job_id)
            if job and job.state is State.QUEUED:
                publish_again(self._once, job, resent=True)
        except (OnceleryError, OperationalError) as error:
            # The lease lapses by itself, or the sweeper finds that the message is missing.
            _logger.warning("could not let go of job %s: %s", held.lease.job_id, error)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _is_stopped(pid: int) -> bool:
    """Whether the process is halted by a signal: then it is not at work, however alive. Told on Linux only."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] in "Tt"
