"""A worker's main process asks the ledger in a thread beside its loop, which serves plain tasks as well.

A store that does not answer would stop the loop, and with it every task of the worker, guarded or not.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from celery import bootsteps
from celery.concurrency.prefork import TaskPool as Prefork
from celery.worker.consumer.tasks import Tasks

from oncelery.errors import OnceleryError, StoreUnavailableError

if TYPE_CHECKING:
    from oncelery.celery.extension import Oncelery

T = TypeVar("T")
Act = Callable[[], Any]
Then = Callable[[Any], object]

_logger = logging.getLogger("oncelery")

#: How long a store that did not answer is not asked again, in seconds.
PAUSE = 2.0

#: How long a worker that ends waits for its last reports to be sent, in seconds.
FAREWELL_SECONDS = 1.0


def _ignore(_: object) -> None:
    pass


class Background:
    """Runs what asks the ledger, in order, and brings each answer back to the worker's loop.

    While no worker runs here, everything is done at once.
    """

    def __init__(self) -> None:
        self._consumer: Any = None
        self._thread: Thread | None = None
        self._asked: SimpleQueue[tuple[Act, Then]] = SimpleQueue()
        self._answered: deque[tuple[Then, Any]] = deque()
        self._silent_until = 0.0
        #: Whether tasks are run, and their messages opened, in processes other than this one.
        self.opens_elsewhere = False

    def start(self, consumer: Any) -> None:
        """Ask beside the loop of this consumer from now on."""
        self.opens_elsewhere = isinstance(consumer.pool, Prefork)
        if self._thread is None or not self._thread.is_alive():
            self._thread = Thread(target=self._work, name="oncelery-background", daemon=True)
            self._thread.start()
        self._consumer = consumer
        self._wake()

    def stop(self) -> None:
        """Ask at once again: the loop has ended, perhaps until its broker is back."""
        self._consumer = None

    def finish(self) -> None:
        """Wait a moment for the answers that are still due."""
        done = Event()
        self._asked.put((done.set, _ignore))
        if self._thread:
            done.wait(FAREWELL_SECONDS)

    def ask(self, act: Act, then: Then = _ignore) -> None:
        """Run `act` in the thread, then `then` on the loop with its answer: None if the ledger did not answer."""
        if self._consumer is None:
            then(self.attempt(act))
        else:
            self._asked.put((act, then))

    @property
    def is_silent(self) -> bool:
        """Whether the store did not answer a moment ago, so that it is not asked."""
        return monotonic() < self._silent_until

    def leave_alone(self) -> None:
        """Do not ask for a while: the store did not answer."""
        self._silent_until = monotonic() + PAUSE

    def attempt(self, act: Callable[[], T]) -> T | None:
        """Run `act`, unless the store is silent; return None if the ledger did not answer."""
        if self.is_silent:
            return None
        try:
            return act()
        except OnceleryError as error:
            if isinstance(error, StoreUnavailableError):
                self.leave_alone()
            _logger.warning("could not ask the ledger: %s", error)
        except Exception:
            _logger.exception("unexpected error in the background work of a worker")
        return None

    def _work(self) -> None:
        while True:
            act, then = self._asked.get()
            try:
                answer = self.attempt(act)
            except BaseException:
                # A payload may try to end the process. Without this thread nothing would be answered any more.
                _logger.exception("unexpected error in the background work of a worker")
                answer = None
            if then is not _ignore:
                self._answered.append((then, answer))
                self._wake()

    def _wake(self) -> None:
        consumer = self._consumer
        if consumer is None or not self._answered:
            return
        if getattr(consumer.pool, "is_green", False):
            # Celery's loop would see it in two seconds. Greenlets do not interrupt each other.
            self._go_on()
        else:
            consumer.call_soon(self._go_on)

    def _go_on(self) -> None:
        while self._answered:
            then, answer = self._answered.popleft()
            try:
                then(answer)
            except Exception:
                # Raised, it would end the worker's loop. The message comes again.
                _logger.exception("could not handle an answer of the ledger")


class BackgroundStep(bootsteps.StartStopStep):
    """The worker's step: has its main process ask the ledger beside its loop."""

    requires = (Tasks,)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        once: Oncelery = consumer.app.oncelery
        self._background = once.background

    def start(self, consumer: Any) -> None:
        """Ask beside the loop."""
        self._background.start(consumer)

    def stop(self, _consumer: Any) -> None:
        """Ask at once again."""
        self._background.stop()

    def shutdown(self, _consumer: Any) -> None:
        """Report what is left to report."""
        self._background.finish()
