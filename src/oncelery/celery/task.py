"""The task class: `apply_async` publishes through the ledger, `__call__` runs through it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, assert_never

from celery import Task
from celery.exceptions import Ignore, Reject
from celery.utils import uuid

from oncelery.answers import Buried, Busy, Cancelled, Finished, Later
from oncelery.celery.call import TaskCall, read_result
from oncelery.celery.publishing import Publication, callback_id, job_id, marked, publish_again, publish_once
from oncelery.errors import JobBuriedError, OutcomeUnknownError, StoreUnavailableError
from oncelery.execution import Ended, Superseded, execute
from oncelery.fingerprint import Identity
from oncelery.job import Job, Reason, State
from oncelery.policy import Policy
from oncelery.run import run_under_way
from oncelery.settlement import Raised, Release

if TYPE_CHECKING:
    from celery import Celery
    from celery.result import AsyncResult

    from oncelery.celery.extension import Oncelery

#: The message header that counts how often a duplicate was put aside.
PARKED = "oncelery_parked"


class IdempotentTask(Task):  # type: ignore[type-arg] # generic only in the stubs
    """A task whose jobs take effect once. Use it as `base=`, or through `once.task(...)`."""

    abstract = True
    Request = "oncelery.celery.request:GuardedRequest"
    Strategy = "oncelery.celery.request:guarded_strategy"

    # The message must outlive the run, and come back when the run's process dies.
    acks_late = True
    reject_on_worker_lost = True

    #: The options of this task: a Policy, or a dict of what Policy.of takes.
    once: Policy | Mapping[str, Any] | None = None

    @classmethod
    def on_bound(cls, app: Celery) -> None:
        """See to it that the app has its extension, whether or not somebody has made one."""
        from oncelery.celery.extension import Oncelery  # noqa: PLC0415 - it imports this module

        Oncelery.of(app)

    @property
    def oncelery(self) -> Oncelery:
        """The extension of the app that this task belongs to."""
        once: Oncelery = self.app.oncelery
        return once

    @cached_property
    def policy(self) -> Policy:
        """What this task asks of the ledger."""
        return self.once if isinstance(self.once, Policy) else self.oncelery.policy(**(self.once or {}))

    @cached_property
    def identity(self) -> Identity:
        """What makes two calls of this task the same work."""
        # Celery wraps `run` for autoretry and pydantic; the signature that callers use is the innermost one.
        return Identity(self.name, self.run, key=self.policy.key, ignore=self.policy.ignore, scope=self.policy.scope)

    # Publishing

    def apply_async(  # noqa: D102, PLR0917 - Celery's own
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        idempotency_key: str | None = None,
        **options: Any,
    ) -> AsyncResult[Any]:
        options |= {"producer": producer, "link": link, "link_error": link_error, "shadow": shadow}
        args, kwargs = self._plain(args, kwargs, options)
        if task_id is None and options.get("parent_id") and not options.get("group_id"):
            task_id = callback_id(self, options["parent_id"], args, kwargs)
        publication = Publication(self, args, kwargs, task_id or uuid(), options, idempotency_key)
        if self.app.conf.task_always_eager:
            return self.send(publication)
        if options.get("retries"):
            return self._send_retry(publication)
        if self.typing:
            self.__header__(*args, **kwargs)
        return publish_once(publication)

    def send(self, publication: Publication) -> AsyncResult[Any]:
        """Publish as Celery does."""
        call = publication
        return super().apply_async(call.args, dict(call.kwargs), task_id=call.task_id, **call.options)

    def _plain(self, args: Any, kwargs: Any, options: Mapping[str, Any]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        if self._dump_pydantic_arguments is not None and options.get("serializer") != "pickle":
            args, kwargs = self._dump_pydantic_arguments(args, kwargs)
        return tuple(args or ()), kwargs or {}

    def _send_retry(self, publication: Publication) -> AsyncResult[Any]:
        """Let the same job go on later: its message is sent once its run has let go of it.

        Sent before, it could meet the run that sends it, be taken for a duplicate and be thrown away.
        """
        run = run_under_way()
        if run is None or run.job_id != job_id(
            self, publication.task_id, publication.options.get("replaced_task_nesting")
        ):
            return self.send(publication)
        run.next_body = publication.body()
        run.afterwards = lambda: self.send(publication)
        return marked(self.AsyncResult(publication.task_id))

    # Running

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task under its job; a duplicate returns the recorded result instead."""
        if self.request.called_directly:
            return super().__call__(*args, **kwargs)
        call = TaskCall(self, args, kwargs)
        run = run_under_way()
        if run and run.job_id == call.submission.id:
            # The task calls itself: part of the same run.
            return super().__call__(*args, **kwargs)
        try:
            ended = execute(self.oncelery.ledger, self.oncelery.heartbeat, call)
        except StoreUnavailableError as error:
            # Not acknowledged: nobody knows whether the outcome is recorded.
            raise Reject(error, requeue=True) from error
        match ended:
            case Ended():
                return self._conclude(call, ended)
            case Finished(job) | Buried(job):
                return self._replay(job)
            case Cancelled(job):
                return self._revoked(job.reason)
            case Busy(job) if job.id != call.submission.id:
                return self._park()
            case Busy() | Later() | Superseded():
                # The record owns the job: its holder settles it, or the sweeper publishes it again.
                raise Ignore
            case _:
                assert_never(ended)

    def _conclude(self, call: TaskCall, ended: Ended) -> Any:
        once = self.oncelery
        if ended.answer.next_id and (trailing := once.ledger.get(ended.answer.next_id)):
            publish_again(once, trailing)
        if ended.answer.state is State.CANCELLED:
            self._revoked("cancelled")
        match ended.outcome, ended.settlement:
            case Raised(error), Release(delay=delay):
                raise self.retry(exc=error, countdown=delay.total_seconds(), max_retries=sys.maxsize, throw=False)
            case Raised(error), _:
                raise error
        if ended.run.afterwards:
            ended.run.afterwards()
        if call.control:
            raise call.control
        return call.value

    def _replay(self, job: Job) -> Any:
        if job.state is State.COMPLETED:
            return read_result(self, job)
        remedy = "verify the effect, then revive or discard it"
        kind = OutcomeUnknownError if job.reason == Reason.OUTCOME_UNKNOWN else JobBuriedError
        cause = f": {job.error.type}: {job.error.message}" if job.error else ""
        raise kind(f"job {job.id} is a dead letter ({job.reason}){cause}; {remedy}", key=job.key, job_id=job.id)

    def _park(self) -> NoReturn:
        """Put aside a duplicate with an id of its own, until the job that does its work has a result."""
        waits = self.request.headers.get(PARKED, 0) + 1 if self.request.headers else 1
        signature = self.signature_from_request(countdown=min(2**waits, self.policy.lease.total_seconds()))
        signature.options["headers"] = {**(signature.options.get("headers") or {}), PARKED: waits}
        super().apply_async(signature.args, signature.kwargs, **signature.options)
        raise Ignore

    def _revoked(self, reason: str) -> NoReturn:
        self.backend.mark_as_revoked(self.request.id, reason, request=self.request, store_result=not self.ignore_result)
        raise Ignore
