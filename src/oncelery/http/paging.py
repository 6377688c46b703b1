"""Lists, page by page: what is asked for in the query, and the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

from fastapi import Query
from fastapi.responses import Response

from oncelery.errors import OnceleryError
from oncelery.http.body import Instant
from oncelery.http.problems import INVALID_REQUEST, ProblemError
from oncelery.http.service import answer_json
from oncelery.http.threads import Peers
from oncelery.http.views import summary_of
from oncelery.job import JobSummary, Page

#: The most items on one page.
LONGEST_PAGE: Final = 200

Cursor = Annotated[str, Query(max_length=600, description="Continues a list: the cursor of its last page")]
Limit = Annotated[int, Query(ge=1, le=LONGEST_PAGE, description="How many to a page")]
Word = Annotated[str, Query(max_length=255, pattern=r"^[^\x00]*$")]
Moment = Annotated[Instant | None, Query(description="Of the last change; with its time zone")]


async def page_of(peers: Peers, find: Callable[..., Page[JobSummary]], **filters: Any) -> Response:  # noqa: ANN401 - a Query's fields
    """Answer with one page of jobs."""
    page = await paged(peers, find, **filters)
    return answer_json({"items": [summary_of(job) for job in page.items], "cursor": page.cursor})


async def paged(peers: Peers, find: Callable[..., Page[Any]], **filters: Any) -> Page[Any]:  # noqa: ANN401 - of any kind
    """Ask for a page; a cursor that nobody gave out is the client's fault."""
    try:
        return await peers.read(find, **filters)
    except ValueError as error:
        if isinstance(error, OnceleryError):
            raise  # the service's own, such as a ledger that is not migrated
        raise ProblemError(INVALID_REQUEST, str(error)) from error
