"""Routes for those who look after the service: metrics, liveness, readiness."""

from __future__ import annotations

import logging

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, Response

from oncelery.errors import OnceleryError
from oncelery.http import problems as p
from oncelery.http.auth import Caller
from oncelery.http.service import Service, answer_json, trouble_with_broker
from oncelery.http.threads import in_thread
from oncelery.http.views import ReadinessView
from oncelery.telemetry.prometheus import EXPOSITION, exposition

_logger = logging.getLogger("oncelery")

#: How long the broker may take to be there, in seconds.
PATIENCE = 2


def add_health(router: APIRouter, service: Service) -> None:
    """Add the routes."""
    once, reads = service.once, service.reads

    @router.get(
        "/metrics",
        tags=["health"],
        summary="All figures of the ledger, for Prometheus",
        response_class=PlainTextResponse,
        responses=p.documented(p.FORBIDDEN),
    )
    async def metrics(caller: Caller = reads) -> Response:
        if caller.scope:
            raise p.ProblemError(p.FORBIDDEN, "these are figures of all tenants")
        # What this very process has counted is among them.
        await in_thread(once.counting.flush)
        return Response(await in_thread(exposition, once.ledger), media_type=EXPOSITION)

    @router.get("/healthz", tags=["health"], summary="Whether the service is alive")
    async def healthz() -> Response:
        return answer_json({"status": "alive"})

    @router.get(
        "/readyz",
        tags=["health"],
        summary="Whether store and broker are reached",
        response_model=ReadinessView,
        responses={503: {"model": ReadinessView, "description": "One of them is not"}},
    )
    async def readyz() -> Response:
        store, broker = await in_thread(_store_is_up, service), await in_thread(_broker_is_up, service)
        seen = {"store": "up" if store else "down", "broker": "up" if broker else "down"}
        return answer_json(seen, status=200 if store and broker else 503)


def _store_is_up(service: Service) -> bool:
    try:
        service.once.ledger.get("-")
    except OnceleryError as error:
        _logger.warning("not ready, the store does not answer: %s", error)
        return False
    return True


def _broker_is_up(service: Service) -> bool:
    if error := trouble_with_broker(service.once.app, seconds=PATIENCE):
        _logger.warning("not ready, the broker does not answer: %s", error)
    return not error
