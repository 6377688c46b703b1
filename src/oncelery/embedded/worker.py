"""WorkerProcess: a Celery worker that ends with this process, and hands back what it was doing."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from oncelery.embedded import readiness
from oncelery.embedded.process import ServerProcess

#: Signals for the worker and its children; others are for the worker, which tells its children what it likes.
FOR_ALL = {signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT}


class WorkerProcess(ServerProcess):
    """A worker of an app, named as for `celery -A`, that takes tasks when `start()` returns; with Celery's options."""

    #: Celery's cold shutdown: the runs under way are handed back, and go on at the next start.
    stop_signal = signal.SIGQUIT

    def __init__(self, folder: Path | str, app: str, *options: str, environment: Mapping[str, str]) -> None:
        super().__init__(folder)
        self.app = app
        self.options = options
        self.environment = environment

    def _command(self) -> list[str]:
        command = [sys.executable, "-m", "celery", "--app", self.app, "worker", "--loglevel", "INFO"]
        return [*command, "--include", readiness.__name__, *self.options]

    def _environment(self) -> dict[str, str]:
        return {readiness.VARIABLE: str(self._ready_file), **self.environment}

    def _answers(self) -> bool:
        return self._ready_file.exists() and self._ready_file.read_text() == str(self.pid)

    @property
    def _ready_file(self) -> Path:
        return self.folder / "ready"

    def _signal(self, number: signal.Signals) -> None:
        if number not in FOR_ALL:
            super()._signal(number)
        elif self._process is not None:
            # It leads a group, of which some may be left when it was killed alone, or none when it has ended.
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _halt(self) -> None:
        super()._halt()
        if self._is_ours:
            self._signal(signal.SIGKILL)
