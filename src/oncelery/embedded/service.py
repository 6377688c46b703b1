"""ServiceProcess: the HTTP service, with its dashboard, in a process that ends with this one."""

from __future__ import annotations

import os
import secrets
import sys
import urllib.request
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import HTTPError

from celery.app.utils import find_app

from oncelery.celery.extension import Oncelery
from oncelery.celery.task import IdempotentTask
from oncelery.embedded.process import LOOPBACK, ServerProcess
from oncelery.errors import ConfigurationError

if TYPE_CHECKING:
    from fastapi import FastAPI

#: Tells a server which app it serves, named as for `celery -A`.
VARIABLE = "ONCELERY_APP"

#: By this header it is known that this server answers, and not another on its port.
HEADER = "X-Oncelery-Up"

#: How long a server may take to answer one look, while we wait for it to become ready.
LOOK_SECONDS = 1.0


class ServiceProcess(ServerProcess):
    """uvicorn on loopback, serving an ASGI app, `module:attribute`, or what a `module:function()` makes."""

    def __init__(self, folder: Path | str, *, api: str, port: int, environment: Mapping[str, str]) -> None:
        missing = [package for package in ("fastapi", "uvicorn") if find_spec(package) is None]
        if missing:
            raise ConfigurationError(f"the service needs {' and '.join(missing)}: pip install 'oncelery[dashboard]'")
        super().__init__(folder, port=port)
        self.api = api
        self.environment = environment
        self._token = secrets.token_hex(8)

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"http://{LOOPBACK}:{self.port}"

    def _command(self) -> list[str]:
        command = [sys.executable, "-m", "uvicorn", self.api.removesuffix("()"), "--host", LOOPBACK]
        command += ["--factory"] if self.api.endswith("()") else []
        command += ["--port", str(self.port), "--log-level", "warning", "--header", f"{HEADER}:{self._token}"]
        # Pages that are open have streams, which would else hold up its end.
        return [*command, "--timeout-graceful-shutdown", "1"]

    def _environment(self) -> dict[str, str]:
        return {**self.environment}

    def _answers(self) -> bool:
        # Past any proxy that the environment names: it is this machine that is asked. And its first answer is enough:
        # the page that it may lead to would ask for the worker, which is not there yet.
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), _Stay)
        try:
            with direct.open(self.url, timeout=LOOK_SECONDS) as answer:
                return bool(answer.headers.get(HEADER) == self._token)
        except HTTPError as refusal:
            # It may have nothing to show there, or to nobody.
            with refusal:
                return bool(refusal.headers.get(HEADER) == self._token)
        except OSError:
            return False


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows nothing."""

    def redirect_request(self, *_: object) -> None:
        """Leave a redirection as it is."""


def serve() -> FastAPI:
    """Make the service of the app that the environment names; a factory for uvicorn."""
    return serve_all(Oncelery.of(find_app(os.environ[VARIABLE])))


def serve_all(once: Oncelery) -> FastAPI:
    """Make the service of all guarded tasks of an app."""
    from oncelery.http import create_app  # noqa: PLC0415 - not for those who only start servers

    return create_app(once, tasks=tasks_of(once))


def tasks_of(once: Oncelery) -> list[IdempotentTask]:
    """Give the guarded tasks that are the app's own, as a worker would find them."""
    once.app.loader.import_default_modules()
    tasks = (task for task in once.app.tasks.values() if isinstance(task, IdempotentTask))
    return [task for task in tasks if not task.name.startswith("oncelery.")]
