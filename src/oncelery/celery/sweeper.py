"""The sweeper: publishes again what is lost.

A step of every worker. What is due is taken in one atomic step, so two sweepers never publish the same job, and no
worker is special: the death of one costs no time.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from amqp.exceptions import ChannelError, MessageNacked
from celery import bootsteps
from celery.worker.consumer.tasks import Tasks
from kombu.exceptions import ContentDisallowed, DecodeError, OperationalError
from msgspec.structs import replace

from oncelery.answers import Buried, Counted, Granted
from oncelery.celery.call import failure_of
from oncelery.celery.message import Message
from oncelery.celery.opening import fail_buried, open_watched
from oncelery.celery.orphans import LOOK_EVERY, Orphans
from oncelery.celery.publishing import publish_again, tell_cancelled
from oncelery.celery.routing import queue_label
from oncelery.errors import OnceleryError, StoreUnavailableError
from oncelery.job import LAPSED, Job, Reason, State, Submission
from oncelery.settlement import Bury

if TYPE_CHECKING:
    from oncelery.celery.extension import Oncelery

_logger = logging.getLogger("oncelery")

#: How many jobs one sweep publishes at most; the rest waits for the next.
BATCH = 500

#: How long a sweeper that missed the store waits, in seconds, when it is back: time for owners to renew their leases.
OWNERS_FIRST = 3.0


#: What brokers answer who asks for a queue that they do not have; kombu's own say it as text.
NOT_FOUND = "404"

#: The priorities of a queue that does not say how many it has: Redis has ten, and people write up to ten.
PRIORITIES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What a sweep did."""

    published: int
    failed: int
    pruned: int


def sweep(once: Oncelery) -> Swept:
    """Publish what is due and delete what is past its history; no bad job and no full queue keeps back the others.

    Raises:
        OperationalError, StoreUnavailableError: broker or store have gone away. What is left comes at its next check.
    """
    published = failed = 0
    full: set[str] = set()
    for job in once.ledger.due(limit=BATCH, empty_queues=empty_queues(once)):
        if job.state.live and job.queue in full:
            failed += 1
            continue
        try:
            published += _publish(once, job)
        except (OperationalError, StoreUnavailableError) as error:
            if not isinstance(error.__cause__, MessageNacked):
                # Each of the others would wait in vain as well, and the worker's main process with them.
                raise
            full.add(job.queue)
            failed += 1
            _logger.warning("could not publish job %s again: queue %s takes no more for now", job.id, job.queue)
        except Exception:
            failed += 1
            _logger.exception("could not publish job %s again", job.id)
    return Swept(published=published, failed=failed, pruned=once.ledger.prune())


def _publish(once: Oncelery, job: Job) -> bool:
    """Publish a job again; not one whose message kills whoever opens it, here as elsewhere."""
    if not job.state.live:
        # It was to be cancelled, and its worker died before it was. (A call that has lapsed has no result of its own.)
        if job.reason != LAPSED:
            tell_cancelled(once.app, job)
        return False
    if job.state is State.QUEUED:
        # Before it is published: who gets it must not find that it is being opened.
        try:
            answer = open_watched(once, job.id, once.policy().lease, lambda: Message.unpack(once.app, job.body or b""))
        except (DecodeError, ContentDisallowed, ValueError) as error:
            # Not where this process merely lacks the serialiser: others may have it.
            _bury_unreadable(once, job, error)
            return False
        if answer is None:
            raise StoreUnavailableError(f"job {job.id} is not published again for now", job_id=job.id)
        if isinstance(answer, Buried):
            fail_buried(once.app.backend, job.id, answer.job)
        if not isinstance(answer, Counted):
            return False
    publish_again(once, job, resent=True)
    return True


def _bury_unreadable(once: Oncelery, job: Job, error: Exception) -> None:
    """End a job that would wait for ever, and its key with it: workers throw away a message that they cannot read."""
    submission = Submission(id=job.id, key=job.key, task=job.task)
    granted = once.ledger.begin(submission, once.policy(), worker="sweeper")
    if isinstance(granted, Granted):
        once.ledger.settle(granted.lease, Bury(reason=Reason.FAILED, error=failure_of(error)))
        fail_buried(once.app.backend, job.id, replace(job, reason=Reason.FAILED))


def empty_queues(once: Oncelery) -> list[str]:
    """Ask the broker which of the app's queues hold no message, at any priority."""
    labels: list[str] = []
    with once.app.connection_for_read() as connection:
        channel = connection.default_channel
        for name, queue in once.app.amqp.queues.items():
            try:
                messages = channel.queue_declare(name, passive=True).message_count
            except ChannelError as error:
                if str(error.reply_code) != NOT_FOUND:
                    raise
                # In Redis an empty queue does not exist; and what RabbitMQ does not know holds no message.
                messages = 0
                channel = connection.channel()
            if messages == 0:
                most = max(PRIORITIES, (queue.queue_arguments or {}).get("x-max-priority") or 0)
                labels += [name, *(queue_label(name, priority) for priority in range(1, most + 1))]
    return labels


class Sweeper(bootsteps.StartStopStep):
    """The worker's step: sweeps by the worker's own timer, in its main process."""

    requires = (Tasks,)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._timers: list[Any] = []
        self._not_before = 0.0

    def start(self, consumer: Any) -> None:
        """Begin to sweep."""
        once: Oncelery = consumer.app.oncelery
        every = once.settings.sweep_every
        # Without a store there are guarded tasks that nobody uses; whoever does is told.
        if every and once.settings.store:
            self._repeat(consumer, every, once.sweep)
            self._repeat(consumer, max(every, LOOK_EVERY), Orphans(once).restore)

    def stop(self, _consumer: Any) -> None:
        """Stop sweeping."""
        for timer in self._timers:
            timer.cancel()
        self._timers = []

    def _repeat(self, consumer: Any, every: float, act: Callable[[], object]) -> None:
        # Workers that were started together need not sweep together.
        pace = every * random.uniform(0.8, 1.2)  # noqa: S311
        self._timers.append(consumer.timer.call_repeatedly(pace, self._attempt, (consumer, act)))

    def _attempt(self, consumer: Any, act: Callable[[], object]) -> None:
        try:
            if self._store_is_back(consumer.app.oncelery):
                act()
        except OnceleryError as error:
            self._not_before = math.inf
            _logger.warning("could not sweep: %s", error)
        except (OperationalError, *consumer.connection_errors) as error:
            _logger.warning("could not sweep: %s", error)

    def _store_is_back(self, once: Oncelery) -> bool:
        """Whether the store has answered for a while: its absence makes leases lapse whose runs are well."""
        # Asked each time: `due` itself, sent to a store that stands still, would be done the moment it wakes up.
        once.ledger.get("-")
        if self._not_before == math.inf:
            self._not_before = monotonic() + OWNERS_FIRST
        return monotonic() >= self._not_before
