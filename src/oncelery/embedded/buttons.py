"""The service of the demonstration: a page of buttons beside the dashboard, and customers who never sleep."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.responses import HTMLResponse, PlainTextResponse, Response

from oncelery.embedded import playground
from oncelery.embedded.service import serve_all
from oncelery.http.threads import Peers
from oncelery.job import Job, State

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request

_logger = logging.getLogger("oncelery")

PAGE = Path(__file__).with_name("buttons.html")

#: The page has a style and forms, and nothing else.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

#: What can be asked for, at `POST /demo/{word}`.
BUTTONS: dict[str, Callable[[], Job]] = {
    "pay": playground.pay_twice,
    "plan": lambda: playground.plan(playground.PROJECTS[0]),
    "kill": playground.kill_a_worker,
    "poison": playground.send_poison,
}

#: How often a customer pays, in seconds; and every so many payments somebody wants a plan.
PAY_EVERY = 5.0
PLAN_EVERY = 8


def serve() -> FastAPI:
    """Make the service, and let the customers in; a factory for uvicorn."""
    api = serve_all(playground.once)
    api.add_route("/demo", _page, include_in_schema=False)
    api.add_route("/demo/{word}", _press, methods=["POST"], include_in_schema=False)
    threading.Thread(target=_live, name="customers", daemon=True).start()
    return api


async def _page(_request: Request) -> Response:
    headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-store"}
    return HTMLResponse(PAGE.read_text(), headers=headers)


async def _press(request: Request) -> Response:
    act = BUTTONS.get(request.path_params["word"])
    if act is None:
        return Response(f"there are: {', '.join(BUTTONS)}\n", 404)
    job = await Peers.of(playground.once).act(act)
    routes = {getattr(route, "name", "") for route in request.app.routes}
    place = f"{'/dashboard' if 'dashboard' in routes else ''}/jobs/{job.id}"
    # A browser goes there; curl does not, and shows the text.
    return PlainTextResponse(f"{job.task} {job.id}: see {place}\n", 303, {"Location": place})


def _live() -> None:
    """Be the customers: one clicks twice every few seconds, now and then one wants a plan; poison comes once."""
    pause = threading.Event()
    for number in count():
        try:
            playground.pay_twice()
            if number % PLAN_EVERY == 0:
                playground.plan()
            if (
                number == 0
                and not playground.once.jobs.find(
                    states=[State.QUEUED, State.RUNNING, State.BURIED], task=playground.poison.name, limit=1
                ).items
            ):
                playground.send_poison()
        except Exception as error:  # noqa: BLE001 - the server may be restarting: they come again
            _logger.warning("a customer was turned away: %s", error)
        pause.wait(PAY_EVERY)
