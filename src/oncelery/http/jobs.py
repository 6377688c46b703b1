"""Routes to submit, find, watch and cancel jobs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Annotated, assert_never

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import Response
from kombu.exceptions import OperationalError

from oncelery.answers import Absent, Cancelled, Finished, Requested
from oncelery.codec import encode
from oncelery.http import problems as p
from oncelery.http.arguments import Arguments
from oncelery.http.audit import audited
from oncelery.http.auth import Caller, Role
from oncelery.http.body import read_body
from oncelery.http.idempotency_key import described, read_key
from oncelery.http.paging import Cursor, Limit, Moment, Word, page_of
from oncelery.http.service import LONGEST_WAIT, JobId, Service, jobs_url, show_job
from oncelery.http.streaming import PING_EVERY, EventStream
from oncelery.http.submitting import REPLAYED, submit
from oncelery.http.views import JobPage, JobView, version_of, view_of
from oncelery.job import Job, State

if TYPE_CHECKING:
    from oncelery.celery.task import IdempotentTask

Notify = Annotated[str, Query(max_length=2048, description="A URL to call when the job has ended")]

_EVENT = {
    "type": "object",
    "required": ["id", "data"],
    "properties": {"id": {"type": "string"}, "data": {"type": "string", "contentMediaType": "application/json"}},
}
_LOCATION = {"Location": {"description": "Where the job is found", "schema": {"type": "string"}}}
_REPLAYED = {REPLAYED: {"description": "The work was done before", "schema": {"const": "true"}}}


def add_jobs(router: APIRouter, service: Service) -> None:
    """Add the routes."""
    for task in service.tasks.values():
        _add_task(router, service, task)
    _add_reading(router, service)
    _add_looking(router, service)
    _add_watching(router, service)
    _add_cancelling(router, service)


def _add_task(router: APIRouter, service: Service, task: IdempotentTask) -> None:
    arguments = Arguments(task.run)
    submits = service.submits

    async def submit_job(request: Request, notify: Notify = "", caller: Caller = submits) -> Response:
        key = read_key(request, required=service.require_key)
        args, kwargs = arguments.read(await read_body(request, largest=service.largest_body))
        return await submit(
            task,
            args,
            kwargs,
            idempotency_key=key,
            scope=caller.scope,
            caller=caller.name,
            notify=notify,
            request=request,
            jobs_url=jobs_url(request, 1 + task.name.count("/")),
        )

    router.add_api_route(
        # As servers give a path, decoded; braces would be taken for a parameter.
        f"/jobs/{task.name.replace('{', '%7B').replace('}', '%7D')}",
        submit_job,
        methods=["POST"],
        name=f"submit {task.name}",
        summary=f"Submit {task.name}",
        description=task.__doc__ or "",
        tags=["jobs"],
        status_code=202,
        response_model=JobView,
        response_description="Accepted, or joined to the job that is there",
        responses={
            202: {"headers": _LOCATION},
            200: {"model": JobView, "description": "Done before: its result", "headers": _LOCATION | _REPLAYED},
            **p.documented(
                *(p.INVALID_ARGUMENTS, p.KEY_MALFORMED, p.KEY_MISSING, p.FORBIDDEN, p.TOO_SLOW, p.DUPLICATE),
                *(p.TOO_LARGE, p.NOT_JSON, p.PAYLOAD_MISMATCH, p.STORE_UNAVAILABLE, p.BROKER_UNAVAILABLE),
                *(p.INVALID_REQUEST, p.CALL_BACK_REFUSED, p.LIMIT_REACHED),
            ),
        },
        openapi_extra={
            "parameters": [described(required=service.require_key)],
            "requestBody": {"required": True, "content": {"application/json": {"schema": arguments.schema}}},
        },
    )


def _add_reading(router: APIRouter, service: Service) -> None:
    once, submits, reads = service.once, service.submits, service.reads

    @router.post("/jobs/{task}", include_in_schema=False)
    async def submit_unknown(task: str, _caller: Caller = submits) -> Response:
        raise p.ProblemError(p.UNKNOWN_TASK, f"there is no task {task!r}, or it is not exposed")

    @router.get(
        "/jobs",
        tags=["jobs"],
        summary="List jobs, newest change first",
        response_model=JobPage,
        responses=p.documented(p.INVALID_REQUEST, p.FORBIDDEN, p.STORE_UNAVAILABLE),
    )
    async def list_jobs(
        *,
        state: Annotated[list[State] | None, Query(description="One state or several")] = None,
        task: Word = "",
        scope: Word = "",
        since: Moment = None,
        until: Moment = None,
        cursor: Cursor = "",
        limit: Limit = 50,
        caller: Caller = reads,
    ) -> Response:
        scope = caller.within(scope)
        return await page_of(
            service.peers,
            once.jobs.find,
            states=state or (),
            task=task,
            scope=scope,
            since=since,
            until=until,
            cursor=cursor,
            limit=limit,
        )


def _add_looking(router: APIRouter, service: Service) -> None:
    once, reads = service.once, service.reads

    @router.get(
        "/jobs/{job_id}",
        tags=["jobs"],
        summary="Look at a job, or wait for it",
        response_model=JobView,
        responses={
            304: {"description": "It is still what If-None-Match names"},
            **p.documented(p.INVALID_REQUEST, p.FORBIDDEN, p.UNKNOWN_JOB, p.STORE_UNAVAILABLE),
        },
    )
    async def get_job(
        job_id: JobId,
        wait: Annotated[
            int, Query(ge=0, le=LONGEST_WAIT, description="Seconds to wait for its end, or a change from If-None-Match")
        ] = 0,
        if_none_match: Annotated[str, Header(description="The ETag that was seen last")] = "",
        caller: Caller = reads,
    ) -> Response:
        job = await service.job(job_id, caller)
        shown = show_job(once, job)
        if wait and _is_nothing_new(job, shown, if_none_match):
            until = monotonic() + wait
            with service.watcher.watching(job) as watch:
                while _is_nothing_new(job, shown, if_none_match) and await watch.changed(until - monotonic()):
                    job = service.seen_by(caller, watch.job, job_id)
                    shown = show_job(once, job)
        if _is_seen(shown, if_none_match):
            return Response(status_code=304, headers={"ETag": shown.headers["ETag"]})
        return shown


def _add_watching(router: APIRouter, service: Service) -> None:
    admit = service.access(Role.READ)
    reads = Depends(admit)

    @router.get(
        "/jobs/{job_id}/events",
        tags=["jobs"],
        summary="Watch a job until it ends",
        response_class=Response,
        responses={
            200: {
                "description": "Server-sent events: the job, as `GET /jobs/{job_id}` shows it, after each change",
                "content": {"text/event-stream": {"itemSchema": _EVENT}},
            },
            204: {"description": "It has ended, and Last-Event-ID names its end: do not ask again"},
            **p.documented(p.INVALID_REQUEST, p.FORBIDDEN, p.UNKNOWN_JOB, p.STORE_UNAVAILABLE),
        },
    )
    async def watch_job(
        request: Request,
        job_id: JobId,
        last_event_id: Annotated[str, Header(description="The id of the last event that was seen")] = "",
        caller: Caller = reads,
    ) -> Response:
        job = await service.job(job_id, caller)
        if not job.state.live and _event(service, job)[0] == last_event_id:
            return Response(status_code=204)
        return EventStream(_while_admitted(partial(admit, request), job.scope, _events(service, job, last_event_id)))


def _is_nothing_new(job: Job, shown: Response, seen: str) -> bool:
    return _is_seen(shown, seen) if seen else job.state.live


def _is_seen(shown: Response, seen: str) -> bool:
    """Whether If-None-Match names what is shown: alone or in a list, also as `W/"…"`, which a proxy makes of it."""
    # The tag has its quotation marks, and so is never found within another.
    return seen.strip() == "*" or shown.headers["ETag"] in seen


async def _while_admitted(
    admit: Callable[[], Awaitable[Caller]], scope: str, events: AsyncGenerator[bytes]
) -> AsyncGenerator[bytes]:
    """Give events, and pings, until the caller's key is good no more, or another tenant's."""
    async with aclosing(events):
        async for event in events:
            try:
                caller = await admit()
            except p.ProblemError:
                return
            if not caller.sees(scope):
                return
            yield event


async def _events(service: Service, job: Job, seen: str) -> AsyncGenerator[bytes]:
    """Give the job as it is unless that was seen, and after each change, until it has ended."""
    with service.watcher.watching(job) as watch:
        now: Job | None = job
        while now:
            version, event = _event(service, now)
            if version != seen:
                yield event
                seen = version
            if not now.state.live:
                return
            while not await watch.changed(PING_EVERY):
                yield b": ping\n\n"
            now = watch.job


def _event(service: Service, job: Job) -> tuple[str, bytes]:
    written = encode(view_of(job, service.once.jobs.result(job)))
    version = version_of(written)
    return version, b"id: %s\ndata: %s\n\n" % (version.encode(), written)


def _add_cancelling(router: APIRouter, service: Service) -> None:
    once, operates = service.once, service.operates

    @router.post(
        "/jobs/{job_id}/cancel",
        tags=["jobs"],
        summary="Cancel a job, or ask its run to end",
        status_code=202,
        response_model=JobView,
        responses=p.documented(
            *(p.INVALID_REQUEST, p.FORBIDDEN, p.UNKNOWN_JOB, p.JOB_FINISHED, p.STORE_UNAVAILABLE, p.BROKER_UNAVAILABLE)
        ),
    )
    async def cancel_job(
        *,
        job_id: JobId,
        reason: Annotated[str, Query(min_length=1, max_length=255, pattern=r"^[^\x00]+$")] = "cancelled",
        terminate: Annotated[
            bool, Query(description="End the process that runs it, for a task that does not heed the request")
        ] = False,
        caller: Caller = operates,
    ) -> Response:
        job = await service.job(job_id, caller)
        cancel = partial(once.jobs.cancel, job_id, reason=reason, terminate=terminate)
        try:
            answer = await service.peers.act(audited, caller, "terminate" if terminate else "cancel", job, cancel)
        except OperationalError as error:
            text = "the job is cancelled, but its process could not be told: send it again"
            raise p.ProblemError(p.BROKER_UNAVAILABLE, text) from error
        match answer:
            case Cancelled(job) | Requested(job):
                return show_job(once, job, status=202)
            case Finished(job):
                detail = f"it is {job.state}, too late to cancel it"
                raise p.ProblemError(p.JOB_FINISHED, detail, job_id=job.id, state=job.state)
            case Absent():
                raise p.unknown_job(job_id)
            case _:
                assert_never(answer)
