"""The worker's step that flushes counts: its main process forks, and should have no threads when it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import bootsteps
from celery.signals import worker_process_shutdown
from celery.worker.consumer.tasks import Tasks

from oncelery.telemetry.counting import FLUSH_EVERY, flush_all

if TYPE_CHECKING:
    from oncelery.celery.extension import Oncelery


class Flusher(bootsteps.StartStopStep):
    """Flushes the counts of the main process by the worker's own timer; a child does so by itself."""

    requires = (Tasks,)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._timer: Any = None

    def start(self, consumer: Any) -> None:
        """Begin to flush."""
        once: Oncelery = consumer.app.oncelery
        once.counting.by_itself = False
        self._timer = consumer.timer.call_repeatedly(FLUSH_EVERY, once.counting.flush)

    def stop(self, consumer: Any) -> None:
        """Flush what is left, and leave the rest to the process."""
        once: Oncelery = consumer.app.oncelery
        if self._timer:
            self._timer.cancel()
        once.counting.by_itself = True
        once.counting.flush()


@worker_process_shutdown.connect
def _flush_child(**_: Any) -> None:
    # A prefork child leaves without Python's own farewell.
    flush_all()
