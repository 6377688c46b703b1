"""The worker's main process learns of the ends that a child cannot report: killed, timed out, revoked."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionWithTraceback
from celery.exceptions import InvalidTaskError, TimeLimitExceeded, WorkerLostError
from celery.utils.imports import symbol_by_name
from celery.worker import state as worker_state
from celery.worker import strategy
from celery.worker.request import Request
from celery.worker.state import task_ready
from kombu.exceptions import ContentDisallowed, DecodeError

from oncelery.answers import Absent, Buried, Busy, Cancelled, Finished, ReceivedAnswer, SettleAnswer, Settled
from oncelery.celery import forks
from oncelery.celery.call import failure_of
from oncelery.celery.message import JOB, RESENT, job_id_in, job_id_of
from oncelery.celery.opening import about_to_open, died, fail_buried, open_watched
from oncelery.celery.publishing import publish_again
from oncelery.job import DISCARDED, Cause, Job, Lease, Reason, State
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
        """Report that a message that has come before is being opened: its payload may kill this worker."""
        if _has_come_before(self._message):
            background = self._once.background
            if background.opens_elsewhere:
                background.ask(self._report_opening)
            else:
                # In this process, and next: the thread that runs the task may wait for the ledger, as the task will.
                background.attempt(partial(about_to_open, self._once, self._job_id, self.task.policy.lease))
        super().on_accepted(pid, time_accepted)

    def _report_opening(self) -> None:
        # Not late: a job that waits for its next run by then is not being opened.
        if self in worker_state.active_requests:
            about_to_open(self._once, self._job_id, self.task.policy.lease)

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        """Let go of a dead child's lease at once, so that the message that is requeued after it can begin."""
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
        fail = partial(super().on_failure, exc_info, send_failed_event=send_failed_event, return_ok=return_ok)
        if isinstance(error, WorkerLostError | SystemExit | KeyboardInterrupt) and not self._already_cancelled:
            return self._report_crash(fail)
        # Billiard reports a hard time limit here first, and then to on_timeout.
        if isinstance(error, TimeLimitExceeded):
            return self._settle_timed_out(error, fail)
        return fail()

    def _report_crash(self, fail: Callable[[], object]) -> None:
        """Count the crash, and then let the message go back to its queue, unless the job is over."""
        ask, lease = self._once.background.ask, self._once.board.take_down(self._job_id)
        if lease is None:
            ask(partial(died, self._once, self._job_id), lambda answer: self._end_if_buried(answer) or fail())
        else:
            # If the ledger does not answer, the lease lapses by itself.
            ask(partial(self._once.ledger.settle, lease, Release(cause=Cause.CRASH)), lambda _: fail())

    def _end_if_buried(self, answer: ReceivedAnswer | None) -> bool:
        """End the message of a job that is buried; return whether it is."""
        if not isinstance(answer, Buried | Finished) or answer.job.state is not State.BURIED:
            return False
        task_ready(self)
        fail_buried(self.task.backend, self.id, answer.job, request=self._context)
        self.acknowledge()
        return True

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """Settle the run that the hard time limit ends, before Celery reports it."""
        fail = partial(super().on_timeout, soft, timeout)
        if soft:
            fail()
        else:
            self._settle_timed_out(TimeLimitExceeded(timeout), fail)

    def _settle_timed_out(self, error: TimeLimitExceeded, fail: Callable[[], object]) -> None:
        """Settle the run; if its job gets another attempt, Celery must not call it a failure."""
        lease = self._once.board.take_down(self._job_id)

        def go_on(answer: Job | SettleAnswer | None) -> None:
            if self._goes_on:
                # Celery reports a time limit twice, and the first report has settled it.
                return
            is_known = answer is not None and not isinstance(answer, Absent)
            self._goes_on = not is_known or (isinstance(answer, Job | Settled) and answer.state.live)
            if not self._goes_on:
                fail()
                return
            task_ready(self)
            # Where no record has the job's next run, its message must come again.
            self.acknowledge() if is_known else self.reject(requeue=True)

        # Without a lease the child has not begun: it waits for the ledger.
        settle = (
            partial(self._settle_and_retry, lease, error) if lease else partial(self._once.ledger.get, self._job_id)
        )
        self._once.background.ask(settle, go_on)

    def _settle_and_retry(self, lease: Lease, error: TimeLimitExceeded) -> SettleAnswer:
        settlement = decide(Raised(error, failure_of(error)), self.task.policy, lease, jitter=random.random())  # noqa: S311 - a delay, no secret
        answer = self._once.ledger.settle(lease, settlement)
        if not isinstance(answer, Settled) or answer.state is not State.QUEUED:
            return answer
        try:
            job = self._once.ledger.get(lease.job_id)
            with forks.no_fork, self._once.broker.bounded():
                if self.store_errors:
                    self.task.backend.mark_as_retry(self.id, error, request=self._context)
                if job:
                    wait = (job.not_before - datetime.now(UTC)) / timedelta(seconds=1) if job.not_before else 0.0
                    publish_again(self._once, job, countdown=max(wait, 0.0))
        except Exception as away:  # noqa: BLE001 - of broker, backend or store: the job is queued, and the sweeper looks after it
            _logger.warning(
                "could not go on with job %s after its time limit; the sweeper will: %s", lease.job_id, away
            )
        return answer

    def _announce_cancelled(self, *args: Any, **options: Any) -> None:
        """Let the keeper hand the job back when the child, which is told to end, is gone."""
        self._once.board.interrupted.add(self._job_id)
        super()._announce_cancelled(*args, **options)

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        announce = partial(super()._announce_revoked, reason, terminated, signum, expired)

        def go_on(is_copy: bool | None) -> None:
            if not is_copy:
                announce()
                return
            task_ready(self)
            self.acknowledge()

        # At once: what asks whether it is revoked must not ask twice.
        self._already_revoked = True
        self._once.background.ask(partial(self._cancel_unless_copy, reason, terminated=terminated), go_on)

    def _cancel_unless_copy(self, reason: str, *, terminated: bool) -> bool:
        """Cancel the job. If the job already runs or has ended, this message is a copy: return True instead."""
        ledger = self._once.ledger
        job = ledger.get(self._job_id)
        if terminated or (job and job.state is State.QUEUED):
            ledger.cancel(self._job_id, reason=reason, force=terminated)
            return False
        return job is not None and job.state is not State.CANCELLED


