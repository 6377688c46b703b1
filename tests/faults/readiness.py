"""Included by the workers that tests start: tells in a file that the worker takes tasks."""

from __future__ import annotations

import os
from pathlib import Path

from celery.signals import worker_ready

#: Tells a worker which file.
VARIABLE = "WORKER_READY_FILE"


@worker_ready.connect
def tell(**_: object) -> None:
    """Write this process's id, by which a file of an earlier worker is known."""
    Path(os.environ[VARIABLE]).write_text(str(os.getpid()))
