"""One delivery of a guarded task, as the execution sees it."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from billiard import common as billiard_common
from celery.backends.base import DisabledBackend
from celery.exceptions import Ignore, Reject, Retry, WorkerShutdown, WorkerTerminate
from celery.states import STARTED
from kombu.exceptions import EncodeError

from oncelery.answers import Busy, Finished
from oncelery.celery.message import (
    ALIAS,
    DIGEST,
    FOLLOWS,
    JOB,
    KEY,
    NOTIFY,
    SCOPE,
    Message,
    follows_of,
    job_id_of,
    read_written,
    writable,
    write,
)
from oncelery.celery.publishing import retention_of
from oncelery.celery.routing import queue_label
from oncelery.celery.time_limits import exposed, held_back
from oncelery.celery.times import delay_until
from oncelery.codec import escaped
from oncelery.errors import (
    ConfigurationError,
    JobCancelledError,
    OutcomeUnknownError,
    StoreUnavailableError,
    TooLargeError,
)
from oncelery.execution import Execution, execute
from oncelery.fingerprint import TASK_ID
from oncelery.job import Failure, Job, Lease, Submission
from oncelery.policy import Backoff
from oncelery.run import Run, insist
from oncelery.settlement import Interrupted, Outcome, Postponed, Raised, Returned
from oncelery.sql.transaction import EffectCommitted

if TYPE_CHECKING:
    from oncelery.celery.task import IdempotentTask

_logger = logging.getLogger("oncelery")

#: The result of a run that has no value to keep: the task raised Ignore, was replaced, or its value is omitted.
NO_VALUE = b""

#: How much of the reason for an omitted result is kept, in characters.
OMITTED_LENGTH = 500

#: The result of a task that returns nothing, in JSON.
NOTHING = b"null"

#: An eager task is tried again at once: whoever called it waits.
AT_ONCE = Backoff(first=timedelta(0), most=timedelta(0))

#: How much of an error's message and of its traceback is kept, in characters each.
FAILURE_LENGTH = 50_000


class TaskCall:
    """What is to be run, and what came of it in Celery's terms."""

    def __init__(self, task: IdempotentTask, request: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.task = task
        self.request = request
        self.eager = bool(request.is_eager)
        self.policy = replace(task.policy, backoff=AT_ONCE) if self.eager else task.policy
        self.worker = f"{request.hostname}:{os.getpid()}"
        self.submission = self._submission(args, kwargs)
        #: What the task returned.
        self.value: Any = None
        #: What the task raised to steer Celery: Retry, Ignore or Reject.
        self.control: BaseException | None = None
        #: What ended the run from outside: its process is to end, whatever becomes of the job.
        self.interruption: BaseException | None = None
        self._args = args
        self._kwargs = kwargs

    def _submission(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Submission:
        task, policy, request = self.task, self.policy, self.request
        headers = request.headers or {}
        key, own_id = headers.get(KEY), headers.get(JOB)
        if key:
            alias, digest, follows = headers.get(ALIAS, ""), headers.get(DIGEST, ""), headers.get(FOLLOWS, "")
            scope, notify = headers.get(SCOPE, ""), headers.get(NOTIFY, "")
        else:
            # Sent by code that does not know the ledger.
            found = task.identity.of(args, kwargs, namespace=task.oncelery.namespace, task_id=own_id or request.id)
            key, alias, digest, scope, notify = found.key, "", "", found.scope, policy.notify
            root = request.root_id if request.root_id != request.id else None
            follows = follows_of(root, request.parent_id, request.group)
        #: Whether another call may have this task id: the publisher could not look.
        self.unsure = bool(follows) and not own_id and (JOB in headers or KEY not in headers)
        #: A URL to call when the job has ended.
        self.notify = "" if self.eager else notify
        delivery = request.delivery_info or {}
        return Submission(
            id=own_id or job_id_of(task, request.id, request.replaced_task_nesting),
            key=key,
            alias=alias,
            digest=digest,
            follows=follows,
            scope=scope,
            task=task.name,
            queue=queue_label(
                delivery.get("routing_key") or task.app.amqp.default_queue.name, delivery.get("priority")
            ),
            caller=request.origin or "",
            retention=retention_of(task, named=bool(digest and not alias)),
            history=policy.kept_for,
            durability=policy.durability,
        )

    def execute(self) -> Execution:
        """Run the job of this delivery, under its own job id if another call has the task id."""
        ledger, heartbeat = self.task.oncelery.ledger, self.task.oncelery.heartbeat
        known = insist(ledger.get, self.submission.id) if self.unsure else None
        if known and self.submission.is_another_call(known):
            self.take_own_id()
        ended = execute(ledger, heartbeat, self)
        if isinstance(ended, Finished | Busy) and self.submission.is_another_call(ended.job):
            self.take_own_id()
            ended = execute(ledger, heartbeat, self)
        return ended

    def take_own_id(self) -> None:
        """Take another job id, because another call has the task id; write it to the headers, for the next run."""
        request, follows = self.request, self.submission.follows
        own_id = job_id_of(self.task, request.id, request.replaced_task_nesting, follows)
        headers = {**(request.headers or {}), JOB: own_id}
        if KEY in headers and self.task.policy.key is TASK_ID and not self.submission.key_digest:
            namespace, scope = self.task.oncelery.namespace, self.submission.scope
            found = self.task.identity.of(self._args, self._kwargs, namespace=namespace, task_id=own_id, scope=scope)
            headers[KEY] = found.key
        request.headers = headers
        self.submission = self._submission(self._args, self._kwargs)

    def body(self) -> bytes:
        """Write the message again: the ledger never saw it, or has lost it."""
        # By this request: the heartbeat, which may ask too, is in another thread.
        options = dict(self.task.signature_from_request(self.request).options)
        options.pop("redelivered", None)
        if options["task_id"] == self.submission.id:
            del options["task_id"]
        options["serializer"] = writable(self.task.app, self.task.serializer, (self._args, self._kwargs))
        return Message(self.task.name, self._args, self._kwargs, options).pack(self.task.app)

    def holding(self, lease: Lease) -> AbstractContextManager[None]:
        """Show the lease to the worker's main process."""
        return self.task.oncelery.board.show(lease)

    def hold_instead(self, lease: Lease) -> None:
        """Show the worker's main process the lease under which the job was recorded again."""
        self.task.oncelery.board.show_instead(lease)

    def run(self, run: Run, body: bytes | None) -> Outcome:
        """Run the task; whatever it raises is part of the outcome."""
        run.undisturbed = held_back
        if self.task.tells_of_starts and not self.eager and self.task.keeps_result:
            about = {"pid": os.getpid(), "hostname": self.request.hostname}
            # A backend that is away is no reason not to run.
            with suppress(Exception):
                self.task.backend.store_result(self.request.id, about, STARTED, request=self.request)
        headers = self.request.headers
        if headers and "traceparent" in headers:
            with traced(headers):
                outcome = self._outcome(run, body)
        else:
            outcome = self._outcome(run, body)
        if run.effect or run.in_doubt:
            return self._effected(run, outcome)
        if run.postponed is None or not isinstance(outcome, Returned | Raised):
            return outcome
        # Asked for a retry and then ended in another way: Celery sees that, but the job goes on.
        if isinstance(outcome, Raised):
            self.control = outcome.error
        return run.postponed

    def _outcome(self, run: Run, body: bytes | None) -> Outcome:
        try:
            self._amend(body)
            self.value = self._verified(run)
            return self._returned()
        except Retry as retry:
            if isinstance(retry.exc, OutcomeUnknownError):
                # Celery's autoretry knows no better: it would do again what may have been done.
                run.postponed = run.afterwards = None
                return Raised(retry.exc, failure_of(retry.exc))
            self.control = retry
            delay = timedelta(0) if self.eager else delay_until(retry.when)
            body = run.postponed.body if run.postponed else None
            return Postponed(delay, failure_of(retry.exc) if retry.exc else None, body)
        except Ignore as ignore:
            self.control = ignore
            return Returned(NO_VALUE, replaced_by=run.replacement)
        except Reject as reject:
            self.control = reject
            self.policy = replace(self.policy, bury_on=(Reject,))
            return Postponed(timedelta(0)) if reject.requeue else Raised(reject, failure_of(reject))
        except JobCancelledError as cancelled:
            # Releasing a job whose cancellation is asked for ends it, with the reason that was given.
            return Postponed(timedelta(0)) if run.cancelled else Raised(cancelled, failure_of(cancelled))
        except StoreUnavailableError as away:
            self.policy = replace(self.policy, retry_on=(*self.policy.retry_on, StoreUnavailableError))
            return Raised(away, failure_of(away))
        except (WorkerShutdown, WorkerTerminate) as stop:
            self.control = self.interruption = stop
            return Interrupted()
        except BaseException as error:  # noqa: BLE001 - what becomes of it is decided, and then it is raised again
            # The only sign that a signal ended the child.
            if isinstance(error, SystemExit) and billiard_common._should_have_exited[0]:  # noqa: SLF001
                return self._ended_from_outside(error)
            return Raised(error, failure_of(error))

    def _ended_from_outside(self, signal: SystemExit) -> Outcome:
        if self.task.oncelery.board.is_taken_down():
            # After a hard time limit the parent settles: handed back, the job would run again whatever its policy says.
            raise signal
        self.control = self.interruption = signal
        return Interrupted()

    def _returned(self) -> Returned:
        """Write what the task returned. Its work is done, whether or not the ledger can keep that."""
        try:
            return Returned(self._written(self.value))
        except Exception as error:  # noqa: BLE001 - of whatever serialiser or backend: the effect must not be had twice
            kind = "" if isinstance(error, TooLargeError) else f"{type(error).__name__}: "
            omitted = escaped(f"{kind}{_text(error)}")[:OMITTED_LENGTH]
            if self.task.keeps_result:
                _logger.warning("the result of job %s is not kept: %s", self.submission.id, omitted)
            return Returned(NO_VALUE, omitted=omitted)

    def _effected(self, run: Run, outcome: Outcome) -> Outcome:
        """Complete a job whose transaction is committed, whatever the task did after it; else run it again to see."""
        if run.effect is None:
            return outcome if isinstance(outcome, Interrupted) else self._in_doubt(outcome)
        recorded = run.effect.result
        if isinstance(outcome, Raised) and not isinstance(outcome.error, EffectCommitted):
            self.control = outcome.error
        elif isinstance(outcome, Returned) and self._is_lost(outcome.result, recorded):
            self.control = ConfigurationError(
                f"task {self.task.name!r} returned a value, but run.transaction(...) had completed its job already: "
                "write `tx.result = ...` inside the block, and return nothing or the same"
            )
        self.value = read_written(self.task.app, recorded)
        return Returned(recorded)

    def _in_doubt(self, outcome: Outcome) -> Raised:
        error = outcome.error if isinstance(outcome, Raised) else None
        doubt = error if isinstance(error, StoreUnavailableError) else StoreUnavailableError()
        # Also after the last attempt: what may be done must not be buried as failed before somebody has looked.
        self.policy = replace(
            self.policy,
            retry_on=(*self.policy.retry_on, StoreUnavailableError),
            max_attempts=self.policy.max_attempts + 1,
        )
        return Raised(doubt, failure_of(doubt))

    def _is_lost(self, returned: bytes, recorded: bytes) -> bool:
        """Whether duplicates would be answered with something else than what the task returned."""
        return self.value is not None and self.task.keeps_result and returned != recorded

    def _amend(self, body: bytes | None) -> None:
        if body is not None:
            # The payload was changed after this message was sent.
            message = Message.unpack(self.task.app, body)
            self._args, self._kwargs = message.args, message.kwargs
            self.request.update(args=self._args, kwargs=self._kwargs)

    def _verified(self, run: Run) -> Any:
        if run.recovered and callable(self.policy.on_takeover):
            found = exposed(self.policy.on_takeover, *self._args, **self._kwargs)
            if found is not None and found is not False:
                return found
        return exposed(self.task.granted_run, *self._args, **self._kwargs)

    def written(self, value: Any) -> bytes:
        """Write the result of a transaction, which is rolled back if that cannot be kept."""
        try:
            return self._written(value)
        except (EncodeError, TooLargeError):
            if self.task.keeps_result and not isinstance(self.task.backend, DisabledBackend):
                raise
            # Nobody asks for it.
            return self._written(None)

    def _written(self, value: Any) -> bytes:
        """Write a value as Celery would, with the serialiser of results; raise if it cannot be kept."""
        serializer = self.task.oncelery.result_serializer
        if value is None and serializer == "json":
            return NOTHING
        result = write(self.task.backend.prepare_value(value), serializer)
        self.task.oncelery.ledger.limit_result(result)
        return result


def traced(headers: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Let the trace go on in which the call was made, if OpenTelemetry is installed."""
    try:
        from oncelery.telemetry.opentelemetry import continued  # noqa: PLC0415 - an extra, and only for who uses it
    except ImportError:
        return nullcontext()
    return continued(headers)


def read_result(task: IdempotentTask, job: Job) -> Any:
    """Read a recorded result, or raise Ignore as the run did that recorded none."""
    if not job.result:
        raise Ignore
    return read_written(task.app, job.result)


def failure_of(error: BaseException) -> Failure:
    """Write an exception down, as much of it as is worth keeping."""
    return Failure(
        type=f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins."),
        message=_text(error)[:FAILURE_LENGTH],
        traceback="".join(traceback.format_exception(error))[-FAILURE_LENGTH:],
    )


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as worse:  # noqa: BLE001 - an error that cannot tell of itself must still end its job
        return f"(cannot be printed: {type(worse).__name__})"
