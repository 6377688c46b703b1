"""Routes to look at dead letters, revive and discard them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, assert_never

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from oncelery.answers import Absent, Discarded, Existing, NotBuried, Resubmitted, Revived
from oncelery.http import problems as p
from oncelery.http.audit import audited, tell
from oncelery.http.auth import Caller
from oncelery.http.body import Instant, read_as
from oncelery.http.paging import Cursor, Limit, Moment, Word, page_of
from oncelery.http.service import JobId, Service, answer_json, jobs_url, show_job
from oncelery.http.threads import Peers
from oncelery.http.views import DeadLetterView, FatesView, JobPage, JobView, dead_letter_of
from oncelery.job import DISCARDED, Job, State
from oncelery.operations.dead_letters import Fates

_READING: Final = (p.INVALID_REQUEST, p.FORBIDDEN, p.UNKNOWN_JOB, p.STORE_UNAVAILABLE)
_WRITING: Final = (*_READING, p.TOO_SLOW, p.TOO_LARGE, p.NOT_JSON)


class Correction(BaseModel):
    """Other arguments for a dead letter; what is left out stays."""

    model_config = ConfigDict(extra="forbid", strict=True)

    args: list[Any] | None = None
    kwargs: dict[str, Any] | None = None


class Selection(BaseModel):
    """Which dead letters to revive or discard; what is left out means any."""

    model_config = ConfigDict(extra="forbid", strict=True)

    task: str = Field("", max_length=255, pattern=r"^[^\x00]*$")
    scope: str = Field("", max_length=255, pattern=r"^[^\x00]*$")
    since: Instant | None = None
    until: Instant | None = None
    #: Only tell what would become of each.
    dry_run: bool = False


class Discarding(Selection):
    """Which dead letters to discard."""

    #: It must be said: nobody gets back what an empty selection, sent by mistake, has discarded.
    dry_run: bool


_correction: TypeAdapter[Correction] = TypeAdapter(Correction)
_selection: TypeAdapter[Selection] = TypeAdapter(Selection)
_discarding: TypeAdapter[Discarding] = TypeAdapter(Discarding)


def add_dead_letters(router: APIRouter, service: Service) -> None:
    """Add the routes."""
    _add_reading(router, service)
    _add_acting_on_many(router, service)
    _add_reviving(router, service)
    _add_discarding(router, service)


def _add_reading(router: APIRouter, service: Service) -> None:
    once, reads = service.once, service.reads

    @router.get(
        "/dead-letters",
        tags=["dead letters"],
        summary="List dead letters, newest first",
        response_model=JobPage,
        responses=p.documented(*_READING),
    )
    async def list_dead_letters(
        *,
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
            once.dead_letters.find,
            task=task,
            scope=scope,
            since=since,
            until=until,
            cursor=cursor,
            limit=limit,
        )

    @router.get(
        "/dead-letters/{job_id}",
        tags=["dead letters"],
        summary="Look at a dead letter: its arguments, error, traceback and attempts",
        response_model=DeadLetterView,
        responses=p.documented(*_READING),
    )
    async def get_dead_letter(job_id: JobId, caller: Caller = reads) -> Response:
        job = service.seen_by(caller, await service.peers.read(once.dead_letters.get, job_id), job_id)
        return answer_json(dead_letter_of(job, once.jobs.call(job)))


def _add_acting_on_many(router: APIRouter, service: Service) -> None:
    once, operates = service.once, service.operates

    @router.post(
        "/dead-letters/revive",
        tags=["dead letters"],
        summary="Revive all dead letters that match, each for itself",
        response_model=FatesView,
        responses=p.documented(*_WRITING),
        openapi_extra=_takes(Selection),
    )
    async def revive_many(request: Request, caller: Caller = operates) -> Response:
        chosen = await read_as(request, _selection, largest=service.largest_body)
        return await _act_on_many(service.peers, caller, "revive", once.dead_letters.revive_many, chosen)

    @router.post(
        "/dead-letters/discard",
        tags=["dead letters"],
        summary="Discard all dead letters that match, each for itself: nothing of them will run",
        response_model=FatesView,
        responses=p.documented(*_WRITING),
        openapi_extra=_takes(Discarding),
    )
    async def discard_many(request: Request, caller: Caller = operates) -> Response:
        chosen = await read_as(request, _discarding, largest=service.largest_body)
        return await _act_on_many(service.peers, caller, "discard", once.dead_letters.discard_many, chosen)


async def _act_on_many(peers: Peers, caller: Caller, act: str, do: Callable[..., Fates], chosen: Selection) -> Response:
    fates = await peers.act_at_length(
        do,
        task=chosen.task,
        scope=caller.within(chosen.scope),
        since=chosen.since,
        until=chosen.until,
        dry_run=chosen.dry_run,
        progress=lambda item: None if chosen.dry_run else tell(caller, act, item, item.fate),
    )
    return answer_json(fates)


def _add_reviving(router: APIRouter, service: Service) -> None:
    once, operates = service.once, service.operates

    @router.post(
        "/dead-letters/{job_id}/revive",
        tags=["dead letters"],
        summary="Revive a dead letter, with other arguments if need be",
        description=(
            "Arguments that make another key are other work: the dead letter is cancelled, and the answer is the new "
            "job that is queued in its place. If a live or completed job has that key: 409, and the dead letter stays."
        ),
        status_code=202,
        response_model=JobView,
        response_description="The job that is queued; Location is where to find it",
        responses=p.documented(*_WRITING, p.INVALID_ARGUMENTS, p.NOT_BURIED, p.SUPERSEDED),
        openapi_extra=_takes(Correction),
    )
    async def revive(request: Request, job_id: JobId, caller: Caller = operates) -> Response:
        correction = await read_as(request, _correction, largest=service.largest_body)
        job = await service.job(job_id, caller)
        how = "revive" if correction == Correction() else "revive with other arguments"
        do = partial(once.dead_letters.revive, job_id, args=correction.args, kwargs=correction.kwargs)
        match answer := await service.peers.act(audited, caller, how, job, do):
            case Revived(job) | Resubmitted(job):
                where = p.location_of(job.id, f"{jobs_url(request, 3)}/jobs")
                return show_job(once, job, status=202, headers={"Location": where})
            case Existing(job):
                detail = f"job {job.id} is or was doing this work, and is {job.state}"
                raise p.ProblemError(p.SUPERSEDED, detail, job_id=job.id, state=job.state)
            case NotBuried(job):
                raise _not_buried(job)
            case Absent():
                raise p.unknown_job(job_id)
            case _:
                assert_never(answer)


def _add_discarding(router: APIRouter, service: Service) -> None:
    once, operates = service.once, service.operates

    @router.delete(
        "/dead-letters/{job_id}",
        tags=["dead letters"],
        summary="Discard a dead letter: nothing of it will run",
        response_model=JobView,
        responses=p.documented(*_READING, p.NOT_BURIED),
    )
    async def discard(job_id: JobId, caller: Caller = operates) -> Response:
        job = await service.job(job_id, caller)
        match answer := await service.peers.act(
            audited, caller, "discard", job, partial(once.dead_letters.discard, job_id)
        ):
            case Discarded(job):
                return show_job(once, job)
            case NotBuried(job) if job.state is State.CANCELLED and job.reason == DISCARDED:
                # Sent again, as a client does that saw no answer.
                return show_job(once, job)
            case NotBuried(job):
                raise _not_buried(job)
            case Absent():
                raise p.unknown_job(job_id)
            case _:
                assert_never(answer)


def _not_buried(job: Job) -> p.ProblemError:
    return p.ProblemError(p.NOT_BURIED, f"it is {job.state}", job_id=job.id, state=job.state)


def _takes(model: type[BaseModel]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": model.model_json_schema()}}}}
