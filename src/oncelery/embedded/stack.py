"""Stack: all that an app needs on this machine, started in order, started again when it dies, stopped in good order."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from oncelery.embedded.process import ServerProcess
from oncelery.embedded.server import EmbeddedServer
from oncelery.embedded.service import VARIABLE, ServiceProcess
from oncelery.embedded.worker import WorkerProcess
from oncelery.errors import ConfigurationError

#: The schemes of a Redis, and its port where a URL names none.
REDIS = frozenset({"redis", "valkey"})
REDIS_PORT = 6379

#: What a URL calls this machine, where our Valkey would be found: it listens on IPv4 alone.
HERE = frozenset({"localhost", "127.0.0.1"})

#: How long a look whether somebody listens may take.
LOOK_SECONDS = 1.0


class Stack:
    """A private Valkey, if the app has no server of its own that is there; the service; a worker."""

    def __init__(
        self,
        folder: Path,
        *,
        app: str,
        api: str,
        broker: str | None = None,
        store: str | None = None,
        port: int = 0,
        concurrency: int,
    ) -> None:
        self.server: EmbeddedServer | None = None
        if (its_port := port_wanted(broker, store)) is not None:
            self.server = EmbeddedServer(folder, its_port)
        self._unsaid = {"CELERY_BROKER_URL": broker, "ONCELERY_STORE": store}
        #: Filled when the server's port is known, before those who read it are started.
        self.environment: dict[str, str] = {VARIABLE: app}
        self.service = ServiceProcess(folder / "service", api=api, port=port, environment=self.environment)
        # What a worker does for other workers takes it a second at its start.
        options = ("--hostname", "up@%h", "--concurrency", str(concurrency), "--without-mingle", "--without-gossip")
        self.worker = WorkerProcess(folder / "worker", app, *options, environment=self.environment)
        self._running = ExitStack()

    @property
    def parts(self) -> Mapping[str, ServerProcess]:
        """The processes, by what a person calls them."""
        parts: dict[str, ServerProcess] = {"Valkey": self.server} if self.server else {}
        return parts | {"service": self.service, "worker": self.worker}

    def __enter__(self) -> Self:
        with ExitStack() as running:
            for part in self.parts.values():
                running.enter_context(part)
                if part is self.server:
                    self.environment |= self._addresses(self.server.url)
            self._running = running.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._running.close()

    def revive(self) -> Iterator[str]:
        """Start again what has ended, and name it."""
        for name, part in self.parts.items():
            if not part.is_running:
                part.restart()
                yield name

    def _addresses(self, url: str) -> dict[str, str]:
        """Name the server to an app that names none: for messages and ledger, in databases of their own."""
        databases = {"CELERY_BROKER_URL": url, "ONCELERY_STORE": url.removesuffix("/0") + "/1"}
        return {name: address for name, address in databases.items() if not self._unsaid[name]}


def port_wanted(*urls: str | None) -> int | None:
    """Tell on which port a Redis is missing that an app counts on; 0: any, None: it has what it needs."""
    ports = {place for url in urls if url and (place := _missing(url))}
    if len(ports) > 1:
        raise ConfigurationError(
            f"your app names servers on ports {', '.join(map(str, sorted(ports)))}, and none is there: "
            "name one, with databases of their own (redis://localhost:6379/0 and /1)"
        )
    return next(iter(ports), None if all(urls) else 0)


def _missing(url: str) -> int | None:
    """Tell the port of a Redis on this machine where nobody listens."""
    place = urlsplit(url)
    if place.scheme not in REDIS or place.hostname not in HERE:
        return None
    port = place.port or REDIS_PORT
    try:
        with socket.create_connection((place.hostname, port), LOOK_SECONDS):
            return None
    except OSError:
        return port
