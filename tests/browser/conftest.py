"""A service with a worker, and a real Chromium that looks at it."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import uvicorn
from conftest import IN_CI
from fastapi import FastAPI
from faults.brokers import Broker
from faults.workers import Worker, Workers
from guarded.world import World
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from oncelery.embedded.process import eventually
from oncelery.http import create_app

#: Any of these will do; the first is what `make test` installs.
CHROMIUM = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")

#: How long a page may take to show something, in milliseconds; reached only by a test that fails.
PATIENCE = 30_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Give the system's Chromium; only for a module, because while it is there no other loop can run in this thread."""
    path = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if path is None:
        missing = f"no Chromium is installed ({', '.join(CHROMIUM)})"
        if IN_CI:
            pytest.fail(missing)
        pytest.skip(missing)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@dataclass(frozen=True, slots=True)
class Visit:
    """A browser window on a service."""

    page: Page
    url: str
    #: What the console has complained about, such as a script that the policy of the page refused.
    complaints: list[str]

    def open(self, path: str = "/") -> Page:
        """Go to a page of the dashboard."""
        self.page.goto(f"{self.url}/dashboard{path}")
        return self.page


Open = Callable[..., Visit]


@pytest.fixture
def window(browser: Browser) -> Iterator[Open]:
    """Give what opens windows."""
    contexts: list[BrowserContext] = []

    def open_window(url: str, **options: Any) -> Visit:  # noqa: ANN401 - Playwright's
        options.setdefault("viewport", {"width": 1440, "height": 900})
        context = browser.new_context(**options)
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        page = context.new_page()
        visit = Visit(page, url, [])
        page.on("console", lambda message: visit.complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: visit.complaints.append(str(error)))
        return visit

    yield open_window
    for context in contexts:
        context.close()


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """Serve an app on a free port of this machine."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1, lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        assert eventually(lambda: server.started, 30)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join(30)


@pytest.fixture(scope="module")
def service(world: World) -> Iterator[str]:
    """Give the address of the whole service of this module's world."""
    with served(create_app(world.once, tasks=["joining", "heeds", "reports"])) as url:
        yield url


@pytest.fixture(scope="module")
def worker(world: World, crew: Workers, broker_here: Broker) -> Worker:
    """Give a worker of this module's world."""
    return world.start(crew, broker=broker_here)
