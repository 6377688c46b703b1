"""Clients of the HTTP service in the test's own process, from this machine: that is who it answers without API keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from httpx2 import Response

from guarded.hand import Hand
from oncelery.http import create_app

#: What may be submitted.
EXPOSED = ("joining", "rejecting", "trailing", "excluding", "scoped", "raises", "reports", "returns", "takes-models")

HERE = ("127.0.0.1", 50000)


@pytest.fixture
def client(hand: Hand) -> Iterator[TestClient]:
    """Give a client on this machine, of a service without API keys."""
    with client_of(create_app(hand.once, tasks=EXPOSED)) as client:
        yield client


def client_of(app: FastAPI, *, host: str = HERE[0], name: str = "localhost") -> TestClient:
    """Give a client that calls from a host, and calls the service by a name."""
    return TestClient(app, base_url=f"http://{name}", client=(host, HERE[1]))


def problem(answer: Response) -> str:
    """Tell which problem an answer is, whole as RFC 9457 has it."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    told: dict[str, Any] = answer.json()
    assert told["status"] == answer.status_code
    assert told["title"]
    assert told["detail"]
    return str(told["type"]).removeprefix("urn:problem-type:oncelery:")
