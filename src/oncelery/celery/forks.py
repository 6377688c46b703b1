"""No child is forked while a thread of the worker's main process uses Celery's broker or results.

Their clients have locks. A child that is forked while a thread holds one finds it locked for ever, by a thread that the
child does not have. The ledger's own clients need no such care.
"""

from __future__ import annotations

import os
import threading

#: How long a fork waits for a thread that is at work, in seconds. No longer, because the worker's loop forks. If a
#: child then hangs, Celery replaces it.
PATIENCE = 1.0

#: Held by a thread of the main process, beside its loop, while it uses what is Celery's.
no_fork = threading.RLock()


class _Held:
    """Whether the fork that is under way has waited in vain."""

    in_vain = False


def _before() -> None:
    _Held.in_vain = not no_fork.acquire(timeout=PATIENCE)


def _after() -> None:
    if not _Held.in_vain:
        no_fork.release()


def _renew() -> None:
    global no_fork  # noqa: PLW0603 - a lock of a thread that is not here
    no_fork = threading.RLock()


os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_renew)
