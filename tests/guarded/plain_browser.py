"""A browser that runs no scripts, for the pages of the dashboard; and a dead letter to be seen there."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi.testclient import TestClient
from httpx2 import Response

from guarded.hand import Hand
from guarded.web import client_of
from oncelery.http import create_app
from oncelery.job import Job

PAGES = ("/", "/jobs", "/dead-letters", "/duplicates", "/tasks")


class Dashboard:
    """A browser without scripts: follows links, keeps cookies, and sends the forms that it is shown."""

    def __init__(self, client: TestClient, root: str = "/dashboard") -> None:
        self.client = client
        self.root = root

    def get(self, path: str = "/", **options: Any) -> Response:
        return self.client.get(f"{self.root}{path}", **options)

    def post(self, path: str, **fields: str | list[str]) -> Response:
        """Send a form, with the token that this browser has."""
        fields.setdefault("csrf", self.client.cookies["oncelery_csrf"])
        return self.client.post(f"{self.root}{path}", data=fields)

    def confirm(self, act: str, job_id: str, **fields: str | list[str]) -> Response:
        """Look at what is asked before, and say yes."""
        asked = self.get(f"/{act}", params={"id": job_id})
        assert asked.status_code == 200, asked.text
        return self.post(f"/{act}", id=job_id, seen=value_of(asked, "seen"), **fields)


@pytest.fixture
def board(hand: Hand) -> Iterator[Dashboard]:
    """Give a browser of this machine that looks at the hand's dashboard."""
    with looking_at(hand) as dashboard:
        yield dashboard


@contextmanager
def looking_at(hand: Hand) -> Iterator[Dashboard]:
    """Give a browser on this machine, on a service without API keys, which has seen a page."""
    with client_of(create_app(hand.once, tasks=["joining"])) as client:
        dashboard = Dashboard(client)
        dashboard.get("/sign-in")
        yield dashboard


def value_of(page: Response, name: str) -> str:
    found = re.search(rf'name="{name}" value="([^"]*)"', page.text)
    assert found, page.text
    return html.unescape(found[1])


def text_of(page: Response) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page.text)).split())


def bury(hand: Hand, name: str = "", kind: str = "refused") -> str:
    job_id: str = hand.tasks.raises.delay(name or hand.name(), kind).id
    hand.deliver_all()
    assert hand.job(job_id).state == "buried"
    return job_id


def seen_of(job: Job) -> str:
    return f"{job.state} {job.fence}"


def letters_of(hand: Hand, *job_ids: str) -> list[str]:
    """Name these as they stand, as a form does that is about many."""
    return [f"{seen_of(hand.job(job_id))} {job_id}" for job_id in job_ids]
