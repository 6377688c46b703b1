"""A soft time limit strikes inside a task, and nowhere else.

Billiard raises it wherever the child happens to be. Between the steps of the ledger it would tear a run apart: an
effect would not be recorded, and so repeated; or a lease would be renewed for ever. And once the job is settled, a late
limit must not turn a success that is recorded into a failure that Celery tells of.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import ParamSpec, TypeVar

from celery._state import get_current_worker_task
from celery.exceptions import SoftTimeLimitExceeded

P = ParamSpec("P")
T = TypeVar("T")


class _Limit:
    """What holds in this process: in a prefork child one thread runs one task after the other."""

    #: Whether it was looked who raises limits here; and the thread in which we do, None in all other pools.
    is_known = False
    thread: int | None = None
    #: Whether a limit has to wait; and whether one has struck meanwhile.
    held_back = False
    has_struck = False
    #: The message whose job has ended: its limit comes too late.
    ended = ""


class held_back:  # noqa: N801 - reads as what it does: `with held_back(…):`
    """Lets no limit strike but inside `exposed`.

    What has struck meanwhile is raised at the end, if this is part of a task; else, with the id of a `message`, it is
    dropped, together with what may strike before the next message.
    """

    __slots__ = ("_before", "_message")

    def __init__(self, *, message: str = "") -> None:
        self._message = message

    def __enter__(self) -> None:
        if not _Limit.is_known:
            _take_over()
        if _is_here():
            self._before = _Limit.held_back
            _Limit.held_back = True
            _Limit.ended = ""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not _is_here():
            return
        _Limit.ended = self._message
        has_struck, _Limit.has_struck = _Limit.has_struck, False
        # Last: from here on one may strike again.
        _Limit.held_back = self._before
        if has_struck and not self._message and not error:
            raise SoftTimeLimitExceeded


def exposed(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call what is the task's own: a limit may strike in it, and one that has struck before strikes now."""
    if not _is_here():
        return function(*args, **kwargs)
    _Limit.held_back = False
    try:
        if _Limit.has_struck:
            _Limit.has_struck = False
            raise SoftTimeLimitExceeded
        return function(*args, **kwargs)
    finally:
        _Limit.held_back = True


def _is_here() -> bool:
    return _Limit.thread is not None and _Limit.thread == threading.get_ident()


def _take_over() -> None:
    """Put ourselves before billiard's handler, which it sets in each child after all that it calls there."""
    from billiard.pool import soft_timeout_sighandler  # noqa: PLC0415 - a publisher needs no pools

    if os.name == "posix" and signal.getsignal(signal.SIGUSR1) is soft_timeout_sighandler:
        if threading.current_thread() is not threading.main_thread():
            return
        signal.signal(signal.SIGUSR1, _strike)
        _Limit.thread = threading.get_ident()
    _Limit.is_known = True


def _strike(_number: int, frame: FrameType | None) -> None:
    # Also when the task's own code has just returned, or is about to be called.
    if _Limit.held_back or (frame and frame.f_code is exposed.__code__):
        _Limit.has_struck = True
        return
    task = get_current_worker_task()
    if _Limit.ended and (task is None or task.request.id == _Limit.ended):
        return
    raise SoftTimeLimitExceeded


def _start_anew() -> None:
    _Limit.is_known = _Limit.held_back = _Limit.has_struck = False
    _Limit.thread, _Limit.ended = None, ""


if os.name == "posix":
    os.register_at_fork(after_in_child=_start_anew)
