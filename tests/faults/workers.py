"""Real `celery worker`s in processes of their own, to be killed, paused and stopped as they will be in production.

with Workers(folder) as workers:
    worker = workers.start("shop.tasks", broker=broker, store=url, env=journal.environment | environment(failpoint))
    worker.kill_child()
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from faults import readiness
from faults.brokers import Broker
from oncelery.embedded.process import PATIENCE_SECONDS, ServerProcess, eventually
from oncelery.errors import OnceleryError

#: From where a worker imports its app, as the tests do.
TESTS = Path(__file__).parents[1]

#: Leaves out what a worker does for other workers, which takes it a second at its start.
ALONE = ("--without-mingle", "--without-gossip", "--without-heartbeat")

#: How long a worker may take to stop. A task that ends just when the pool closes holds it up for 30 s (billiard's child
#: waits for someone to read the result), so less would kill what would have ended by itself.
STOP_SECONDS = 60.0

#: Signals for the worker and all its children; others are for the worker, which tells its children what it likes.
FOR_ALL = {signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT}


class Workers:
    """Starts workers, each with a folder of its own, and ends whatever is left of them at the end of the block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[Worker] = []

    def start(
        self,
        app_module: str,
        *,
        broker: Broker,
        store: str = "",
        pool: str = "prefork",
        concurrency: int = 2,
        queues: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        settings: Mapping[str, object] | None = None,
        options: Sequence[str] = ALONE,
    ) -> Worker:
        """Start a worker for the app and return when it takes tasks.

        `settings` go over the app's configuration, `options` are for the command line, `store` is in ONCELERY_STORE.
        """
        command = [sys.executable, "-m", "celery", "--app", app_module, "worker", "--loglevel", "INFO"]
        command += ["--hostname", f"worker-{secrets.token_hex(4)}@localhost", "--include", readiness.__name__]
        command += ["--pool", pool, "--concurrency", str(concurrency), *options]
        command += ["--queues", ",".join(queues)] if queues else []
        changes = broker.settings | dict(settings or {})
        command += [f"{name}=(json){json.dumps(value)}" for name, value in changes.items()]
        environment = {"ONCELERY_STORE": store} if store else {}
        worker = Worker(self.folder / f"worker-{len(self.started) + 1}", command, environment | dict(env or {}))
        self.started.append(worker)
        return worker.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for worker in self.started:
            worker.kill()
            worker.stop()


class Worker(ServerProcess):
    """A worker that takes tasks when `start()` returns. Its log is in `log_file`.

    `kill`, `pause` and `resume` are for it and all its children; `restart` is also for a killed one.
    """

    #: For when the test's own process dies: nothing may be left.
    stop_signal = signal.SIGKILL

    def __init__(self, folder: Path, command: Sequence[str], environment: Mapping[str, str]) -> None:
        super().__init__(folder)
        self.command = command
        self.environment = environment

    @property
    def url(self) -> str:
        """A worker is nobody's server."""
        raise NotImplementedError

    @property
    def log(self) -> str:
        """What it has said since its first start."""
        return self.log_file.read_text(errors="replace")

    @property
    def status(self) -> int | None:
        """What it exited with; negative for the signal that ended it, None while it runs."""
        return None if self._process is None else self._process.poll()

    def children(self) -> list[psutil.Process]:
        """Give the processes that run its tasks; a pool other than prefork has none."""
        return psutil.Process(self.pid).children()

    def kill_child(self, pid: int | None = None) -> int:
        """Kill one of its children, any or the given one, and return its id when it is gone."""
        child = next((child for child in self.children() if pid in {None, child.pid}), None)
        if child is None:
            raise OnceleryError(f"the worker has no child {pid or ''} among {self.children()}")
        child.kill()
        eventually(lambda: is_gone(child), PATIENCE_SECONDS)
        return child.pid

    def kill(self) -> None:
        """End the worker and all its children as a power cut would, and return when they are gone."""
        family = self.children() if self.is_running else []
        super().kill()
        eventually(lambda: all(is_gone(process) for process in family), PATIENCE_SECONDS)

    def stop(self, number: signal.Signals = signal.SIGTERM, *, within: float = STOP_SECONDS) -> None:
        """Ask the worker to end: by SIGTERM after its running tasks, by SIGQUIT at once. After the time, kill it."""
        self._signal(number)
        self.resume()
        eventually(lambda: not self.is_running, within)
        super().stop()

    def _command(self) -> list[str]:
        return [*self.command]

    def _environment(self) -> dict[str, str]:
        path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
        return {"PYTHONPATH": path, readiness.VARIABLE: str(self._ready_file), **self.environment}

    def _answers(self) -> bool:
        return self._ready_file.exists() and self._ready_file.read_text() == str(self.pid)

    @property
    def _ready_file(self) -> Path:
        return self.folder / "ready"

    def _signal(self, number: signal.Signals) -> None:
        if number not in FOR_ALL:
            super()._signal(number)
        elif self.is_running:
            # It leads a group of its own, which may end between the look and the signal.
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)


def is_gone(process: psutil.Process) -> bool:
    """Whether the process has ended, even if nobody has asked yet how."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
