"""Where a test server keeps its data: a new folder for each, which the server removes when it stops."""

from __future__ import annotations

import tempfile
from pathlib import Path


def fresh_folder(name: str) -> Path:
    """Make an empty folder that nobody else uses."""
    return Path(tempfile.mkdtemp(prefix=f"oncelery-{name}-"))
