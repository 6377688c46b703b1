"""The sweeper: publishes again what is lost. A step of every worker, of which one at a time does the work."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from amqp.exceptions import ChannelError
from celery import bootsteps
from celery.worker.consumer.tasks import Tasks
from kombu.exceptions import OperationalError

from oncelery.answers import Granted, Renewed
from oncelery.celery.publishing import publish_again
from oncelery.errors import OnceleryError
from oncelery.fingerprint import fingerprint
from oncelery.job import Cause, Lease, Submission
from oncelery.ledger import Ledger
from oncelery.policy import Policy
from oncelery.settlement import Release

if TYPE_CHECKING:
    from oncelery.celery.extension import Oncelery

_logger = logging.getLogger("oncelery")

#: How many jobs one sweep publishes at most; the rest waits for the next.
BATCH = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What a sweep did."""

    published: int
    failed: int
    pruned: int


def sweep(once: Oncelery, ledger: Ledger) -> Swept:
    """Publish what is due and delete what is past its history; one bad job does not keep back the others."""
    due = ledger.due(limit=BATCH, empty_queues=empty_queues(once))
    failed = 0
    for job in due:
        try:
            publish_again(once, job, resent=True)
        except Exception:
            failed += 1
            _logger.exception("could not publish job %s again", job.id)
    return Swept(published=len(due) - failed, failed=failed, pruned=ledger.prune())


def empty_queues(once: Oncelery) -> list[str]:
    """Ask the broker which of the app's queues hold no message, at any priority."""
    labels: list[str] = []
    with once.app.connection_for_read() as connection:
        for name in once.app.amqp.queues:
            try:
                if connection.default_channel.queue_declare(name, passive=True).message_count == 0:
                    labels += [name, *(f"{name}#{priority}" for priority in range(10))]
            except (ChannelError, OperationalError):
                # It does not exist (yet): what was sent to it is lost for sure, and the slow check finds it.
                continue
    return labels


class Leadership:
    """Lets one worker at a time sweep: a job without a body, whose lease its holder renews."""

    def __init__(self, ledger: Ledger, worker: str, *, every: float) -> None:
        self._ledger = ledger
        self._worker = worker
        self._policy = Policy(lease=timedelta(seconds=max(3 * every, 1)), max_crashes=2**31)
        self._lease: Lease | None = None
        self._seen: datetime | None = None

    def held(self) -> bool:
        """Whether it is for this worker to sweep."""
        if self._lease and isinstance(self._ledger.renew([self._lease])[0], Renewed):
            return True
        leader = self._ledger.get(SWEEP.id)
        if leader and leader.lease_until and leader.lease_until != self._seen:
            # Someone leads, and has renewed since this worker last looked. (No clocks are compared.)
            self._seen = leader.lease_until
            return False
        answer = self._ledger.begin(SWEEP, self._policy, worker=self._worker)
        self._lease = answer.lease if isinstance(answer, Granted) else None
        return self._lease is not None

    def let_go(self) -> None:
        """Let another worker lead at once."""
        if self._lease:
            self._ledger.settle(self._lease, Release(cause=Cause.HANDBACK))
            self._lease = None


SWEEP = Submission(
    id=str(uuid.uuid5(uuid.NAMESPACE_OID, "oncelery.sweep")),
    key=fingerprint("oncelery.sweep", {}),
    task="oncelery.sweep",
    body=b"",
    retention=timedelta(0),
    history=timedelta(0),
)


class Sweeper(bootsteps.StartStopStep):
    """The worker's step: sweeps by the worker's own timer, in its main process."""

    requires = (Tasks,)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._timer: Any = None

    def start(self, consumer: Any) -> None:
        """Begin to sweep."""
        once: Oncelery = consumer.app.oncelery
        self._leadership = Leadership(once.ledger, consumer.hostname, every=once.settings.sweep_every)
        if once.settings.sweep_every:
            self._timer = consumer.timer.call_repeatedly(once.settings.sweep_every, self._sweep, (once,))

    def stop(self, _consumer: Any) -> None:
        """Stop sweeping."""
        if self._timer:
            self._timer.cancel()
        try:
            self._leadership.let_go()
        except OnceleryError as error:
            _logger.warning("the sweeper could not let go: %s", error)

    def _sweep(self, once: Oncelery) -> None:
        try:
            if self._leadership.held():
                sweep(once, once.ledger)
        except (OnceleryError, OperationalError) as error:
            _logger.warning("could not sweep: %s", error)
