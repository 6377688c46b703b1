"""The prefork parent's help: it renews the leases of children that cannot, and lets go of those of dead ones.

A child's heartbeat is a thread, and C code that keeps the GIL starves it; the parent has a GIL of its own. The board is
memory that both see, so showing a lease on it costs a task no system call.
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec
from billiard.process import current_process
from celery import bootsteps
from celery.worker.consumer.tasks import Tasks

from oncelery.codec import decode, encode
from oncelery.errors import OnceleryError
from oncelery.job import Lease

if TYPE_CHECKING:
    from oncelery.celery.extension import Oncelery

_logger = logging.getLogger("oncelery")

#: How many children one parent can have.
SLOTS = 256
#: Bytes for one child: a lease as JSON, with names of the greatest length.
SIZE = 4096

#: How often the parent looks at its children, in seconds.
LOOK_EVERY = 0.25

#: When the lease was last renewed (by a clock that all processes of a machine share), and its length as JSON.
_HEAD = struct.Struct("<di")


class Board:
    """What each child of this process holds. Made before the children are forked."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, SLOTS * SIZE)
        self._parent = os.getpid()

    @contextmanager
    def show(self, lease: Lease) -> Iterator[None]:
        """Show a lease to the parent while it is held."""
        place = self._place()
        if place is None:
            yield
            return
        written = encode(lease)
        if len(written) > SIZE - _HEAD.size:
            yield
            return
        # The length goes last, so that a parent that looks meanwhile sees nothing rather than half a lease.
        self._memory[place + _HEAD.size : place + _HEAD.size + len(written)] = written
        _HEAD.pack_into(self._memory, place, monotonic(), len(written))
        try:
            yield
        finally:
            _HEAD.pack_into(self._memory, place, 0.0, 0)

    def renewed(self) -> None:
        """Tell the parent that this child has renewed its lease itself."""
        place = self._place()
        if place is not None:
            _, length = _HEAD.unpack_from(self._memory, place)
            _HEAD.pack_into(self._memory, place, monotonic(), length)

    def held(self) -> Iterator[tuple[float, Lease]]:
        """Read what the children hold, each with the time of its last renewal."""
        for place in range(0, SLOTS * SIZE, SIZE):
            renewed_at, length = _HEAD.unpack_from(self._memory, place)
            if length:
                # A child that is writing just now is read on the next look.
                with suppress(msgspec.DecodeError):
                    written = self._memory[place + _HEAD.size : place + _HEAD.size + length]
                    yield renewed_at, decode(written, Lease)

    def take_down(self, job_id: str) -> Lease | None:
        """Take the lease of a job whose child is dead."""
        for place in range(0, SLOTS * SIZE, SIZE):
            _, length = _HEAD.unpack_from(self._memory, place)
            lease = decode(self._memory[place + _HEAD.size : place + _HEAD.size + length], Lease) if length else None
            if lease and lease.job_id == job_id:
                _HEAD.pack_into(self._memory, place, 0.0, 0)
                return lease
        return None

    def _place(self) -> int | None:
        index = getattr(current_process(), "index", None)
        return index * SIZE if os.getpid() != self._parent and index is not None and index < SLOTS else None


class Keeper(bootsteps.StartStopStep):
    """The worker's step: looks after its children."""

    requires = (Tasks,)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._timer: Any = None

    def start(self, consumer: Any) -> None:
        """Begin to look."""
        self._timer = consumer.timer.call_repeatedly(LOOK_EVERY, self._look, (consumer,))

    def stop(self, _consumer: Any) -> None:
        """Look no more."""
        if self._timer:
            self._timer.cancel()

    def _look(self, consumer: Any) -> None:
        # Billiard hears of a child's death at once only if no later child was forked with the same pipes open, and
        # else looks every five seconds.
        consumer.pool.maintain_pool()
        once: Oncelery = consumer.app.oncelery
        now = monotonic()
        late = [held for at, held in once.board.held() if now - at > held.duration.total_seconds() / 2]
        if late:
            try:
                once.ledger.renew(late)
            except OnceleryError as error:
                _logger.warning("could not renew %d leases for children: %s", len(late), error)
