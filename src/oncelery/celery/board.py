"""The board: what each child of a prefork worker holds, in memory that its parent sees.

To show a lease on it costs a task no system call.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from time import monotonic

import msgspec
from billiard.process import current_process

from oncelery.codec import decode, encode
from oncelery.job import Lease

#: How many children one parent can have.
SLOTS = 256
#: Bytes for one child: a lease as JSON, with names of the greatest length.
SIZE = 4096

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

    def show_instead(self, lease: Lease) -> None:
        """Show a newer lease of the run that is shown; do nothing while the lease of a run inside it is shown."""
        place = self._place(pid := os.getpid())
        if place is not None and any(held.lease.holder == lease.holder for held in self._read(place)):
            written = encode(lease)
            if len(written) <= SIZE - _HEAD.size:
                _write(self._memory, place, pid, written)

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
            yield from self._read(place)

    def _read(self, place: int) -> Iterator[Held]:
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

    def is_taken_down(self) -> bool:
        """Whether the parent has taken down what this child shows: it settles the run itself."""
        place = self._place(os.getpid())
        return place is not None and not _HEAD.unpack_from(self._memory, place)[2]

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
        memory, place = self._memory, self._place
        _, pid, length = _HEAD.unpack_from(memory, place)
        # Not what a dead child left there.
        self._before = memory[place : place + _HEAD.size + length] if pid == self._pid else b""
        _write(memory, place, self._pid, self._written)

    def __exit__(self, *_: object) -> None:
        _HEAD.pack_into(self._memory, self._place, 0.0, self._pid, 0)
        self._memory[self._place : self._place + len(self._before)] = self._before


def _write(memory: mmap.mmap, place: int, pid: int, written: bytes) -> None:
    # The length goes last, so that a parent that looks meanwhile sees nothing rather than half a lease.
    _HEAD.pack_into(memory, place, 0.0, pid, 0)
    memory[place + _HEAD.size : place + _HEAD.size + len(written)] = written
    _HEAD.pack_into(memory, place, monotonic(), pid, len(written))


#: For a process that is no child, or a lease too long for the board.
NOT_SHOWN: AbstractContextManager[None] = nullcontext()
