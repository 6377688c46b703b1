from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from fastapi import FastAPI, Response
from fastapi.testclient import TestClient
from guarded.hand import Hand
from guarded.web import client_of
from opentelemetry import context, trace
from opentelemetry.sdk.trace import TracerProvider

from oncelery.celery import call
from oncelery.http import create_app, submit
from oncelery.telemetry.opentelemetry import continued

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE = PARENT.split("-")[1]


@pytest.fixture
def seen() -> list[str]:
    """Give the traces in which the task has run."""
    return []


@pytest.fixture
def traced(hand: Hand, seen: list[str]) -> TestClient:
    """Give a client of a service whose task tells its trace."""

    @hand.once.task(name="traced", key="order", retry_on=OSError, backoff=hand.tasks.NO_WAIT, shared=False)
    def traced(order: str, failures: int = 0) -> None:
        seen.append(trace.format_trace_id(trace.get_current_span().get_span_context().trace_id))
        if len(seen) <= failures:
            raise OSError(order)

    return client_of(create_app(hand.once, tasks=[traced]))


def test_the_trace_of_a_post_goes_on_in_the_task(traced: TestClient, hand: Hand, seen: list[str]) -> None:
    traced.post("/jobs/traced", json={"order": "o-1"}, headers={"traceparent": PARENT, "tracestate": "a=b"})
    traced.post("/jobs/traced", json={"order": "o-2"})

    delivered = hand.deliver_all()

    assert seen == [TRACE, "0" * 32]
    assert [delivered[0].headers[name] for name in ("traceparent", "tracestate")] == [PARENT, "a=b"]
    assert not trace.get_current_span().get_span_context().is_valid


def test_the_trace_goes_on_in_a_retry_and_in_a_message_that_is_published_again(
    traced: TestClient, hand: Hand, seen: list[str]
) -> None:
    order = {"order": "o-1", "failures": 1}
    with hand.broker_down():
        job_id = traced.post("/jobs/traced", json=order, headers={"traceparent": PARENT}).json()["id"]
    hand.clock.advance(seconds=4000)
    hand.once.sweep()

    hand.deliver_all()

    assert seen == [TRACE, TRACE]
    assert hand.job(job_id).state == "completed"


def test_a_trace_that_is_under_way_in_your_route_goes_on_in_the_task(hand: Hand, seen: list[str]) -> None:
    app, tracer = FastAPI(), TracerProvider().get_tracer("test")

    @hand.once.task(name="traced", shared=False)
    def traced(_name: str) -> None:
        seen.append(trace.format_trace_id(trace.get_current_span().get_span_context().trace_id))

    started = []

    @app.post("/orders/{name}")
    async def order(name: str) -> Response:
        with tracer.start_as_current_span("order") as span:
            started.append(trace.format_trace_id(span.get_span_context().trace_id))
            return await submit(traced, [name])

    client_of(app).post("/orders/o-1", headers={"traceparent": PARENT})
    hand.deliver_all()

    assert seen == started != ["0" * 32]


def test_a_span_that_an_instrumentation_has_begun_is_left_alone() -> None:
    with TracerProvider().get_tracer("test").start_as_current_span("run") as span, continued({"traceparent": PARENT}):
        assert trace.get_current_span() is span


@contextmanager
def not_installed(monkeypatch: pytest.MonkeyPatch, module: str) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, module, None)
        yield


def test_without_opentelemetry_a_worker_runs_the_task_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    before = context.get_current()

    with not_installed(monkeypatch, "oncelery.telemetry.opentelemetry"), call.traced({"traceparent": PARENT}):
        assert context.get_current() == before
