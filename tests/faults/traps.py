"""Traps: failpoints of a worker that runs already, which do nothing until a test sets them."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil

from faults.scene import SOON
from oncelery.embedded.process import eventually
from oncelery.testing.failpoints import Action, Failpoint

#: What a marker says while its trap is not set; no process has this id.
NOT_SET = "0"


class Trap:
    """Start a worker with `trap.point`; each `set()` then breaks it once."""

    def __init__(self, name: str, action: Action, folder: Path) -> None:
        self.point = Failpoint(name, action, folder)
        self._marker = Path(self.point.armings[0][2])
        self._marker.symlink_to(NOT_SET)

    def set(self) -> None:
        """Let the next process that gets there be broken."""
        self._marker.unlink()

    @property
    def caught(self) -> int | None:
        """The process that it caught."""
        pid = self._marker.readlink().name if self._marker.is_symlink() else NOT_SET
        return None if pid == NOT_SET else int(pid)

    def wake(self) -> None:
        """Let the process go on that was stopped; it may not stand still yet, just after it was caught."""
        assert self.caught is not None
        stopped = psutil.Process(self.caught)
        assert eventually(lambda: stopped.status() == psutil.STATUS_STOPPED, SOON)
        stopped.send_signal(signal.SIGCONT)

    def reset(self) -> None:
        """Be ready to be set again."""
        self._marker.unlink(missing_ok=True)
        self._marker.symlink_to(NOT_SET)
