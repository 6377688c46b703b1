"""The sweeper: publishes again what is lost.

A step of every worker, in its own thread: neither a silent store nor much to publish holds up the worker's loop.
What is due is taken in one atomic step, so two sweepers never publish the same job, and no worker is special: the death
of one costs no time.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any

from amqp.exceptions import ChannelError, MessageNacked
from celery import bootsteps
from kombu.exceptions import DecodeError, OperationalError
from msgspec.structs import replace

from oncelery.answers import Buried, Counted, Granted
from oncelery.celery import forks
from oncelery.celery.background import BackgroundStep
from oncelery.celery.call import failure_of
from oncelery.celery.message import JSON, Message, readable_formats, typed
from oncelery.celery.opening import fail_buried, open_watched
from oncelery.celery.orphans import LOOK_EVERY, Orphans
from oncelery.celery.publishing import publish_again, tell_cancelled
from oncelery.celery.routing import queue_label
from oncelery.errors import OnceleryError, StoreUnavailableError
from oncelery.job import LAPSED, Job, Reason, State, Submission
from oncelery.settlement import Bury
from oncelery.stores import base

if TYPE_CHECKING:
    from oncelery.celery.extension import Oncelery

_logger = logging.getLogger("oncelery")

#: How many jobs one call of the store takes or deletes: a larger one would hold up other callers.
BATCH = 100

#: How many such batches one sweep deletes at most.
PRUNINGS = 10

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
    sweeping = _Sweeping(once)
    with forks.no_fork:
        signs = empty_queues(once)
    # Until then no job is due that was sent after these queues were found empty.
    until = monotonic() + base.PUBLISH_GRACE.total_seconds()
    formats = readable_formats(once.app)
    while sweeping.publish(once.ledger.due(limit=BATCH, empty_queues=signs, formats=formats)) and monotonic() < until:
        pass
    return Swept(published=sweeping.published, failed=sweeping.failed, pruned=_prune(once))


class _Sweeping:
    """What one sweep has published, and what it could not."""

    def __init__(self, once: Oncelery) -> None:
        self._once = once
        self._full: set[str] = set()
        self.published = self.failed = 0

    def publish(self, jobs: Sequence[Job]) -> bool:
        """Publish what was due; return whether there may be more."""
        for job in jobs:
            if job.state.live and job.queue in self._full:
                self.failed += 1
                continue
            try:
                with forks.no_fork:
                    self.published += _publish(self._once, job)
            except (OperationalError, StoreUnavailableError) as error:
                if not isinstance(error.__cause__, MessageNacked):
                    # Each of the others would wait in vain as well.
                    raise
                self._full.add(job.queue)
                self.failed += 1
                _logger.warning("could not publish job %s again: queue %s takes no more for now", job.id, job.queue)
            except Exception:
                self.failed += 1
                _logger.exception("could not publish job %s again", job.id)
        return sum(job.state.live for job in jobs) >= BATCH


def _prune(once: Oncelery) -> int:
    pruned = 0
    for _ in range(PRUNINGS):
        deleted = once.ledger.prune(limit=BATCH)
        pruned += deleted
        if deleted < BATCH:
            break
    return pruned


def _publish(once: Oncelery, job: Job) -> bool:
    """Publish a job again; not one whose message kills whoever opens it, here as elsewhere."""
    if not job.state.live:
        # It was to be cancelled, and its worker died before it was. (A call that has lapsed has no result of its own.)
        if job.reason != LAPSED:
            tell_cancelled(once.app, job)
        return False
    if job.state is State.QUEUED and not _is_readable(once, job):
        return False
    publish_again(once, job, resent=True)
    return True


def _is_readable(once: Oncelery, job: Job) -> bool:
    """Whether the job's message could be opened; one that nobody can read is buried."""
    body = job.body or b""

    def read() -> None:
        Message.unpack(once.app, body)

    try:
        if typed(body)[0] == JSON:
            # No process dies of reading it, and two calls of the ledger for each of many jobs take their time.
            read()
            return True
        # Before it is published: a worker that gets it must not find that it is being opened.
        answer = open_watched(once, job.id, once.policy().lease, read)
    except (DecodeError, ValueError) as error:
        # Of a format that this process reads: no other would do better.
        _bury_unreadable(once, job, error)
        return False
    if isinstance(answer, Buried):
        fail_buried(once.app.backend, job.id, answer.job)
    return isinstance(answer, Counted)


def _bury_unreadable(once: Oncelery, job: Job, error: Exception) -> None:
    """End a job that would wait for ever, and its key with it: workers throw away a message that they cannot read."""
    submission = Submission(id=job.id, key=job.key, task=job.task)
    granted = once.ledger.begin(submission, once.policy(), worker="sweeper")
    if isinstance(granted, Granted):
        once.ledger.settle(granted.lease, Bury(reason=Reason.FAILED, error=failure_of(error)))
        _logger.error("buried job %s of %s: its message cannot be read: %s", job.id, job.task, error)
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
    """The worker's step: sweeps in a thread of its main process."""

    requires = (BackgroundStep,)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._once: Oncelery = consumer.app.oncelery
        self._stopped = Event()
        self._not_before = 0.0

    def start(self, consumer: Any) -> None:
        """Begin to sweep."""
        every = self._once.settings.sweep_every
        # An app without a store may have guarded tasks, as long as it never calls them.
        if every and self._once.settings.store:
            self._stopped = Event()
            # Made here, not in the thread: a child that is forked meanwhile would find it half made.
            _ = self._once.ledger
            acts = [(every, self._once.sweep), (max(every, LOOK_EVERY), Orphans(self._once).restore)]
            repeat = (self._stopped, acts, consumer.connection_errors)
            Thread(target=self._repeat, args=repeat, name="oncelery-sweeper", daemon=True).start()

    def stop(self, _consumer: Any) -> None:
        """Stop sweeping."""
        self._stopped.set()

    def _repeat(
        self, stopped: Event, acts: list[tuple[float, Callable[[], object]]], errors: tuple[type[Exception], ...]
    ) -> None:
        # Workers that were started together need not sweep together.
        paces = [(every * random.uniform(0.8, 1.2), act) for every, act in acts]  # noqa: S311
        turns = [(monotonic() + pace, place) for place, (pace, _) in enumerate(paces)]
        while True:
            at, place = heappop(turns)
            if stopped.wait(max(at - monotonic(), 0.0)):
                return
            pace, act = paces[place]
            self._attempt(act, errors)
            heappush(turns, (monotonic() + pace, place))

    def _attempt(self, act: Callable[[], object], errors: tuple[type[Exception], ...]) -> None:
        try:
            if self._store_is_back():
                act()
        except OnceleryError as error:
            self._not_before = math.inf
            self._once.background.leave_alone()
            _logger.warning("could not sweep: %s", error)
        except (OperationalError, *errors) as error:
            _logger.warning("could not sweep: %s", error)
        except BaseException:
            # A payload may try to end the process. Without this thread nothing would be swept any more.
            _logger.exception("could not sweep")

    def _store_is_back(self) -> bool:
        """Whether the store has answered for a while: its absence makes leases lapse whose runs are well."""
        # Asked each time: `due` itself, sent to a store that stands still, would be done the moment it wakes up.
        self._once.ledger.get("-")
        if self._not_before == math.inf:
            self._not_before = monotonic() + OWNERS_FIRST
        return monotonic() >= self._not_before
