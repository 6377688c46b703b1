"""The worker's main process learns of the ends that a child cannot report: killed, timed out, revoked."""

from __future__ import annotations

import logging
import random
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionWithTraceback
from celery.exceptions import TimeLimitExceeded, WorkerLostError
from celery.utils.imports import symbol_by_name
from celery.worker import strategy
from celery.worker.request import Request
from celery.worker.state import task_ready

from oncelery.answers import Absent, Buried, Busy, Cancelled, Finished, ReceivedAnswer, SettleAnswer, Settled
from oncelery.celery.call import failure_of
from oncelery.celery.message import JOB, RESENT, job_id_in, job_id_of
from oncelery.celery.opening import about_to_open, died, fail_buried, open_watched
from oncelery.celery.publishing import publish_again
from oncelery.errors import OnceleryError
from oncelery.job import DISCARDED, Cause, Reason, State
from oncelery.settlement import Raised, Release, decide

if TYPE_CHECKING:
    from oncelery.celery.extension import Oncelery

_logger = logging.getLogger("oncelery")


class GuardedRequest(Request):  # type: ignore[misc] # untyped in the stubs
    """A delivery of a guarded task, in the parent."""

    #: Whether the hard time limit has ended a run, but not its job.
    _goes_on = False

    @property
    def _once(self) -> Oncelery:
        once: Oncelery = self.task.oncelery
        return once

    @property
    def _job_id(self) -> str:
        return self._request_dict.get(JOB) or job_id_of(self.task, self.id, self.replaced_task_nesting)

    def on_accepted(self, pid: Any, time_accepted: float) -> None:
        """Tell who opens a message that has come before; what it holds may be the death of all this worker."""
        if _has_come_before(self._message):
            about_to_open(self._once, self._job_id, self.task.policy.lease)
        super().on_accepted(pid, time_accepted)

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        """Let go of a dead child's lease at once, so that the message that is requeued can begin."""
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
        lost = isinstance(error, WorkerLostError | SystemExit | KeyboardInterrupt) and not self._already_cancelled
        if lost and self._bury_or_release():
            return None
        # Billiard reports a hard time limit here first, and then to on_timeout.
        if isinstance(error, TimeLimitExceeded) and self._settle_timed_out(error):
            return None
        return super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)

    def _bury_or_release(self) -> bool:
        """Count the crash; whether the job is over, and its message with it."""
        lease = self._once.board.take_down(self._job_id)
        if lease is None:
            return self._tell_if_buried(died(self._once, self._job_id))
        try:
            self._once.ledger.settle(lease, Release(cause=Cause.CRASH))
        except OnceleryError as error:
            # The lease lapses by itself.
            _logger.warning("could not report the crash of job %s: %s", self._job_id, error)
        return False

    def _tell_if_buried(self, answer: ReceivedAnswer | None) -> bool:
        if not isinstance(answer, Buried | Finished) or answer.job.state is not State.BURIED:
            return False
        task_ready(self)
        fail_buried(self.task.backend, self.id, answer.job, request=self._context)
        self.acknowledge()
        return True

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """Settle the run that the hard time limit ends, before Celery tells of it."""
        if soft or not self._settle_timed_out(TimeLimitExceeded(timeout)):
            super().on_timeout(soft, timeout)

    def _settle_timed_out(self, error: TimeLimitExceeded) -> bool:
        """Settle the run; whether its job gets another attempt, so that Celery must not call it a failure."""
        lease = self._once.board.take_down(self._job_id)
        if lease is None:
            return self._goes_on
        settlement = decide(Raised(error, failure_of(error)), self.task.policy, lease, jitter=random.random())  # noqa: S311 - a delay, no secret
        answer: SettleAnswer = Absent()
        try:
            answer = self._once.ledger.settle(lease, settlement)
        except OnceleryError as unavailable:
            _logger.warning("could not settle job %s after its time limit: %s", lease.job_id, unavailable)
        if isinstance(answer, Absent):
            # Nobody knows of the job but its message, which must come again.
            self._goes_on = True
            task_ready(self)
            self.reject(requeue=True)
        elif isinstance(answer, Settled) and answer.state is State.QUEUED:
            self._goes_on = True
            self._retry(lease.job_id, error)
        return self._goes_on

    def _retry(self, job_id: str, error: TimeLimitExceeded) -> None:
        task_ready(self)
        try:
            if self.store_errors:
                self.task.backend.mark_as_retry(self.id, error, request=self._context)
            if job := self._once.ledger.get(job_id):
                wait = (job.not_before - datetime.now(UTC)) / timedelta(seconds=1) if job.not_before else 0.0
                publish_again(self._once, job, countdown=max(wait, 0.0))
        except Exception as away:  # noqa: BLE001 - of broker, backend or store: the job is queued, and the sweeper looks after it
            _logger.warning("could not go on with job %s after its time limit; the sweeper will: %s", job_id, away)
        self.acknowledge()

    def _announce_cancelled(self, *args: Any, **options: Any) -> None:
        """Let the keeper hand the job back when the child, which is told to end, is gone."""
        self._once.board.interrupted.add(self._job_id)
        super()._announce_cancelled(*args, **options)

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        if self._cancel_unless_copy(reason, terminated=terminated):
            super()._announce_revoked(reason, terminated, signum, expired)
            return
        task_ready(self)
        self.acknowledge()
        self._already_revoked = True

    def _cancel_unless_copy(self, reason: str, *, terminated: bool) -> bool:
        """Cancel the job; not so if this is a copy of a message whose job is under way or over."""
        ledger = self._once.ledger
        try:
            job = ledger.get(self._job_id)
            if terminated or (job and job.state is State.QUEUED):
                ledger.cancel(self._job_id, reason=reason, force=terminated)
                return True
        except OnceleryError as error:
            _logger.warning("could not cancel job %s, which is %s: %s", self._job_id, reason, error)
            return True
        return job is None or job.state is State.CANCELLED


