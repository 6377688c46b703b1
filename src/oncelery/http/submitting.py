"""From a request to a job: `submit(task, …)`, for our routes and yours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from celery.result import EagerResult
from fastapi import Request
from fastapi.responses import Response
from kombu.exceptions import OperationalError

from oncelery.errors import OnceleryError
from oncelery.failpoints import failpoint
from oncelery.http.problems import BROKER_UNAVAILABLE, ProblemError, location_of, problem_of
from oncelery.http.service import show_job
from oncelery.http.threads import Peers
from oncelery.job import Job, State

if TYPE_CHECKING:
    from oncelery.celery.task import IdempotentTask

try:
    from oncelery.telemetry.opentelemetry import carried
except ImportError:  # pragma: no cover - the extra is not installed

    def carried(headers: Mapping[str, str]) -> dict[str, str]:  # noqa: ARG001
        """Carry no trace."""
        return {}


#: The header of an answer that is not the first one.
REPLAYED: Final = "Idempotent-Replayed"


async def submit(
    task: IdempotentTask,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    idempotency_key: str | None = None,
    scope: str = "",
    caller: str = "",
    request: Request | None = None,
    jobs_url: str = "/jobs",
    **options: Any,  # noqa: ANN401 - Celery's
) -> Response:
    """Submit a job, and answer as `POST /jobs/{task}` does: 202 with the job, or 200 if it was done before.

    Args:
        task: A guarded task.
        args: Of the call, by place.
        kwargs: Of the call, by name.
        idempotency_key: What the caller calls this request: `Depends(idempotency_key)`. The task's `key=` still holds.
        scope: The tenant for whom the call is made; keys of different tenants never meet.
        caller: Who submits, in the audit.
        request: The request, whose trace goes on in the task.
        jobs_url: Where jobs are found, for the header Location.
        options: What else `apply_async` takes.

    Raises:
        ProblemError: the job was not accepted; FastAPI answers with it.
    """
    if trace := carried(request.headers if request else {}):
        options["headers"] = {**(options.get("headers") or {}), **trace}
    options |= task.oncelery.reading.reprs(task.name, args, kwargs or {})
    peers = Peers.of(task.oncelery)
    # An eager app runs the task here.
    act = peers.act_at_length if task.app.conf.task_always_eager else peers.act
    job, replayed = await act(
        _publish,
        task,
        jobs_url,
        args=args,
        kwargs=kwargs,
        idempotency_key=idempotency_key,
        scope=scope,
        caller=caller,
        **options,
    )
    failpoint("before-answer")
    headers = {"Location": location_of(job.id, jobs_url)}
    if replayed:
        headers[REPLAYED] = "true"
    return show_job(task.oncelery, job, status=200 if replayed else 202, headers=headers)


def _publish(task: IdempotentTask, jobs_url: str, **call: Any) -> tuple[Job, bool]:  # noqa: ANN401 - apply_async's
    """Publish, and tell the job and whether its result answers this call."""
    try:
        result: Any = task.apply_async(**call)
        job: Job | None = result.job
        if job is None or isinstance(result, EagerResult):
            # It has run meanwhile.
            job = task.oncelery.ledger.get(result.id)
    except OnceleryError as error:
        problem = problem_of(error, jobs_url=jobs_url)
        if problem is None:
            raise
        raise problem from error
    except OperationalError as error:
        raise ProblemError(BROKER_UNAVAILABLE, "nothing was accepted, send it again") from error
    assert job is not None  # noqa: S101 - it was accepted or found a moment ago
    return job, result.existing and job.state is State.COMPLETED
