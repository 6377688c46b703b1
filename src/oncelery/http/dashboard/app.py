"""`create_dashboard(once)`: the pages, for an app of yours; `create_app` has them already."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from oncelery.errors import ConfigurationError, OnceleryError
from oncelery.http.audit import tell_sign_in
from oncelery.http.auth import Access, Caller, Role
from oncelery.http.dashboard import acts, live, pages
from oncelery.http.dashboard.desk import Desk, ElsewhereError, Shown
from oncelery.http.dashboard.rendering import HEADERS, STATIC, TYPES, render, templates, urls_of, version_of_static
from oncelery.http.dashboard.session import (
    CSRF_COOKIE,
    KEY_COOKIE,
    SIGNED_IN_FOR,
    enter,
    forget,
    keep,
    read_form,
    token_of,
    with_key,
)
from oncelery.http.keys import KeySource
from oncelery.http.problems import ProblemError, problem_of
from oncelery.http.streaming import EventStream
from oncelery.job import State

if TYPE_CHECKING:
    from fastapi import FastAPI

    from oncelery.celery.extension import Oncelery

#: Where `create_app` has it; `/` leads there.
PATH: Final = "/dashboard"

_UNAUTHORIZED: Final = 401
_UNAVAILABLE: Final = 503
_ACTS: Final = ("cancel", "revive", "discard")
_ON_MANY: Final = ("revive", "discard")
_FOR_EVER: Final = "public, max-age=31536000, immutable"

Endpoint = Callable[[Request], Awaitable[Response]]

#: How the peers are asked for a page: to read, or to act.
Ask = Callable[..., Awaitable[Shown]]


def create_dashboard(once: Oncelery, *, keys: KeySource | None = None, api: str = "") -> Starlette:
    """Make the dashboard, for `app.mount("/dashboard", …)` in any FastAPI or Starlette app.

    Args:
        once: The extension.
        keys: The API keys of those who may sign in, as for `create_router`; without any, this machine alone.
        api: Where the JSON API is on the same host, for the commands that pages give to copy.
    """
    if not is_installed():
        raise ConfigurationError("the dashboard needs Jinja2: pip install 'oncelery[dashboard]'")
    templates()
    desk = Desk(once, access=Access(keys), api=api)
    site = Site(desk)
    routes = [
        Route("/", site.page(pages.overview), name="overview"),
        Route("/jobs", site.page(pages.jobs)),
        Route("/jobs/{job_id}", site.page(pages.job)),
        Route("/job", site.page(pages.job)),
        Route("/dead-letters", site.page(acts.dead_letters)),
        Route("/duplicates", site.page(pages.duplicates)),
        Route("/tasks", site.page(pages.tasks)),
        Route("/sign-in", site.sign_in, methods=["GET", "POST"]),
        Route("/sign-out", site.sign_out, methods=["POST"]),
        Route("/static/{version}/{name}", static),
    ]
    routes.extend(Route(f"/{verb}", site.act(verb), methods=["GET", "POST"]) for verb in _ACTS)
    routes.extend(Route(f"/{verb}-many", site.act_on_many(verb), methods=["POST"]) for verb in _ON_MANY)
    return Starlette(routes=routes, exception_handlers={HTTPException: site.trouble, OnceleryError: site.trouble})


def mount_dashboard(app: FastAPI, once: Oncelery, *, keys: KeySource | None) -> None:
    """Mount the dashboard into the whole service, and let `/` lead there; without its extra there is none."""
    if not is_installed():
        return

    async def lead(request: Request) -> Response:
        return RedirectResponse(f"{request.scope.get('root_path', '')}{PATH}/")

    app.add_route("/", lead, include_in_schema=False)
    app.mount(PATH, create_dashboard(once, keys=keys), name="dashboard")


def is_installed() -> bool:
    """Whether the extra `dashboard` is."""
    return find_spec("jinja2") is not None


class Site:
    """Turns what pages show into responses, for those who may see them."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def page(self, show: pages.Page) -> Endpoint:
        """Answer with a page, or with a stream of it for one that is open."""
        peers = self._desk.peers

        async def endpoint(request: Request) -> Response:
            caller = await enter(self._desk.access, request, Role.READ)
            if EventStream.media_type in request.headers.get("accept", ""):
                return live.stream(lambda: self._look(request, caller, show))
            return await self._show(request, caller, peers.read, lambda: show(self._desk, caller, _asked(request)))

        return endpoint

    def act(self, verb: str) -> Endpoint:
        """Ask before, and act after, a form was sent."""
        peers = self._desk.peers

        async def endpoint(request: Request) -> Response:
            caller = await enter(self._desk.access, request, Role.OPERATE)
            asked = _asked(request) | {"act": verb}
            if request.method != "POST":
                return await self._show(request, caller, peers.read, lambda: acts.ask(self._desk, caller, asked))
            form = await read_form(request)
            return await self._show(request, caller, peers.act, lambda: acts.act(self._desk, caller, asked, form))

        return endpoint

    def act_on_many(self, verb: str) -> Endpoint:
        """Ask before, and act after, a form was sent that names many."""
        peers = self._desk.peers

        async def endpoint(request: Request) -> Response:
            caller = await enter(self._desk.access, request, Role.OPERATE)
            form = await read_form(request)
            asked = {"act": verb}
            return await self._show(
                request, caller, peers.act_at_length, lambda: acts.act_on_many(self._desk, caller, asked, form)
            )

        return endpoint

    async def sign_in(self, request: Request) -> Response:
        """Let a browser keep an API key, if it is one."""
        urls = urls_of(request)
        if request.method != "POST":
            return self._answer(request, Shown(template="sign_in.html", values={"wrong": ""}), None)
        key = (await read_form(request)).get("key", [""])[0].strip()
        host = request.client.host if request.client else "a socket"
        try:
            caller = await enter(self._desk.access, with_key(_without_cookie(request), key), Role.READ)
        except ProblemError as error:
            tell_sign_in(None, host)
            wrong = "No such API key." if error.status_code == _UNAUTHORIZED else f"{error.detail}."
            shown = Shown(template="sign_in.html", values={"wrong": wrong}, status=error.status_code)
            return self._answer(request, shown, None)
        tell_sign_in(caller, host)
        response = RedirectResponse(urls("/jobs" if caller.scope else "/"), 303)
        keep(request, response, KEY_COOKIE, key, seconds=SIGNED_IN_FOR)
        return response

    async def sign_out(self, request: Request) -> Response:
        """Let the browser forget the key."""
        await read_form(request)
        response = RedirectResponse(urls_of(request)("/sign-in"), 303)
        forget(request, response, KEY_COOKIE)
        return response

    async def trouble(self, request: Request, error: Exception) -> Response:
        """Answer an error as a page; one who is not signed in is led to where that can be done."""
        if isinstance(error, OnceleryError):
            error = problem_of(error) or error
        if not isinstance(error, HTTPException):
            raise error
        if error.status_code == _UNAUTHORIZED:
            return RedirectResponse(urls_of(request)("/sign-in"), 303)
        return self._answer(request, _trouble(error), None)

    async def _show(self, request: Request, caller: Caller, ask: Ask, show: Callable[[], Shown]) -> Response:
        try:
            shown = await self._shown(caller, ask, show)
        except ElsewhereError as found:
            address = urls_of(request).job(found.job_id)
            joined = "&" if "?" in address else "?"
            return RedirectResponse(f"{address}{joined}notice={found.notice}" if found.notice else address, 303)
        return self._answer(request, shown, caller)

    async def _look(self, request: Request, caller: Caller, show: pages.Page) -> tuple[str, bool]:
        """Render what an open page shows now; a store that is away is shown as well, until it is back."""
        asked = _asked(request)
        try:
            shown = await self._shown(caller, self._desk.peers.read, lambda: show(self._desk, caller, asked))
        except ElsewhereError:
            return "", True
        return render(shown.template, self._values(request, shown, caller), live=True), shown.status < _UNAVAILABLE

    async def _shown(self, caller: Caller, ask: Ask, show: Callable[[], Shown]) -> Shown:
        try:
            return await ask(self._read, caller, show)
        except HTTPException as error:
            return _trouble(error)
        except OnceleryError as error:
            problem = problem_of(error)
            if problem is None:
                raise
            return _trouble(problem)

    def _read(self, caller: Caller, show: Callable[[], Shown]) -> Shown:
        """Read what a page shows, and what its frame tells."""
        shown = show()
        waiting = self._desk.counts(caller).get(State.BURIED, 0)
        return replace(shown, values={"waiting": waiting, **shown.values})

    def _answer(self, request: Request, shown: Shown, caller: Caller | None) -> Response:
        values = self._values(request, shown, caller)
        response = HTMLResponse(render(shown.template, values), shown.status, dict(HEADERS))
        if not request.cookies.get(CSRF_COOKIE):
            keep(request, response, CSRF_COOKIE, values["csrf"])
        return response

    def _values(self, request: Request, shown: Shown, caller: Caller | None) -> dict[str, Any]:
        return {
            "urls": urls_of(request),
            "here": request.scope["path"].removeprefix(request.scope.get("root_path", "")),
            "caller": caller,
            "operates": caller is not None and Role.OPERATE in caller.roles,
            "signed_in": KEY_COOKIE in request.cookies,
            "csrf": token_of(request),
            "notice": acts.NOTICES.get(request.query_params.get("notice", ""), ""),
            **shown.values,
        }


async def static(request: Request) -> Response:
    """Give a static file; under its present name it never changes."""
    path = STATIC / request.path_params["name"]
    if path.parent != STATIC or path.suffix not in TYPES or not path.is_file():
        raise HTTPException(404, "There is no such file.")
    same = request.path_params["version"] == version_of_static()
    headers = {"Cache-Control": _FOR_EVER if same else "no-store", "X-Content-Type-Options": "nosniff"}
    return Response(path.read_bytes(), headers=headers, media_type=TYPES[path.suffix])


def _asked(request: Request) -> dict[str, str]:
    origin = f"{request.url.scheme}://{request.url.netloc}"
    return {**request.query_params, **request.path_params, "origin": origin}


def _without_cookie(request: Request) -> Request:
    headers = [(name, value) for name, value in request.scope["headers"] if name != b"cookie"]
    return Request({**request.scope, "headers": headers})


def _trouble(error: HTTPException) -> Shown:
    title = error.problem.title if isinstance(error, ProblemError) else "There is no such page"
    values: Mapping[str, Any] = {"title": title, "detail": error.detail, "status": error.status_code}
    return Shown(template="trouble.html", values=values, status=error.status_code)
