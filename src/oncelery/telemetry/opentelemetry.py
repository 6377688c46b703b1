"""A trace goes on from whoever submits a job to the task that runs it: by the W3C headers of its message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import context, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

#: The headers that carry a trace.
HEADERS = ("traceparent", "tracestate")

_w3c = TraceContextTextMapPropagator()


def carried(headers: Mapping[str, str]) -> dict[str, str]:
    """Give the headers of the trace that is under way here, or else of the one that the request's headers tell of."""
    if _is_under_way():
        own: dict[str, str] = {}
        _w3c.inject(own)
        return own
    return {name: headers[name] for name in HEADERS if name in headers}


@contextmanager
def continued(headers: Mapping[str, str]) -> Iterator[None]:
    """Let spans that begin in the block belong to the trace of a message, unless one is under way already."""
    if _is_under_way():
        yield
        return
    token = context.attach(_w3c.extract(headers))
    try:
        yield
    finally:
        context.detach(token)


def _is_under_way() -> bool:
    return trace.get_current_span().get_span_context().is_valid
