"""What Celery is told of a job that has ended, by a message that comes after that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import Task
from celery.exceptions import Ignore
from celery.states import SUCCESS

from oncelery.celery.call import read_result
from oncelery.celery.message import ASKED, REPLACED
from oncelery.celery.publishing import name_links
from oncelery.errors import JobBuriedError, OutcomeUnknownError
from oncelery.job import Job, Reason, State

if TYPE_CHECKING:
    from oncelery.celery.task import IdempotentTask


def is_told_elsewhere(task: IdempotentTask, job: Job) -> bool:
    """Whether this message need not tell of its own job's end: another one has, or will.

    To tell means to let the chain go on, call what is linked, and store the result. Where that is guarded too, it does
    no harm to do it twice; a plain task would run twice.
    """
    request = task.request
    if request.is_eager or (request.headers or {}).get(ASKED):
        return False
    if task.oncelery.marks_redeliveries and not (request.delivery_info or {}).get("redelivered"):
        # This is a copy of the one that was run. If whoever ran that died before it told, the broker delivers it again.
        return True
    if job.state is not State.COMPLETED or request.chord or not task.keeps_result:
        # What is done after the result is stored, an errback or a chord's count, may not be done yet.
        return False
    try:
        return bool(task.backend.get_state(request.id) == SUCCESS)
    except Exception:  # noqa: BLE001 - of whatever kind: there is none, or it is away
        return False


def replay(task: IdempotentTask, job: Job, own_id: str) -> Any:
    """Return or raise what the job has ended with, for Celery's tracer to go on as it did or would have done then."""
    name_links(task.request)
    if job.state is State.COMPLETED:
        value = read_result(task, job)
        replaced_by = value.get(REPLACED) if isinstance(value, dict) else None
        if replaced_by is None:
            return value
        if job.id == own_id:
            # It goes on under this very id.
            raise Ignore
        return Task.replace(task, task.app.signature(replaced_by))
    if isinstance(stored := _stored_error(task), Exception) and job.id == own_id:
        raise stored
    remedy = "verify the effect, then revive or discard it"
    kind = OutcomeUnknownError if job.reason == Reason.OUTCOME_UNKNOWN else JobBuriedError
    cause = f": {job.error.type}: {job.error.message}" if job.error else ""
    raise kind(f"job {job.id} is a dead letter ({job.reason}){cause}; {remedy}", key=job.key, job_id=job.id)


def _stored_error(task: IdempotentTask) -> object:
    """Give what the backend has of a failure: who waits for it has perhaps seen that, and is to see the same."""
    try:
        return task.backend.get_task_meta(task.request.id).get("result") if task.keeps_result else None
    except Exception:  # noqa: BLE001 - of whatever kind: there is none, or it is away
        return None
