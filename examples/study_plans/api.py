"""The service: a route to ask for a plan, one that is called back when it has ended, and Oncelery's under /api."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from examples.study_plans.app import make_plan, once
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

from oncelery import WebhookVerificationError, verify_webhook
from oncelery.http import Access, Caller, Role, create_router, map_errors, submit
from oncelery.http.dashboard import create_dashboard

PAGE = Path(__file__).parent / "page"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'"
)

access = Access()  # without keys: this machine alone

api = FastAPI(title="Study plans")
# Jobs to watch (as server-sent events) and to cancel, duplicates to look through. No task: plans are asked for below.
api.include_router(create_router(once), prefix="/api")
map_errors(api, jobs_url="/api/jobs")
api.mount("/dashboard", create_dashboard(once, api="/api"))
api.mount("/page", StaticFiles(directory=PAGE))

#: The ends that we were told of, by the id of the call-back: one that comes again is the same.
heard: dict[str, dict[str, Any]] = {}


@api.post("/projects/{project}/plan")
async def ask(project: str, request: Request, caller: Annotated[Caller, Depends(access(Role.SUBMIT))]) -> Response:
    """Ask for a plan: 202 with the job, or 409 with that which is under way for this project."""
    hook = str(request.url_for("hear"))
    return await submit(
        make_plan, [project], notify=hook, caller=caller.name or "page", request=request, jobs_url="/api/jobs"
    )


@api.post("/hooks/plans", status_code=204)
async def hear(request: Request) -> None:
    """Hear that a plan has ended, from one who can sign it."""
    try:
        event = verify_webhook(await request.body(), request.headers, once.settings.webhook_secrets)
    except WebhookVerificationError as error:
        raise HTTPException(400, str(error)) from None
    heard[request.headers["webhook-id"]] = event["data"]


@api.get("/projects/{project}/ends")
async def ends(project: str, _caller: Annotated[Caller, Depends(access(Role.READ))]) -> list[dict[str, Any]]:
    """Tell which call-backs have come for a project."""
    return [end for end in heard.values() if end["scope"] == project]


@api.get("/", include_in_schema=False)
async def page() -> FileResponse:
    """Show the page."""
    return FileResponse(PAGE / "index.html", headers={"Content-Security-Policy": POLICY})
