"""Letting go of what an app has opened in the process of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from oncelery import Oncelery


@contextmanager
def closed(once: Oncelery) -> Iterator[None]:
    """Leave none of the app's connections open after the block: not to its ledger, and not to its results."""
    try:
        yield
    finally:
        # What is counted and not told yet would open the ledger again, some seconds later.
        once.counting.start_anew()
        once.counting.by_itself = False
        once.ledger.store.close()
        backend: Any = once.app.backend
        if pool := getattr(getattr(backend, "client", None), "connection_pool", None):
            pool.disconnect()
