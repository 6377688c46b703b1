"""What cannot work as it is declared is refused, by the task's name, before anybody calls it."""

from __future__ import annotations

from collections.abc import Collection
from inspect import Parameter, iscoroutinefunction, signature
from typing import TYPE_CHECKING, Any

from celery import Task

from oncelery.errors import ConfigurationError
from oncelery.policy import Policy
from oncelery.spelling import SURELY, asked_back, nearest

if TYPE_CHECKING:
    from oncelery.celery.task import IdempotentTask

#: What `@only_one` leaves on a function that it guards, for whoever asks; decorators above it copy it.
ONLY_ONE = "oncelery_only_one"


_LEASE = "leases are renewed while a task runs, so leave it out; lease= says how soon a dead worker's job is run again"
_RETENTION = "write retention= for how long a completed job answers duplicates"

#: What other libraries and recipes call their options, and what to write instead.
ELSEWHERE = {
    "unique_on": "write key= for the arguments that count",
    "graceful": 'that is on_duplicate="join", the default',
    "raise_on_duplicate": 'write on_duplicate="reject"',
    "unlock_before_run": 'write on_duplicate="trail"',
    "lock_expiry": _LEASE,
    "timeout": _LEASE,
    "LOCK_TTL_SECONDS": _LEASE,
    "ttl": _RETENTION,
    "COMPLETION_TTL_SECONDS": _RETENTION,
}


def check(task: IdempotentTask) -> None:
    """Refuse a guarded task that cannot work.

    Raises:
        ConfigurationError: it names the task, and what to write instead.
    """
    _ = task.policy, task.identity
    checks = (_message_lost, _never_run, _option_beside, _received_otherwise, _called_otherwise)
    for problem in (look(task) for look in checks):
        if problem:
            raise ConfigurationError(f"task {task.name!r} {problem}")


def _message_lost(task: IdempotentTask) -> str:
    """Its message must outlive its run."""
    off = [option for option in ("acks_late", "reject_on_worker_lost") if not getattr(task, option)]
    return f"must have {' and '.join(off)}: remove what switches it off" if off else ""


def _never_run(task: IdempotentTask) -> str:
    if iscoroutinefunction(task.run):
        return "is a coroutine function, which Celery does not run: write a plain one, and in it asyncio.run(...)"
    if getattr(task.run, ONLY_ONE, False):
        one = "for one at a time, write @once.task(retention=0)"
        return f"is guarded and @only_one, so that jobs which find another running would complete without a run: {one}"
    return ""


def _option_beside(task: IdempotentTask) -> str:
    """Options of ours that Celery, or a class, has made attributes of would change nothing."""
    from oncelery.celery.task import IdempotentTask  # noqa: PLC0415 - it imports this module

    # Not on an app's own class, which may have attributes of these names.
    ours = [kind for kind in type(task).__mro__ if issubclass(kind, IdempotentTask) and kind is not IdempotentTask]
    beside = {name: value for kind in ours for name, value in vars(kind).items() if name in Policy.names()}
    names = sorted(name for name, value in beside.items() if not callable(value))
    old = [name for kind in ours for name in vars(kind) if name in ELSEWHERE]
    if old:
        return f"has {old[0]}, which means nothing here: {ELSEWHERE[old[0]]}"
    return f'has {names[0]}= beside its options: write once={{"{names[0]}": ...}}, or @once.task(...)' if names else ""


def _received_otherwise(task: IdempotentTask) -> str:
    """A strategy of its own, such as that of celery-batches, goes around ours, and hands out other arguments."""
    from oncelery.celery.task import IdempotentTask  # noqa: PLC0415 - it imports this module

    own = [kind for kind in type(task).__mro__ if "Strategy" in vars(kind) and kind not in (IdempotentTask, Task)]
    return (
        f"is based on {own[0].__name__}, whose own Strategy cannot be guarded: declare it with @app.task" if own else ""
    )


def _called_otherwise(task: IdempotentTask) -> str:
    """An `on_takeover` that cannot take the task's arguments: nobody would know before the first crash."""
    verify = task.policy.on_takeover
    if not callable(verify):
        return ""
    parameters = signature(task.run).parameters.values()
    by_name = {each.name: None for each in parameters if each.kind is Parameter.KEYWORD_ONLY}
    by_place = [
        None for each in parameters if each.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    ]
    try:
        signature(verify).bind(*by_place, **by_name)
    except TypeError as error:
        return f"has an on_takeover that does not take the task's own arguments: {error}"
    return ""


def refuse_in_call(task_name: str, options: Collection[str]) -> None:
    """Refuse an option of the task that is given to one call: Celery would pass it on to the broker, to no effect."""
    if wrong := sorted(Policy.names() & set(options)):
        raise ConfigurationError(
            f"task {task_name!r}: {wrong[0]}= is an option of the task, not of a call: write it in @once.task(...)"
        )


def refuse_lookalikes(options: Collection[str], base: type[Any]) -> None:
    """Refuse what looks like an option of ours: Celery would make an attribute of it, and nobody would know."""
    # Not `hasattr`: to look at a class's `app` binds it to one.
    known = dir(base)
    for name in options:
        if name in ELSEWHERE:
            raise ConfigurationError(f"no such option: {name}; {ELSEWHERE[name]}")
        if name not in known and (meant := nearest(name, Policy.names(), alike=SURELY)):
            raise ConfigurationError(
                f"no such option: {name}{asked_back(meant)}; an attribute of your own is set on the task itself"
            )
