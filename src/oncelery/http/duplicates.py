"""Routes of the audit: who was answered what, and how often."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from oncelery.http import problems as p
from oncelery.http.auth import Caller
from oncelery.http.paging import Cursor, Limit, Moment, Word, paged
from oncelery.http.service import Service, answer_json
from oncelery.http.views import DuplicateCountsView, DuplicatePage
from oncelery.operations.duplicates import DEFAULT_SPAN

_PROBLEMS = (p.INVALID_REQUEST, p.FORBIDDEN, p.STORE_UNAVAILABLE)


def add_duplicates(router: APIRouter, service: Service) -> None:
    """Add the routes."""
    once, reads = service.once, service.reads

    @router.get(
        "/duplicates",
        tags=["duplicates"],
        summary="List answered duplicates, newest first",
        response_model=DuplicatePage,
        responses=p.documented(*_PROBLEMS),
    )
    async def list_duplicates(
        *,
        task: Word = "",
        scope: Word = "",
        since: Moment = None,
        cursor: Cursor = "",
        limit: Limit = 50,
        caller: Caller = reads,
    ) -> Response:
        scope = caller.within(scope)
        page = await paged(service.peers, once.duplicates.find, task=task, scope=scope, cursor=cursor, limit=limit)
        items = [item for item in page.items if since is None or item.at >= since]
        # The first that is too old is the end of the list.
        return answer_json({"items": items, "cursor": page.cursor if len(items) == len(page.items) else ""})

    @router.get(
        "/duplicates/counts",
        tags=["duplicates"],
        summary="Count duplicates by hour, task, scope and answer, oldest first",
        response_model=DuplicateCountsView,
        responses=p.documented(*_PROBLEMS),
    )
    async def count_duplicates(
        task: Word = "", scope: Word = "", since: Moment = None, caller: Caller = reads
    ) -> Response:
        scope = caller.within(scope)
        counts = await service.peers.read(once.duplicates.counts, since=since or DEFAULT_SPAN, task=task, scope=scope)
        return answer_json({"items": counts})
