"""One delivery of a guarded task, as the execution sees it."""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from billiard import common as billiard_common
from celery.exceptions import Ignore, Reject, Retry, WorkerShutdown, WorkerTerminate
from kombu.exceptions import EncodeError

from oncelery.celery.message import Message, read, write
from oncelery.celery.publishing import HEADER, delay_until, job_id
from oncelery.job import Failure, Job, Submission
from oncelery.run import Run
from oncelery.settlement import Interrupted, Outcome, Postponed, Raised, Returned

if TYPE_CHECKING:
    from oncelery.celery.task import IdempotentTask

#: The result of a run that ended without a value: the task raised Ignore, or was replaced by another.
NO_VALUE = b""


class TaskCall:
    """What is to be run, and what came of it in Celery's terms."""

    def __init__(self, task: IdempotentTask, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.task = task
        self.policy = task.policy
        self.worker = f"{task.request.hostname}:{os.getpid()}"
        self.submission = self._submission(args, kwargs)
        #: What the task returned.
        self.value: Any = None
        #: What the task raised to steer Celery: Retry, Ignore or Reject.
        self.control: BaseException | None = None
        self._args = args
        self._kwargs = kwargs

    def _submission(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Submission:
        task, policy, request = self.task, self.task.policy, self.task.request
        header = request.get(HEADER)
        if header is None:
            # Sent by code that does not know the ledger.
            found = task.identity.of(args, kwargs, namespace=task.oncelery.namespace, task_id=request.id)
            header = {"key": found.key, "scope": found.scope, "digest": ""}
        delivery = request.delivery_info or {}
        return Submission(
            id=job_id(task, request.id, request.replaced_task_nesting),
            key=header["key"],
            digest=header["digest"],
            scope=header["scope"],
            task=task.name,
            queue=delivery.get("routing_key") or task.app.conf.task_default_queue,
            caller=request.origin or "",
            retention=policy.retention,
            history=policy.history,
            durability=policy.durability,
        )

    def body(self) -> bytes:
        """Write the message anew: the ledger never saw it."""
        options = self.task.request.as_execution_options()
        options.pop("task_id")
        return Message(self.task.name, self._args, self._kwargs, options).pack(self.task.app)

    def run(self, run: Run, body: bytes | None) -> Outcome:
        """Run the task; whatever it raises is part of the outcome."""
        if body is not None:
            # The payload was changed after this message was sent.
            message = Message.unpack(self.task.app, body)
            self._args, self._kwargs = message.args, message.kwargs
            self.task.request.update(args=self._args, kwargs=self._kwargs)
        try:
            with self.task.oncelery.board.show(run.lease):
                self.value = self._verified(run)
            return Returned(self._written(self.value))
        except Retry as retry:
            self.control = retry
            return Postponed(delay_until(retry.when), failure_of(retry.exc) if retry.exc else None, run.next_body)
        except Ignore as ignore:
            self.control = ignore
            return Returned(NO_VALUE)
        except Reject as reject:
            self.control = reject
            return Postponed(timedelta(0)) if reject.requeue else Raised(reject, failure_of(reject))
        except Exception as error:  # noqa: BLE001 - what becomes of it is decided, and then it is raised again
            return Raised(error, failure_of(error))
        except (WorkerShutdown, WorkerTerminate) as stop:
            self.control = stop
            return Interrupted()
        except SystemExit as leaving:
            if not billiard_common._should_have_exited[0]:  # noqa: SLF001 - the only sign that a signal ended the child
                return Raised(leaving, failure_of(leaving))
            self.control = leaving
            return Interrupted()

    def _verified(self, run: Run) -> Any:
        if run.recovered and callable(self.policy.on_takeover):
            found = self.policy.on_takeover(*self._args, **self._kwargs)
            if found is not None:
                return found
        return self.task.run(*self._args, **self._kwargs)

    def _written(self, value: Any) -> bytes:
        serializer = self.task.app.conf.result_serializer
        try:
            return write(value, serializer)
        except EncodeError:
            if not (self.task.request.ignore_result or self.task.ignore_result):
                raise
            # Celery would not have written it either.
            return write(None, serializer)


def read_result(task: IdempotentTask, job: Job) -> Any:
    """Read a recorded result, or raise Ignore as the run did that recorded none."""
    if not job.result:
        raise Ignore
    conf = task.app.conf
    return read(job.result, accept=conf.result_accept_content or conf.accept_content)


def failure_of(error: BaseException) -> Failure:
    """Write an exception down."""
    return Failure(
        type=f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins."),
        message=str(error),
        traceback="".join(traceback.format_exception(error)),
    )
