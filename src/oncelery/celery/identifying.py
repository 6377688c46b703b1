"""What a call of a guarded task is known by, from its arguments as people write them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from oncelery.errors import ConfigurationError
from oncelery.fingerprint import TASK_ID, Fingerprint

if TYPE_CHECKING:
    from oncelery.celery.task import IdempotentTask


def identify(task: IdempotentTask, args: tuple[Any, ...], kwargs: Mapping[str, Any], **known: Any) -> Fingerprint:
    """Return what a call is known by; `known` is what `Identity.of` takes beside the arguments.

    Wrong arguments are refused in Celery's words. With `typing=False` they are not: the run fails, as in Celery.
    """
    known["namespace"] = task.oncelery.namespace
    try:
        return task.identity.of(args, kwargs, **known)
    except TypeError:
        if task.identity.fits(args, kwargs):
            raise
        if task.typing:
            task.__header__(*args, **kwargs)
            raise
        return task.identity.of(args, kwargs, **known, unbound=True)


def key_of(task: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Return the key of a call.

    Raises:
        ConfigurationError: the task is not guarded, or its calls are known by their ids alone.
    """
    if not getattr(task, "guarded", False):
        raise ConfigurationError(f"{task!r} is not a guarded task: pass the task itself, as @once.task returned it")
    if task.policy.key is TASK_ID:
        raise ConfigurationError(
            f"task {task.name!r} has key=TASK_ID, so that equal calls are not the same: write once.jobs.get(task_id)"
        )
    return identify(task, *task.plain(args, kwargs, {})).key


def function_of(task: Any) -> Any:
    """Return the function that a task was made of, the same in each app that has the task; None for a class."""
    found = getattr(task, "__wrapped__", None)
    return None if found is None else inspect.unwrap(getattr(found, "__func__", found))