def request_class_of(kind: type[Any]) -> type[Request]:
    """Return the class of a task's requests: ours, on top of the app's own if it names one."""
    from oncelery.celery.task import IdempotentTask  # noqa: PLC0415 - it names this module

    named = (vars(each)["Request"] for each in kind.__mro__ if each is not IdempotentTask and "Request" in vars(each))
    own: type[Request] = symbol_by_name(next(named, Request))
    if issubclass(own, GuardedRequest):
        return own
    return GuardedRequest if own is Request else type(own.__name__, (GuardedRequest, own), {})


def guarded_strategy(task: Any, app: Any, consumer: Any, **options: Any) -> Any:
    """Celery's strategy, except that the ledger records the opening of a message that has come before."""
    task.Request = request_class_of(type(task))
    receive = strategy.default(task, app, consumer, **options)

    def receive_guarded(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any, **more: Any) -> Any:
        if not _has_come_before(message):
            return receive(message, body, ack, reject, callbacks, **more)
        if _waits_for_its_turn(task, message, consumer):
            return ack(_logger, consumer.connection_errors)
        connection = consumer.connection

        def go_on(is_disposed_of: bool | None) -> None:
            if consumer.connection is not connection:
                # The broker delivers it again.
                return
            if is_disposed_of:
                ack(_logger, consumer.connection_errors)
                return
            try:
                receive(message, body, ack, reject, callbacks, **more)
            except (InvalidTaskError, ContentDisallowed) as error:
                consumer.on_invalid_task(body, message, error)
            except DecodeError as error:
                consumer.on_decode_error(message, error)

        return task.oncelery.background.ask(partial(_is_disposed_of, task, message), go_on)

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
    """Whether to acknowledge a message that has come before, unread; else the ledger has recorded its opening.

    So if its job was buried as "never started", or discarded, or if another process is opening a copy.
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
            with forks.no_fork:
                fail_buried(task.backend, task_id, letter)
            return True
        case Cancelled(letter):
            return letter.reason == DISCARDED
    return False
