"""What of this machine matters to the figures; nothing that tells whose it is."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version

import psycopg
from redis.utils import HIREDIS_AVAILABLE


def facts() -> dict[str, str]:
    """Give the facts by name."""
    return {
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}",
        "load when started": f"{os.getloadavg()[0]:.1f}",
        "Python": platform.python_version(),
        "redis-py": f"{version('redis')}, {'with' if HIREDIS_AVAILABLE else 'without'} hiredis",
        "psycopg": f"{version('psycopg')} ({psycopg.pq.__impl__})",
        "msgspec": version("msgspec"),
        "celery": version("celery"),
    }
