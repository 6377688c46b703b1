"""`@only_one`: a function that runs in one place at a time; a later instance is skipped."""

from __future__ import annotations

import inspect
import logging
import os
import secrets
import socket
from collections.abc import Callable
from contextvars import ContextVar
from datetime import timedelta
from functools import partial, wraps
from time import monotonic
from typing import Any, ParamSpec, Protocol, TypeVar, overload
from uuid import uuid4

from celery import Celery, Task, current_app
from celery.local import PromiseProxy, Proxy

from oncelery.answers import Absent, Declined, Granted, Settled
from oncelery.celery.call import failure_of
from oncelery.celery.declaring import ONLY_ONE, check
from oncelery.celery.extension import Oncelery
from oncelery.celery.task import IdempotentTask
from oncelery.errors import ConfigurationError, JobCancelledError, OnceleryError
from oncelery.fingerprint import fingerprint
from oncelery.job import Lease, Submission
from oncelery.ledger import Ledger
from oncelery.policy import Policy
from oncelery.run import Run, run_under_way, running
from oncelery.settlement import Cancel, Complete

P = ParamSpec("P")
R = TypeVar("R")
AnyTask = TypeVar("AnyTask", bound=Task)  # type: ignore[type-arg] # generic only in the stubs

Key = str | Callable[..., object]

#: How long the record of an instance that has ended can be seen among the jobs.
HISTORY = timedelta(hours=1)

#: How much of an error's text the record of an instance that raised it keeps.
REASON_LENGTH = 255

_logger = logging.getLogger("oncelery")

#: The keys that the code running here holds already: a function that calls itself is one instance.
_held: ContextVar[frozenset[str]] = ContextVar("oncelery_only_one", default=frozenset())


class Decorator(Protocol):
    """What `only_one` with arguments answers."""

    @overload
    def __call__(self, task: AnyTask, /) -> AnyTask: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R | None]: ...


@overload
def only_one(task: AnyTask, /) -> AnyTask: ...
@overload
def only_one(function: Callable[P, R], /) -> Callable[P, R | None]: ...
@overload
def only_one(
    name: str | None = None, /, *, key: Key | None = None, timeout: timedelta | float | None = None
) -> Decorator: ...
def only_one(decorated: Any = None, /, *, key: Key | None = None, timeout: timedelta | float | None = None) -> Any:
    """Skip a call, which then returns None, while another one runs anywhere; what a call returns is kept.

    Works on any function that is no coroutine, below `@app.task` or above it, with or without arguments.

    Args:
        decorated: The function or task, where the decorator is used bare; or the key, if it is a text.
        key: What there may be one of: a text, or a callable that is given the arguments and returns what tells the
            function's instances apart, as in `key=lambda tenant: tenant`. By default the function itself.
        timeout: After this long the call no longer keeps others out, though it goes on: once its lease has lapsed,
            another may begin. Without it a call keeps others out for as long as it lives.

    The lock is in the ledger of the current Celery app (in threads of your own, `app.set_default()` makes it so). It
    is the caller's alone, is renewed while it runs, and lapses after `lease` seconds if its process dies.
    """
    if isinstance(decorated, str):
        key, decorated = decorated, None
    limit = _limit(timeout)

    def decorate(function: Any) -> Any:
        if type(function) is Proxy:
            raise ConfigurationError("@only_one cannot see through @shared_task: write it below, next to the function")
        if type(function) is PromiseProxy:
            # The task is made when its app is ready.
            function.__then__(_guard_task, function, key, limit)
            return function
        if isinstance(function, Task):
            return _guard_task(function, key, limit)
        return _guard(function, key, limit, current_app._get_current_object)  # noqa: SLF001 - Celery's way

    return decorate if decorated is None else decorate(decorated)


def _limit(timeout: timedelta | float | None) -> timedelta | None:
    limit = timedelta(seconds=timeout) if isinstance(timeout, int | float) else timeout
    if limit is not None and limit <= timedelta(0):
        raise ConfigurationError(f"timeout must be more than nothing, not {timeout!r}")
    return limit


def _guard_task(task: Any, key: Key | None, limit: timedelta | None) -> Any:
    # As Celery itself does for autoretry: what the worker runs is the task's `run`.
    task.run = _guard(task.run, key, limit, lambda: task.app)
    if isinstance(task, IdempotentTask):
        check(task)
    return task


