"""`create_app(once, tasks=[…])`: the whole service."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import Match

from oncelery.http.auth import Access, LocalOnly
from oncelery.http.body import LARGEST
from oncelery.http.dashboard import mount_dashboard
from oncelery.http.keys import KeySource, Role
from oncelery.http.problems import answer
from oncelery.http.router import create_router
from oncelery.http.service import answer_json

if TYPE_CHECKING:
    from oncelery.celery.extension import Oncelery
    from oncelery.celery.task import IdempotentTask

#: Where the schema is.
SCHEMA: Final = "/openapi.json"


def create_app(
    once: Oncelery,
    *,
    tasks: Iterable[IdempotentTask | str] = (),
    keys: KeySource | None = None,
    require_key: bool = False,
    largest_body: int = LARGEST,
) -> FastAPI:
    """Make the whole service, for `uvicorn`; the options are those of `create_router`."""
    app = FastAPI(
        title="Oncelery",
        version=version("oncelery"),
        summary="Jobs that take effect once",
        openapi_url=SCHEMA if keys is None else None,
        # Their scripts come from a CDN, and could act with the rights of the person who opens the page.
        docs_url=None,
        redoc_url=None,
    )
    router = create_router(once, tasks=tasks, keys=keys, require_key=require_key, largest_body=largest_body)
    app.include_router(router)
    if keys is None:
        # Also for what is no route of ours: the schema.
        app.add_middleware(LocalOnly)
    else:
        _guard_schema(app, Access(keys))
    app.add_exception_handler(HTTPException, _answer_other(router))
    mount_dashboard(app, once, keys=keys)
    return app


def _guard_schema(app: FastAPI, access: Access) -> None:
    """Give the schema, which names every task, to those who may read."""

    @app.get(SCHEMA, include_in_schema=False, dependencies=[Depends(access(Role.READ))])
    async def schema(request: Request) -> Response:
        return answer_json({**app.openapi(), "servers": [{"url": request.scope.get("root_path") or "/"}]})


def _answer_other(router: APIRouter) -> Callable[[Request, Exception], Awaitable[Response]]:
    """Answer what no route does, such as a path or a method that is not there."""

    async def answer_other(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101 - it is registered for these
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED and (methods := _methods(router, request)):
            # Starlette knows of one route of a path, and several may share one.
            error.headers = {"Allow": ", ".join(methods)}
        return answer(error)

    return answer_other


def _methods(router: APIRouter, request: Request) -> list[str]:
    routes = [route for route in router.routes if isinstance(route, APIRoute) and route.include_in_schema]
    at_path = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    # `/dead-letters/revive` also fits `/dead-letters/{job_id}`: the path with the fewest parameters is meant.
    path = min((route.path for route in at_path), key=lambda path: path.count("{"), default="")
    return sorted({method for route in at_path if route.path == path for method in route.methods or ()})
