"""The worker's main process learns of the ends that a child cannot report: killed, timed out, revoked."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionWithTraceback
from celery.exceptions import TimeLimitExceeded, WorkerLostError
from celery.worker import strategy
from celery.worker.request import Request
from celery.worker.state import task_ready

from oncelery.answers import Buried, Finished, Settled
from oncelery.celery.call import failure_of
from oncelery.celery.publishing import HEADER, job_id, publish_again, publish_or_leave
from oncelery.errors import JobBuriedError, OnceleryError
from oncelery.job import Cause, Job, State
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
        return job_id(self.task, self.id, self.replaced_task_nesting)

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        """Let go of a dead child's lease at once, so that the message that is requeued can begin."""
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
        lost = isinstance(error, WorkerLostError | SystemExit | KeyboardInterrupt) and not self._already_cancelled
        if lost and self._bury_or_release():
            return None
        # Billiard reports a hard time limit here first, and then to on_timeout.
        if isinstance(error, TimeLimitExceeded) and self._goes_on_after(error):
            return None
        return super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)

    def _bury_or_release(self) -> bool:
        """Count the crash; whether the job is over, and its message with it."""
        board = self._once.board
        try:
            lease = board.take_down(self._job_id)
            if lease:
                self._once.ledger.settle(lease, Release(cause=Cause.CRASH))
                return False
            answer = self._once.ledger.received(self._job_id, limit=self._once.settings.max_received)
        except OnceleryError as error:
            # The lease lapses by itself.
            _logger.warning("could not report the crash of job %s: %s", self._job_id, error)
            return False
        if isinstance(answer, Buried | Finished) and answer.job.state is State.BURIED:
            task_ready(self)
            end_buried(self.task, self.id, answer.job, self.acknowledge, request=self._context)
            return True
        board.counted.add(self._job_id)
        return False

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """Settle the run that the hard time limit ends, before Celery tells of it."""
        if soft or not self._goes_on_after(TimeLimitExceeded(timeout)):
            super().on_timeout(soft, timeout)

    def _goes_on_after(self, error: TimeLimitExceeded) -> bool:
        """Settle the run; whether its job gets another attempt, so that Celery must not call it a failure."""
        lease = self._once.board.take_down(self._job_id)
        if lease is None:
            return self._goes_on
        settlement = decide(Raised(error, failure_of(error)), self.task.policy, lease, jitter=random.random())  # noqa: S311 - a delay, no secret
        try:
            answer = self._once.ledger.settle(lease, settlement)
        except OnceleryError as unavailable:
            _logger.warning("could not settle job %s after its time limit: %s", lease.job_id, unavailable)
            return False
        if isinstance(answer, Settled) and answer.state is State.QUEUED:
            self._goes_on = True
            self._retry(lease.job_id, error)
        return self._goes_on

    def _retry(self, job_id: str, error: TimeLimitExceeded) -> None:
        job = self._once.ledger.get(job_id)
        task_ready(self)
        self.task.backend.mark_as_retry(self.id, error, request=self._context, store_result=self.store_errors)
        if job:
            wait = (job.not_before - datetime.now(UTC)) / timedelta(seconds=1) if job.not_before else 0.0
            publish_or_leave(job.id, lambda: publish_again(self._once, job, countdown=max(wait, 0.0)))
        self.acknowledge()

    def _announce_cancelled(self, *args: Any, **options: Any) -> None:
        """Let the keeper hand the job back when the child, which is told to end, is gone."""
        self._once.board.interrupted.add(self._job_id)
        super()._announce_cancelled(*args, **options)

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        if self._is_revoked(reason, terminated=terminated):
            super()._announce_revoked(reason, terminated, signum, expired)
            return
        task_ready(self)
        self.acknowledge()
        self._already_revoked = True

    def _is_revoked(self, reason: str, *, terminated: bool) -> bool:
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


def guarded_strategy(task: Any, app: Any, consumer: Any, **options: Any) -> Any:
    """Celery's strategy, but a message that has come before is counted before anything decodes it.

    A payload that kills the worker while it is read would otherwise do so for ever.
    """
    receive = strategy.default(task, app, consumer, **options)
    once: Oncelery = task.oncelery

    def receive_guarded(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any, **more: Any) -> Any:
        task_id = message.headers.get("id")
        again = (message.delivery_info or {}).get("redelivered") or (message.headers.get(HEADER) or {}).get("resent")
        if again and task_id:
            buried = _count(once, job_id(task, task_id, message.headers.get("replaced_task_nesting")))
            if buried:
                end_buried(task, task_id, buried, lambda: ack(_logger, consumer.connection_errors))
                return None
        return receive(message, body, ack, reject, callbacks, **more)

    return receive_guarded


def _count(once: Oncelery, job_id: str) -> Job | None:
    """Count a delivery; the job, if that was one too many."""
    if job_id in once.board.counted:
        # The death that brought it back is counted.
        once.board.counted.remove(job_id)
        return None
    try:
        answer = once.ledger.received(job_id, limit=once.settings.max_received)
    except OnceleryError as error:
        _logger.warning("could not count the delivery of job %s: %s", job_id, error)
        return None
    return answer.job if isinstance(answer, Buried) else None


def end_buried(task: Any, task_id: str, job: Job, acknowledge: Callable[[], None], request: Any = None) -> None:
    """Tell Celery that a job failed for good, and let its message go.

    Without a request, which takes reading the message, neither a chord nor errbacks hear of it.
    """
    error = JobBuriedError(f"job {job.id} is a dead letter ({job.reason})", key=job.key, job_id=job.id)
    task.backend.mark_as_failure(task_id, error, request=request)
    acknowledge()
