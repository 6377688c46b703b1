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
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from faults.brokers import Broker
from oncelery.embedded.process import PATIENCE_SECONDS, eventually
from oncelery.embedded.worker import WorkerProcess
from oncelery.errors import OnceleryError

#: From where a worker imports its app, as the tests do.
TESTS = Path(__file__).parents[1]

#: Leaves out what a worker does for other workers, which takes it a second at its start.
ALONE = ("--without-mingle", "--without-gossip", "--without-heartbeat")

#: How long a worker may take to stop. A task that ends just when the pool closes holds it up for 30 s (billiard's child
#: waits for someone to read the result), so less would kill what would have ended by itself.
STOP_SECONDS = 60.0


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
        given = ["--hostname", f"worker-{secrets.token_hex(4)}@localhost", "--pool", pool]
        given += ["--concurrency", str(concurrency), *options]
        given += ["--queues", ",".join(queues)] if queues else []
        changes = broker.settings | dict(settings or {})
        given += [f"{name}=(json){json.dumps(value)}" for name, value in changes.items()]
        path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
        environment = {"PYTHONPATH": path} | ({"ONCELERY_STORE": store} if store else {}) | dict(env or {})
        worker = Worker(self.folder / f"worker-{len(self.started) + 1}", app_module, *given, environment=environment)
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


class Worker(WorkerProcess):
    """A worker that takes tasks when `start()` returns. Its log is in `log_file`.

    `kill`, `pause` and `resume` are for it and all its children; `restart` is also for a killed one.
    """

    #: For when the test's own process dies: nothing may be left.
    stop_signal = signal.SIGKILL

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


def is_gone(process: psutil.Process) -> bool:
    """Whether the process has ended, even if nobody has asked yet how."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
