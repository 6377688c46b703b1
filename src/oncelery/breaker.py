"""Breaker: whether a peer answers. One look at a time finds out, so that callers do not wait for a silent peer."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait
from time import monotonic

_logger = logging.getLogger("oncelery")

#: How many seconds longer than a look may take a caller waits for it, so that it is late by then.
MARGIN = 0.05


class Breaker:
    """Open while a peer, such as the store or the broker, does not answer.

    One look at a time asks the peer, in its own thread; all callers share it. A look that takes longer than
    `seconds` is trouble. It ends by itself, and no second one starts until then.
    """

    def __init__(self, ask: Callable[[], object], *, name: str, seconds: float = 2.0, every: float = 1.0) -> None:
        self._ask = ask
        self._name = name
        #: How long a look may take.
        self.seconds = seconds
        #: How long its answer is good.
        self._every = every
        self._look: Future[None] | None
        self._began: float
        self._ended: float
        self._trouble: str
        self.forget()
        _breakers.add(self)

    @property
    def trouble(self) -> str:
        """Why not to ask the peer now; empty if it answers. While there is trouble, this starts the next look."""
        if self.is_late:
            self._change(f"no answer within {self.seconds:g} seconds")
        known = self._trouble
        if known:
            self.look()
        return known

    @property
    def is_late(self) -> bool:
        """Whether a look is under way that has taken too long."""
        return self._look is not None and not self._look.done() and monotonic() - self._began > self.seconds

    def look(self) -> Future[None]:
        """Return the look that is under way, or the last one if it is fresh; else start one."""
        with self._lock:
            ended = self._look is not None and self._look.done()
            if self._look is None or (ended and monotonic() - self._ended >= self._every):
                look: Future[None] = Future()
                self._began = monotonic()
                # Before it is noted: where no thread can be started, the next call tries again.
                threading.Thread(target=self._run, args=(look,), name=f"oncelery-{self._name}", daemon=True).start()
                self._look = look
            return self._look

    def looked(self) -> str:
        """Look, wait for that no longer than it may take, and return the trouble."""
        wait([self.look()], self.seconds + MARGIN)
        return self.trouble

    def forget(self) -> None:
        """Start as if nothing were known: in a forked child no look is under way."""
        self._lock = threading.Lock()
        self._look = None
        self._began = self._ended = 0.0
        self._trouble = ""

    def _run(self, look: Future[None]) -> None:
        try:
            self._ask()
        except Exception as error:  # noqa: BLE001 - of whichever driver
            self._change(str(error) or type(error).__name__)
        else:
            self._change("")
        finally:
            self._ended = monotonic()
            look.set_result(None)

    def _change(self, trouble: str) -> None:
        before, self._trouble = self._trouble, trouble
        if trouble and not before:
            _logger.warning("the %s does not answer: %s", self._name, trouble)
        elif before and not trouble:
            _logger.info("the %s answers again", self._name)


_breakers: weakref.WeakSet[Breaker] = weakref.WeakSet()


def _forget_all() -> None:
    for breaker in _breakers:
        breaker.forget()


os.register_at_fork(after_in_child=_forget_all)
