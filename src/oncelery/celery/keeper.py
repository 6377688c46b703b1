"""The prefork parent's help: it renews the leases of children that cannot, and lets go of those of dead ones.

A child's heartbeat is a thread, and C code that keeps the GIL starves it; the parent has a GIL of its own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from celery import bootsteps
from celery.signals import worker_process_shutdown

from oncelery.answers import Fenced, RenewAnswer
from oncelery.celery import forks
from oncelery.celery.background import BackgroundStep
from oncelery.celery.board import Held
from oncelery.celery.publishing import publish_again, publish_or_leave
from oncelery.job import Cause, Lease, State
from oncelery.settlement import Release
from oncelery.telemetry.counting import flush_all

if TYPE_CHECKING:
    from oncelery.celery.extension import Oncelery

#: How often the parent looks at its children, in seconds.
LOOK_EVERY = 0.25


class Keeper(bootsteps.StartStopStep):
    """The worker's step: looks after its children."""

    requires = (BackgroundStep,)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._once: Oncelery = consumer.app.oncelery
        self._timer: Any = None
        #: Whether the last renewal is still under way.
        self._is_renewing = False

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
        if late and not self._is_renewing:
            self._is_renewing = True
            leases = [held.lease for held in late]
            self._once.background.ask(lambda: self._once.ledger.renew(leases), partial(self._renewed, late))

    def _renewed(self, late: list[Held], answers: Sequence[RenewAnswer] | None) -> None:
        self._is_renewing = False
        for held, answer in zip(late, answers or (), strict=False):
            if isinstance(answer, Fenced):
                self._once.board.give_up(held)
            else:
                # Also one that the ledger does not know: the child records it again, and shows that lease.
                self._once.board.note_renewal(held.place)

    def _let_go(self, held: Held, cause: Cause) -> None:
        # Taken down before the ledger is asked, so that nobody else lets go of it.
        self._once.board.remove(held)
        self._once.board.interrupted.discard(held.lease.job_id)
        # If the ledger does not answer, the lease lapses by itself.
        self._once.background.ask(partial(self._release, held.lease, cause))

    def _release(self, lease: Lease, cause: Cause) -> None:
        self._once.ledger.settle(lease, Release(cause=cause))
        job = self._once.ledger.get(lease.job_id)
        # A job that the ledger does not know comes back with its message, which the child has not acknowledged.
        if job and job.state is State.QUEUED:
            # After it is released: sent before, it would be put away as a copy of what still runs.
            with forks.no_fork, self._once.broker.bounded():
                publish_or_leave(job.id, lambda: publish_again(self._once, job, resent=True))


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


@worker_process_shutdown.connect
def _flush_child(**_: Any) -> None:
    # A prefork child leaves without Python's own farewell.
    flush_all()
