"""`create_app(once, tasks=[…])`: the whole service."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from oncelery.http.auth import LocalOnly
from oncelery.http.body import LARGEST
from oncelery.http.keys import KeySource
from oncelery.http.problems import answer
from oncelery.http.router import create_router

if TYPE_CHECKING:
    from oncelery.celery.extension import Oncelery
    from oncelery.celery.task import IdempotentTask


def create_app(
    once: Oncelery,
    *,
    tasks: Iterable[IdempotentTask | str] = (),
    keys: KeySource | None = None,
    require_key: bool = False,
    largest_body: int = LARGEST,
) -> FastAPI:
    """Make the whole service, for `uvicorn`; the options are those of `create_router`."""
    app = FastAPI(title="Oncelery", version=version("oncelery"), summary="Jobs that take effect once")
    app.include_router(create_router(once, tasks=tasks, keys=keys, require_key=require_key, largest_body=largest_body))
    if keys is None:
        # Also for what is no route of ours: the schema and its pages.
        app.add_middleware(LocalOnly)
    app.add_exception_handler(HTTPException, _answer_other)
    return app


async def _answer_other(_request: Request, error: Exception) -> Response:
    """Answer what no route does, such as a path or a method that is not there."""
    assert isinstance(error, HTTPException)  # noqa: S101 - it is registered for these
    return answer(error)
