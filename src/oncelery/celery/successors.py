"""What Celery publishes for a task that has ended: its callbacks, and the next task of its chain."""

from __future__ import annotations

import logging
import traceback
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from celery._state import get_current_worker_task
from celery.app.task import Context
from celery.exceptions import Reject
from celery.utils.functional import maybe_list
from kombu.exceptions import OperationalError

from oncelery.run import run_under_way

if TYPE_CHECKING:
    from celery.result import AsyncResult

    from oncelery.celery.task import IdempotentTask

_logger = logging.getLogger("oncelery")


def is_successor(options: Mapping[str, Any]) -> bool:
    """Whether Celery makes this call for a task that has ended here, rather than that task itself."""
    parent: Any = get_current_worker_task() if options.get("parent_id") else None
    if parent is None or parent.request.id != options["parent_id"]:
        return False
    return not parent.request.is_eager and run_under_way() is None


def fail_successor(
    task: IdempotentTask, task_id: str, call: tuple[Any, Any], options: Mapping[str, Any], error: Exception
) -> AsyncResult[Any]:
    """Mark a successor that cannot be published as failed. Raised, the error would fail the task before it."""
    if isinstance(error, OperationalError) and getattr(get_current_worker_task(), "guarded", False):
        # Neither ledger nor broker took it. Delivered again, the task before it is replayed and publishes it then.
        raise Reject(error, requeue=True) from error
    _logger.error(
        "could not publish %s[%s], which follows %s: %s: %s. Its result is marked as failed. "
        "Fix the cause, then send it yourself",
        *(task.name, task_id, options["parent_id"], type(error).__name__, error),
    )
    request = Context(
        {"id": task_id, "task": task.name, "args": call[0], "kwargs": call[1], "delivery_info": {}},
        **{name: options.get(name) for name in ("root_id", "parent_id", "group_index", "chord", "chain")},
        group=options.get("group_id"),
        errbacks=maybe_list(options.get("link_error")) or None,
    )
    try:
        task.backend.mark_as_failure(
            task_id,
            error,
            traceback="".join(traceback.format_exception(error)),
            request=request,
            store_result=not options.get("ignore_result", task.ignore_result),
        )
    except Exception:  # of any backend: the task before it has ended all the same
        _logger.exception("could not mark %s as failed", task_id)
    return task.AsyncResult(task_id)


def name_links(request: Any, job_id: str) -> None:
    """Give callbacks ids that follow from their parent's: a parent that is replayed publishes the same ones again."""
    # An eager task is not delivered again, and its signatures are still the caller's.
    if request.is_eager or not (request.callbacks or request.errbacks):
        return
    for kind, signatures in (("link", request.callbacks), ("link_error", request.errbacks)):
        for place, signature in enumerate(signatures or ()):
            _name(signature, f"{job_id}/{kind}/{place}")


def _name(signature: dict[str, Any], name: str) -> None:
    signature["options"].setdefault("task_id", str(uuid.uuid5(uuid.NAMESPACE_OID, name)))
    for field, place, part in parts_of(signature):
        _name(part, f"{name}/{field}/{place}")


def parts_of(signature: Mapping[str, Any]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Return the signatures that a chain, group or chord is made of, each with its field and its place there."""
    parts = signature["kwargs"] if signature.get("subtask_type") in ("chain", "group", "chord") else {}
    for field in ("tasks", "header", "body"):
        inner = parts.get(field) or ()
        for place, part in enumerate([inner] if isinstance(inner, dict) else inner):
            yield field, place, part
