"""WebServer: the HTTP service in a process of its own, to be killed, paused and restarted."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import httpx2

from oncelery.embedded.process import ServerProcess

#: From where a server imports its app, as the tests do.
TESTS = Path(__file__).parents[1]


class WebServer(ServerProcess):
    """uvicorn, serving an app of the tests."""

    stop_signal = signal.SIGKILL

    def __init__(self, folder: Path, app: str, environment: Mapping[str, str]) -> None:
        super().__init__(folder)
        self.app = app
        self.environment = environment

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"http://127.0.0.1:{self.port}"

    def _command(self) -> list[str]:
        options = ["--host", "127.0.0.1", "--port", str(self.port), "--log-level", "warning"]
        return [sys.executable, "-m", "uvicorn", self.app, *options]

    def _environment(self) -> dict[str, str]:
        path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
        return {"PYTHONPATH": path, **self.environment}

    def _answers(self) -> bool:
        try:
            return httpx2.get(f"{self.url}/healthz", timeout=1).status_code == 200
        except httpx2.TransportError:
            return False
