"""The task class: `apply_async` publishes through the ledger, `__call__` runs through it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, assert_never

from celery import Task
from celery.exceptions import Ignore, Reject, Retry
from celery.utils import uuid
from celery.utils.imports import symbol_by_name
from kombu.exceptions import OperationalError

from oncelery.answers import Buried, Busy, Cancelled, Finished, Later
from oncelery.celery.call import TaskCall
from oncelery.celery.declaring import check, refuse_in_call
from oncelery.celery.gate import GATE, Gate
from oncelery.celery.message import JOB, PARKED, writable, write
from oncelery.celery.publishing import (
    APART,
    Publication,
    marked,
    publish_again,
    publish_once,
    publish_or_leave,
)
from oncelery.celery.replacing import set_apart
from oncelery.celery.replaying import is_told_elsewhere, replay
from oncelery.celery.successors import fail_successor, is_successor, name_links
from oncelery.celery.time_limits import held_back
from oncelery.celery.times import delay_of, whole
from oncelery.celery.within import publish_within
from oncelery.errors import (
    ConfigurationError,
    DuplicateTaskError,
    JobBuriedError,
    StoreUnavailableError,
    TooLargeError,
)
from oncelery.execution import Committed, Ended, Execution, Superseded
from oncelery.fingerprint import Identity
from oncelery.job import Job, State
from oncelery.policy import Policy
from oncelery.run import run_under_way
from oncelery.settlement import Postponed, Raised, Release

if TYPE_CHECKING:
    from celery import Celery
    from celery.canvas import Signature
    from celery.result import AsyncResult

    from oncelery.celery.extension import Oncelery

#: Where a call is made in no transaction; None would be one that is not there.
NOWHERE: Any = object()

#: How long a message is put aside for the first time, in seconds; each time twice as long as before.
FIRST_WAIT = 0.25


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

    def __init_subclass__(cls) -> None:
        """Put a task that is made of a function on top of the app's own class, too, such as Celery's for Django."""
        # Only those that Celery makes of functions are born with their app.
        app = vars(cls).get("app")
        if app and cls.__bases__ == (IdempotentTask,):
            own: type[Any] = symbol_by_name(app.task_cls)
            cls.__bases__ = (own,) if issubclass(own, IdempotentTask) else (IdempotentTask, own)
        # The app's own class, by now, which may take note of its subclasses.
        super().__init_subclass__()

    @classmethod
    def on_bound(cls, app: Celery) -> None:
        """See to it that the app has its extension, and refuse a task that cannot be guarded as it is declared."""
        from oncelery.celery.extension import Oncelery  # noqa: PLC0415 - it imports this module

        Oncelery.of(app)
        task = app._tasks.get(cls.name)  # noqa: SLF001 - `app.tasks` would finalize the app
        # Before the app is finalized its configuration may still change.
        if app.finalized and isinstance(task, IdempotentTask) and task.guarded:
            check(task)
            if task.track_started:
                # Celery would tell so before the ledger is asked, also of a copy, over what is stored already.
                task.tells_of_starts, task.track_started = True, False

    def forget_defaults(self) -> None:
        """Read the app's defaults anew: it has got another extension."""
        for name in ("oncelery", "policy", "identity", "sent_unguarded"):
            self.__dict__.pop(name, None)

    @cached_property
    def oncelery(self) -> Oncelery:
        """The extension of the app that this task belongs to."""
        once: Oncelery = self.app.oncelery
        return once

    @cached_property
    def guarded(self) -> bool:
        """Whether it is one of the user's: where the app's own class is ours, Celery's built-in tasks have it too."""
        return not self.name.startswith("celery.")

    @cached_property
    def policy(self) -> Policy:
        """What this task asks of the ledger."""
        try:
            return self.once if isinstance(self.once, Policy) else self.oncelery.policy(**(self.once or {}))
        except ConfigurationError as error:
            raise ConfigurationError(f"task {self.name!r}: {error}") from error

    @cached_property
    def identity(self) -> Identity:
        """What makes two calls of this task the same work."""
        # Celery wraps `run` for autoretry and pydantic; the signature that callers use is the innermost one.
        return Identity(self.name, self.run, key=self.policy.key, ignore=self.policy.ignore, scope=self.policy.scope)

    @property
    def keeps_result(self) -> bool:
        """Whether the call that is running has asked for its result to be stored."""
        said = vars(self.request).get("ignore_result")
        return not (self.ignore_result if said is None else said)

    @cached_property
    def sent_unguarded(self) -> bool:
        """Whether its calls are published as those of plain tasks: Celery's own, and those of another app."""
        return not self.guarded or self.oncelery.merely_knows(self)

    # Looked up each time: a test may patch Celery's class.

    @property
    def sent_by_celery(self) -> bool:
        """Whether the app's own task class leaves `apply_async` alone.

        One that does not may do anything in it, and is to do so for new jobs only: the ledger must answer before.
        """
        return getattr(super().apply_async, "__func__", None) is Task.apply_async

    @property
    def called_by_celery(self) -> bool:
        """Whether no code of the app's own surrounds a run."""
        return getattr(super().__call__, "__func__", None) is Task.__call__

    #: Whether it is told that a run has started; set in place of Celery's `track_started`.
    tells_of_starts = False

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
        within: Any = NOWHERE,
        scope: str = "",
        notify: str = "",
        caller: str = "",
        on_duplicate: str = "",
        **options: Any,
    ) -> AsyncResult[Any]:
        options |= {"producer": producer, "link": link, "link_error": link_error, "shadow": shadow}
        if self.sent_unguarded:
            return super().apply_async(args, kwargs, task_id=task_id, **options)
        ours = {"idempotency_key": idempotency_key, "scope": scope, "notify": notify, "caller": caller}
        ours["on_duplicate"] = on_duplicate
        promised, task_id = task_id is not None, str(task_id) if task_id else uuid()
        # The task's own options too, for they are part of the message that is kept.
        options = {name: own for name, own in self._get_exec_options().items() if own is not None} | options
        try:
            publication = self._publication(args, kwargs, task_id=task_id, options=options, promised=promised, **ours)
            if options.get("retries"):
                return self._send_retry(publication)
            return publish_once(publication) if within is NOWHERE else publish_within(publication, within)
        except Exception as error:
            if is_successor(options):
                return fail_successor(self, task_id, (args, kwargs), options, error)
            raise

    def _publication(
        self, args: Any, kwargs: Any, *, options: dict[str, Any], notify: str, on_duplicate: str, **ours: Any
    ) -> Publication:
        refuse_in_call(self.name, options)
        args, kwargs = self.plain(args, kwargs, options)
        return Publication(
            task=self,
            args=args,
            kwargs=kwargs,
            options=options,
            apart=options.pop(APART, ""),
            notify=self._notify(notify),
            chosen=Policy.of(on_duplicate=on_duplicate).on_duplicate if on_duplicate else self.policy.on_duplicate,
            # A retry goes on with the job of the message that it is a retry of.
            own_id=(options.get("headers") or {}).get(JOB, "") if options.get("retries") else "",
            **ours,
        )

    def _notify(self, asked: str) -> str:
        url = asked or self.policy.notify
        if url:
            self.oncelery.callbacks.check(url)
        return url

    def hand_to_celery(self, publication: Publication, gate: Gate | None = None) -> AsyncResult[Any]:
        """Publish as Celery does, no further than to the gate if that says so."""
        call, options = publication, publication.options
        if gate:
            options = {**options, **call.destination, GATE: gate}
        return super().apply_async(call.args, dict(call.kwargs), task_id=call.task_id, **options)

    def apply(self, *args: Any, **options: Any) -> Any:  # noqa: D102 - Celery's own
        gate = options.pop(GATE, None)
        if gate:
            gate.go_on()
        return super().apply(*args, **options)

    def plain(self, args: Any, kwargs: Any, options: Mapping[str, Any]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return the arguments of a call as they are sent."""
        # Celery 5.6 and older leave it to the caller to dump models.
        dump = getattr(self, "_dump_pydantic_arguments", None)
        if dump is not None and options.get("serializer") != "pickle":
            args, kwargs = dump(args, kwargs)
        return tuple(args or ()), kwargs or {}

    def _send_retry(self, publication: Publication) -> AsyncResult[Any]:
        """Let the same job go on later: its message is sent once its run has let go of it.

        Sent before, it could meet the run that sends it, be taken for a duplicate and be thrown away.
        """
        run = run_under_way()
        if run is None or run.job_id != publication.job_id:
            return self.hand_to_celery(publication)
        run.postponed = Postponed(delay_of(publication.options), body=publication.body())
        run.afterwards = lambda: self.hand_to_celery(publication)
        return marked(self.AsyncResult(publication.task_id))

    def signature_from_request(
        self, request: Any = None, args: Any = None, kwargs: Any = None, queue: str | None = None, **options: Any
    ) -> Any:
        """Make the next message of a call: what the last one hid from monitors and logs, it hides as well."""
        again: Any = super().signature_from_request(request, args, kwargs, queue, **options)
        shown = vars(request or self.request)
        if args is None and kwargs is None:
            again.options |= {name: shown[name] for name in ("argsrepr", "kwargsrepr") if shown.get(name)}
        else:
            again.options |= self.oncelery.reading.reprs(self.name, again.args, again.kwargs)
        return again

    def replace(self, sig: Signature[Any]) -> Any:
        """Let another task do the work under the same id; duplicates of this one are answered by that one, too."""
        run = run_under_way()
        if run and not self.request.called_directly:
            sig = set_apart(self, run, sig)
            run.replacement = write(sig, self.serializer)
            if len(run.replacement) > (most := self.oncelery.ledger.limits.result):
                # Before it is published: a run that cannot be recorded is run again.
                what = f"what replaces the task has {len(run.replacement):,} bytes, the limit is {most:,}"
                run.replacement = None
                raise TooLargeError(f"{what}: pass references, or publish it and return")
        return super().replace(sig)

    # Running

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task under its job; a duplicate returns the recorded result instead."""
        request = self.request
        if request.called_directly or not self.guarded:
            return super().__call__(*args, **kwargs)
        call = TaskCall(self, request, args, kwargs)
        run = run_under_way()
        if run and run.job_id == call.submission.id:
            # The task calls itself: part of the same run.
            return super().__call__(*args, **kwargs)
        ended = None
        try:
            with held_back(message="" if call.eager else request.id):
                ended = call.execute()
                return self._answer(call, ended)
        except StoreUnavailableError as error:
            if isinstance(ended, Ended) and isinstance(ended.outcome, Raised) and ended.outcome.error is error:
                raise  # the task's own, and its job is settled
            if request.is_eager:
                raise  # no message comes again of such a call: its caller is to know
            # Not acknowledged: only the ledger knows what is recorded, and answers whoever gets the message next.
            raise Reject(error, requeue=True) from error

    @property
    def granted_run(self) -> Callable[..., Any]:
        """What runs the task when it is ours to run: by way of the app's own class where that has a way, as Flask's."""
        # Celery's own takes it for a call from code, with a request of its own.
        return self.run if self.called_by_celery else super().__call__

    def _answer(self, call: TaskCall, ended: Execution) -> Any:
        match ended:
            case Ended():
                return self._conclude(call, ended)
            case Finished() | Buried() | Cancelled() | Busy() if call.interruption:
                # After a run, whose job another one has by now.
                raise call.interruption
            case Finished(job) if job.id == call.submission.id and is_told_elsewhere(self, job):
                raise Ignore
            case Finished(job) | Buried(job) | Committed(job):
                # Also of one that had ended before: whoever ended it may have died before it told.
                self._call_back(call, job.id, job.state, job.fence)
                return replay(self, job, call.submission.id)
            case Cancelled(job):
                self._call_back(call, job.id, job.state, job.fence)
                return self._revoked(job.reason)
            case Busy(job) if job.id != call.submission.id:
                return self._wait_for(job)
            case Later(job) if job.not_before and not job.behind:
                return self._park((job.not_before - datetime.now(UTC)) / timedelta(seconds=1))
            case Busy() | Later() | Superseded():
                # The record owns the job: its holder settles it, or the sweeper publishes it again.
                raise call.interruption or Ignore
            case _:
                assert_never(ended)

    def _conclude(self, call: TaskCall, ended: Ended) -> Any:
        once, run = self.oncelery, ended.run
        self._call_back(call, run.job_id, ended.answer.state, run.fence)
        if ended.answer.next_id and (trailing := once.ledger.get(ended.answer.next_id)):
            publish_or_leave(trailing.id, lambda: publish_again(once, trailing))
        if ended.answer.state is State.CANCELLED:
            job = once.ledger.get(run.job_id)
            self._revoked(job.reason if job else "cancelled", then=call.interruption)
        if run.afterwards:
            publish_or_leave(run.job_id, run.afterwards)
        if call.control:
            raise call.control
        match ended.outcome, ended.settlement:
            case Raised(error), Release(delay=delay):
                raise self._again(run.job_id, error, delay)
            case Raised(error), _:
                name_links(call.request, run.job_id)
                if isinstance(error, SystemExit | KeyboardInterrupt):
                    # It would end a process in which others run, and the job is settled.
                    raise JobBuriedError(f"the task tried to end its process: {error!r}", job_id=run.job_id) from error
                raise error
        if ended.answer.state is State.COMPLETED:
            name_links(call.request, run.job_id)
        return call.value

    def _call_back(self, call: TaskCall, job_id: str, state: State, fence: int) -> None:
        # After it is settled: who is told may submit the same work again, at once.
        if call.notify and not state.live:
            self.oncelery.callbacks.tell(job_id, state, fence, call.notify)

    def _again(self, job_id: str, error: BaseException, delay: timedelta) -> Retry:
        """Publish the next attempt that the policy grants, past Celery's own count of retries."""
        countdown = whole(self.app, delay.total_seconds())
        again = self.signature_from_request(retries=self.request.retries + 1, countdown=countdown)
        if not self.request.is_eager:
            publish_or_leave(
                job_id, lambda: super(IdempotentTask, self).apply_async(again.args, again.kwargs, **again.options)
            )
        return Retry(exc=error, when=countdown, is_eager=self.request.is_eager, sig=again)

    def _wait_for(self, job: Job) -> NoReturn:
        """Put aside a duplicate with an id of its own, until the job that does its work has a result."""
        if self.request.is_eager:
            # Whoever runs that job may be waiting for this call.
            raise DuplicateTaskError(key=job.key, job_id=job.id, state=job.state)
        self._park()

    def _park(self, at_least: float = 0.0) -> NoReturn:
        """Put this message aside for a while."""
        waits = (self.request.headers or {}).get(PARKED, 0)
        # A job may be waited for so often that the power is past all floats.
        countdown = max(at_least, min(FIRST_WAIT * 2 ** min(waits, 20), self.policy.lease.total_seconds()))
        signature = self.signature_from_request(countdown=whole(self.app, countdown))
        signature.options["headers"] = {**(signature.options.get("headers") or {}), PARKED: waits + 1}
        # Of the message's own nothing is known here.
        signature.options["serializer"] = writable(self.app, self.serializer, (signature.args, signature.kwargs))
        try:
            super().apply_async(signature.args, signature.kwargs, **signature.options)
        except OperationalError as error:
            raise Reject(error, requeue=True) from error
        raise Ignore

    def _revoked(self, reason: str, *, then: BaseException | None = None) -> NoReturn:
        self.backend.mark_as_revoked(self.request.id, reason, request=self.request, store_result=self.keeps_result)
        raise then or Ignore
