"""`create_router(once, tasks=[…])`: the routes, for an app of yours."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fastapi import APIRouter

from oncelery.http.auth import Access
from oncelery.http.body import LARGEST
from oncelery.http.dead_letters import add_dead_letters
from oncelery.http.duplicates import add_duplicates
from oncelery.http.health import add_health
from oncelery.http.jobs import add_jobs
from oncelery.http.keys import KeySource
from oncelery.http.problems import ProblemRoute
from oncelery.http.service import Service

if TYPE_CHECKING:
    from oncelery.celery.extension import Oncelery
    from oncelery.celery.task import IdempotentTask


def create_router(
    once: Oncelery,
    *,
    tasks: Iterable[IdempotentTask | str] = (),
    keys: KeySource | None = None,
    require_key: bool = False,
    largest_body: int = LARGEST,
) -> APIRouter:
    """Make the routes of the service, to be mounted: `app.include_router(create_router(once, tasks=[charge]))`.

    Args:
        once: The extension.
        tasks: What may be submitted, as tasks or by their names; nothing else can be called.
        keys: The API keys of those who may call: a file, a list of `ApiKey`, or what answers one. They are read again
            when they change. Without any, only callers on this machine are answered.
        require_key: Whether a submission must have an Idempotency-Key.
        largest_body: The most that a body may have, in bytes.
    """
    service = Service(once, tasks=tasks, access=Access(keys), require_key=require_key, largest_body=largest_body)
    router = APIRouter(route_class=ProblemRoute)
    add_jobs(router, service)
    add_dead_letters(router, service)
    add_duplicates(router, service)
    add_health(router, service)
    return router
