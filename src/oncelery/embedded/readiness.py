"""Included by a worker that a WorkerProcess starts: tells in a file that it takes tasks."""

from __future__ import annotations

import os
from pathlib import Path

from celery.signals import worker_ready

#: Tells a worker which file.
VARIABLE = "ONCELERY_READY_FILE"


@worker_ready.connect
def tell(**_: object) -> None:
    """Write this process's id, by which a file of an earlier worker is known."""
    Path(os.environ[VARIABLE]).write_text(str(os.getpid()))