def request_class_of(kind: type[Any]) -> type[Request]:
    """Give the class of a task's requests: ours, on top of the one that the app's own classes name."""
    from oncelery.celery.task import IdempotentTask  # noqa: PLC0415 - it names this module

    named = (vars(each)["Request"] for each in kind.__mro__ if each is not IdempotentTask and "Request" in vars(each))
    own: type[Request] = symbol_by_name(next(named, Request))
    if issubclass(own, GuardedRequest):
        return own
    return GuardedRequest if own is Request else type(own.__name__, (GuardedRequest, own), {})


def guarded_strategy(task: Any, app: Any, consumer: Any, **options: Any) -> Any:
    """Celery's strategy, but the ledger is told before a message that has come before is opened."""
    task.Request = request_class_of(type(task))
    receive = strategy.default(task, app, consumer, **options)

    def receive_guarded(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any, **more: Any) -> Any:
        if _has_come_before(message) and (
            _waits_for_its_turn(task, message, consumer) or _is_disposed_of(task, message)
        ):
            ack(_logger, consumer.connection_errors)
            return None
        return receive(message, body, ack, reject, callbacks, **more)

    return receive_guarded


def _has_come_before(message: Any) -> bool:
    again = (message.delivery_info or {}).get("redelivered") or message.headers.get(RESENT)
    return bool(again and message.headers.get("id"))


def _waits_for_its_turn(task: Any, message: Any, consumer: Any) -> bool:
    """Whether this is a copy of what waits here for a rate limit, where it would take the turn of another."""
    bucket = consumer.task_buckets.get(task.name)
    waiting = (request.id for request, _tokens in bucket.contents) if bucket else ()
    return bool(message.headers.get(RESENT)) and message.headers["id"] in waiting


def _is_disposed_of(task: Any, message: Any) -> bool:
    """Whether to acknowledge a message that has come before, unread; else it is opened, after the ledger is told.

    So if its job was buried as "never started", or discarded, or if somebody is opening another copy.
    """
    task_id = message.headers["id"]
    job_id = job_id_in(message.headers, task)

    def read() -> None:
        # What cannot be read is for Celery to refuse; what can, it need not read again.
        with suppress(Exception):
            _ = message.payload

    # Afterwards it waits, perhaps for long, until it is handed to a child: see on_accepted.
    match open_watched(task.oncelery, job_id, task.policy.lease, read):
        case Busy():
            # Somebody opens a copy of it. If that is the death of them, the sweeper publishes another.
            return True
        case Buried(letter) | Finished(letter) if letter.reason == Reason.NEVER_STARTED:
            fail_buried(task.backend, task_id, letter)
            return True
        case Cancelled(letter):
            return letter.reason == DISCARDED
    return False
