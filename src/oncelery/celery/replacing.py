"""What replaces a task may have that task in it, which then goes on: it is no duplicate of what it follows from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from oncelery.celery.message import job_id_of
from oncelery.celery.publishing import APART
from oncelery.celery.successors import parts_of

if TYPE_CHECKING:
    from celery.canvas import Signature

    from oncelery.celery.task import IdempotentTask
    from oncelery.run import Run


def set_apart(task: IdempotentTask, run: Run, sig: Signature[Any]) -> Signature[Any]:
    """Give each part its own key that would be answered with a job whose place it takes, again and again."""
    apart = {place: key for place, part in _leaves(sig) if (key := _key_apart(task, run, part, place))}
    if not apart:
        return sig
    signature: Signature[Any] = task.app.signature(_with_keys(sig, apart))
    return signature


def _leaves(part: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Give the tasks that a canvas is made of, each with its place in it."""
    inner = list(parts_of(part))
    if not inner:
        yield place, part
    for field, number, one in inner:
        yield from _leaves(one, f"{place}/{field}/{number}")


def _key_apart(task: IdempotentTask, run: Run, part: Mapping[str, Any], place: str) -> str:
    request = task.request
    found: Any = task.app.tasks.get(part["task"])
    nesting = request.replaced_task_nesting or 0
    if not getattr(found, "guarded", False):
        return ""
    if part["options"].get("idempotency_key") and found.policy.key is None:
        return ""  # it has its own key
    if not nesting and found is not task:
        return ""
    try:
        key = found.identity.of(part["args"], part["kwargs"], namespace=task.oncelery.namespace, task_id=request.id).key
    except (TypeError, ValueError):
        return ""  # what goes before it in a chain will give the rest of its arguments
    if key != run.key:
        last = task.oncelery.ledger.last(key) if nesting else None
        if last is None or last.id not in {job_id_of(found, request.id, each) for each in range(nesting + 1)}:
            return ""
    return f"{key}/{request.id}/{nesting + 1}{place}"


def _with_keys(part: Mapping[str, Any], apart: Mapping[str, str], place: str = "") -> dict[str, Any]:
    """Copy a canvas, which may be somebody's to use again, and write the keys into it."""
    copy = {**part, "options": dict(part["options"]), "kwargs": dict(part["kwargs"])}
    if place in apart:
        copy["options"][APART] = apart[place]
    for field, number, one in parts_of(part):
        inside = _with_keys(one, apart, f"{place}/{field}/{number}")
        several = copy["kwargs"][field]
        if isinstance(several, dict):
            copy["kwargs"][field] = inside
        else:
            copy["kwargs"][field] = [inside if at == number else other for at, other in enumerate(several)]
    return copy
