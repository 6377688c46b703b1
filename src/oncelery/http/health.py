"""Routes for those who look after the service: metrics, liveness, readiness."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, Response

from oncelery.http import problems as p
from oncelery.http.auth import Caller
from oncelery.http.service import Service, answer_json
from oncelery.http.threads import looked
from oncelery.http.views import ReadinessView
from oncelery.telemetry.prometheus import DOWN, EXPOSITION, exposition


def add_health(router: APIRouter, service: Service) -> None:
    """Add the routes."""
    once, peers, reads = service.once, service.peers, service.reads

    @router.get(
        "/metrics",
        tags=["health"],
        summary="All figures of the ledger, for Prometheus",
        response_class=PlainTextResponse,
        responses=p.documented(p.FORBIDDEN, p.OVERLOADED),
    )
    async def metrics(caller: Caller = reads) -> Response:
        if caller.scope:
            raise p.ProblemError(p.FORBIDDEN, "these are figures of all tenants")
        try:
            # What this very process has counted is among them.
            await peers.read(once.counting.flush)
            figures = await peers.read(exposition, once.ledger)
        except p.ProblemError as error:
            if error.problem is not p.STORE_UNAVAILABLE:
                raise
            figures = DOWN
        return Response(figures, media_type=EXPOSITION)

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
        # One look for all who ask at once, in a thread of its own: anybody may ask, as often as they like.
        store, broker = await asyncio.gather(looked(peers.store), looked(peers.broker))
        seen = {"store": "down" if store else "up", "broker": "down" if broker else "up"}
        return answer_json(seen, status=503 if store or broker else 200)