def _guard(function: Callable[P, R], key: Key | None, limit: timedelta | None, app: Callable[[], Celery]) -> Any:
    ends_later = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if any(is_one(function) for is_one in ends_later):
        raise ConfigurationError(f"@only_one cannot guard {function!r}: it returns before it has run")
    name = f"{function.__module__}.{function.__qualname__}"

    @wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R | None:
        once = Oncelery.of(app())
        identity = _identity(once, name, key, args, kwargs)
        if identity in _held.get():
            return function(*args, **kwargs)
        policy = _policy(once, limit)
        submission = Submission(
            id=str(uuid4()),
            key=identity,
            task=name,
            body=b"",
            caller=once.caller,
            retention=policy.retention,
            history=policy.kept_for,
        )
        begin = partial(_begin, submission, policy, secrets.token_hex(16))
        answer = begin(once.ledger)
        if not isinstance(answer, Granted):
            _logger.debug("skipped %s: an instance is running", name)
            return None
        run = Instance(once.ledger, answer.lease, partial(begin, restores=True), at_most=limit or timedelta.max)
        token = _held.set(_held.get() | {identity})
        try:
            return _run(once, run, lambda: function(*args, **kwargs))
        finally:
            _held.reset(token)

    # Celery checks arguments against the outermost signature.
    guarded.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    setattr(guarded, ONLY_ONE, True)
    return guarded


def _begin(
    submission: Submission, policy: Policy, holder: str, ledger: Ledger, *, restores: bool = False
) -> Granted | Declined | Absent:
    worker = f"{socket.gethostname()}:{os.getpid()}"
    return ledger.begin(submission, policy, worker=worker, holder=holder, restores=restores)


class Instance(Run):
    """One call: a run that keeps its lock no longer than it may, however often it asks."""

    def __init__(
        self,
        ledger: Ledger,
        lease: Lease,
        begin: Callable[[Ledger], Granted | Declined | Absent],
        *,
        at_most: timedelta,
    ) -> None:
        super().__init__(ledger, lease, recovered=False, steps={}, begin=begin)
        self.at_most = at_most
        self._end = monotonic() + at_most.total_seconds()

    def raise_if_cancelled(self) -> None:
        """Raise if the job is cancelled, or is no longer ours; past its time, ask without renewing."""
        if monotonic() < self._end:
            return super().raise_if_cancelled()
        self._heed(self.ask(lambda ledger, lease: ledger.record(lease)))
        if self._cancelled:
            raise JobCancelledError(key=self.key, job_id=self.job_id)
        return None

    def _restore(self, ledger: Ledger) -> Declined | Absent | None:
        # Past its time it no longer keeps others out.
        return super()._restore(ledger) if monotonic() < self._end else Absent()


def _run(once: Oncelery, run: Instance, call: Callable[[], R]) -> R:
    try:
        # Steps and keys inside a guarded task stay those of its own job.
        with once.heartbeat.renewing(run, at_most=run.at_most), running(run_under_way() or run):
            value = call()
    except BaseException as error:  # also what ends the process: the lock must not wait for its lease
        _let_go(run, Cancel(reason=f"{type(error).__name__}: {failure_of(error).message}"[:REASON_LENGTH]))
        raise
    _let_go(run, Complete(result=b""))
    return value


def _let_go(run: Instance, settlement: Cancel | Complete) -> None:
    try:
        answer = run.settle(settlement)
    except OnceleryError as error:
        _logger.warning("could not free the lock of %s; it lapses by itself: %s", run.lease.task, error)
    else:
        if not isinstance(answer, Settled):
            run.lose()


def _policy(once: Oncelery, limit: timedelta | None) -> Policy:
    lease = once.policy().lease
    if limit is not None:
        # A lease that outlasts the timeout would keep others out for longer than was asked for.
        lease = max(min(lease, limit), timedelta(seconds=1))
    return Policy(retention=timedelta(0), history=HISTORY, lease=lease)


def _identity(once: Oncelery, name: str, key: Key | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    identity: dict[str, object] = {"namespace": once.namespace, "name": key if isinstance(key, str) else name}
    if callable(key):
        # A bound task is its own first argument, which callers do not write.
        identity["key"] = key(*(args[1:] if args and isinstance(args[0], Task) else args), **kwargs)
    return fingerprint("only_one", identity)
