"""What Celery is told of a job that has ended, by a message that comes after that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from celery import Task
from celery.exceptions import Ignore
from celery.states import FAILURE, SUCCESS

from oncelery.celery.call import failure_of, read_result
from oncelery.celery.message import ASKED, read
from oncelery.celery.reading import kept_of, warn_omitted
from oncelery.celery.successors import name_links, parts_of
from oncelery.errors import JobBuriedError, OutcomeUnknownError, ResultOmittedError
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
    return bool(kept_of(task, request.id).get("status") == SUCCESS)


def replay(task: IdempotentTask, job: Job, own_id: str) -> Any:
    """Return or raise what the job has ended with, for Celery's tracer to go on as it did or would have done then."""
    name_links(task.request, own_id)
    if job.state is State.COMPLETED:
        if job.replaced_by is None:
            return _omitted(task, job) if job.result_omitted else read_result(task, job)
        if job.id == own_id:
            # It goes on under this very id.
            raise Ignore
        return Task.replace(task, task.app.signature(read(job.replaced_by, accept=task.app.conf.accept_content)))
    if job.id == own_id and job.error:
        kept = kept_of(task, task.request.id)
        if kept.get("status") == FAILURE and failure_of(kept["result"]).type == job.error.type:
            # Whoever waits for it may have seen it, and is to see the same.
            raise kept["result"]
    remedy = "verify the effect, then revive or discard it"
    kind = OutcomeUnknownError if job.reason == Reason.OUTCOME_UNKNOWN else JobBuriedError
    cause = f": {job.error.type}: {job.error.message}" if job.error else ""
    raise kind(f"job {job.id} is a dead letter ({job.reason}){cause}; {remedy}", key=job.key, job_id=job.id)


def _omitted(task: IdempotentTask, job: Job) -> Any:
    """Return or raise what the result backend has of a job whose result the ledger could not keep; else None.

    Raises:
        ResultOmittedError: nobody has it, and the next task would be called with it.
    """
    kept = kept_of(task, job.id)
    if kept.get("status") == SUCCESS:
        return kept["result"]
    if kept.get("status") == FAILURE:
        raise kept["result"]
    request = task.request
    following = [*(request.chain or ())[-1:], *(request.callbacks or ()), *filter(None, [request.chord])]
    if any(map(_takes_result, following)):
        what = f"job {job.id} is done, but its result was not kept: {job.result_omitted}"
        raise ResultOmittedError(what, key=job.key, job_id=job.id, state=job.state)
    warn_omitted(job)
    return None


def _takes_result(signature: Mapping[str, Any]) -> bool:
    """Whether a signature is called with the result of what goes before it."""
    parts = [part for field, _, part in parts_of(signature) if field != "body"]
    if signature.get("subtask_type") == "chain":
        parts = parts[:1]
    return any(map(_takes_result, parts)) if parts else not signature.get("immutable")
