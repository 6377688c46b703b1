"""A soft time limit strikes inside a task, and nowhere else.

Billiard raises it wherever the child happens to be. Between the steps of the ledger it would tear a run apart: an
effect would not be recorded, and so repeated; or a lease would be renewed for ever.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import ParamSpec, TypeVar

from celery.exceptions import SoftTimeLimitExceeded

P = ParamSpec("P")
T = TypeVar("T")


class _Limit:
    """What holds in this process, whose one thread runs one task after the other."""

    #: Whether this process's limits come by way of `_strike`; not so in a parent, or in a pool that has none.
    is_ours = False
    #: Whether it has to wait.
    held_back = False
    #: Whether it has struck meanwhile.
    has_struck = False


class held_back:  # noqa: N801 - reads as what it does: `with held_back(…):`
    """Lets no limit strike but inside `exposed`; what has struck after that is dropped, for the task has ended."""

    __slots__ = ("_before", "_within_another")

    def __init__(self, *, within_another: bool) -> None:
        #: Whether this is an eager call, made by a task that the limit is for.
        self._within_another = within_another

    def __enter__(self) -> None:
        if not _Limit.is_ours:
            _take_over()
        self._before = _Limit.held_back
        _Limit.held_back = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        has_struck, _Limit.has_struck = _Limit.has_struck, False
        # Last: from here on one may strike again.
        _Limit.held_back = self._before
        if has_struck and self._within_another and not error:
            raise SoftTimeLimitExceeded


def exposed(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call what is the task's own: a limit may strike in it, and one that has struck before strikes now."""
    _Limit.held_back = False
    try:
        if _Limit.has_struck:
            _Limit.has_struck = False
            raise SoftTimeLimitExceeded
        return function(*args, **kwargs)
    finally:
        _Limit.held_back = True


def _take_over() -> None:
    """Put ourselves before billiard's handler, which it sets in each child after all that it calls there."""
    from billiard.pool import soft_timeout_sighandler  # noqa: PLC0415 - a publisher needs no pools

    _Limit.is_ours = True
    if os.name == "posix" and signal.getsignal(signal.SIGUSR1) is soft_timeout_sighandler:
        signal.signal(signal.SIGUSR1, _strike)


def _strike(_number: int, frame: FrameType | None) -> None:
    # Also when the task's own code has just returned, or is about to be called.
    if _Limit.held_back or (frame and frame.f_code is exposed.__code__):
        _Limit.has_struck = True
    else:
        raise SoftTimeLimitExceeded


def _start_anew() -> None:
    _Limit.is_ours = _Limit.held_back = _Limit.has_struck = False


if os.name == "posix":
    os.register_at_fork(after_in_child=_start_anew)
