"""Waiting for a job to change: any number of clients, one thread that looks."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from oncelery.breaker import Breaker
from oncelery.errors import StoreUnavailableError
from oncelery.job import Job

_logger = logging.getLogger("oncelery")

#: How long between two looks at the jobs that are watched, in seconds.
LOOK_EVERY = 0.25


class Watch:
    """One client's wait; it sees the newest state, however many it was too slow for."""

    def __init__(self, job: Job | None) -> None:
        #: The job as it was seen last; None when it is there no more.
        self.job = job
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()

    async def changed(self, seconds: float) -> bool:
        """Wait until the job has changed since it was last asked for, or so many seconds have passed."""
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            return False
        self._changed.clear()
        return True

    def hear(self, job: Job | None) -> None:
        """Hear of the job, from the thread that looks."""
        if job != self.job:
            self.job = job
            # Its loop may have ended meanwhile, and then nobody waits.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._changed.set)


class Watcher:
    """Looks at all watched jobs, one after the other, in one thread that is there while any is watched."""

    def __init__(self, look: Callable[[str], Job | None], *, store: Breaker) -> None:
        self._look = look
        self._store = store
        self._lock = threading.Lock()
        self._watches: dict[str, set[Watch]] = {}
        self._looking = False

    @contextmanager
    def watching(self, job: Job) -> Iterator[Watch]:
        """Watch a job from what is known of it on, while the block lasts."""
        watch = Watch(job)
        with self._lock:
            self._watches.setdefault(job.id, set()).add(watch)
        try:
            self._see_to_it_that_somebody_looks()
            yield watch
        finally:
            with self._lock:
                watches = self._watches[job.id]
                watches.discard(watch)
                if not watches:
                    del self._watches[job.id]

    @property
    def watched(self) -> int:
        """How many clients wait."""
        with self._lock:
            return sum(map(len, self._watches.values()))

    def _see_to_it_that_somebody_looks(self) -> None:
        with self._lock:
            if not self._looking:
                threading.Thread(target=self._go_on_looking, name="oncelery-watcher", daemon=True).start()
                # Not before: where no thread can be started, the next client tries again.
                self._looking = True

    def _go_on_looking(self) -> None:
        pause = threading.Event()
        while watched := self._to_look_at():
            # A store that is known to be silent is left alone; its breaker finds out when it is back.
            for job_id, watches in () if self._store.trouble else watched:
                # Those who wait see no change, and there is none that anybody knows of.
                try:
                    job = self._look(job_id)
                except StoreUnavailableError as error:
                    _logger.warning("cannot look at watched jobs, will try again: %s", error)
                    self._store.look()
                    break
                except Exception as error:  # noqa: BLE001 - it may be of this job alone, and they all wait for this one thread
                    _logger.warning("cannot look at job %s, will try again: %s", job_id, error)
                    continue
                for watch in watches:
                    watch.hear(job)
            pause.wait(LOOK_EVERY)

    def _to_look_at(self) -> list[tuple[str, tuple[Watch, ...]]]:
        with self._lock:
            self._looking = bool(self._watches)
            return [(job_id, tuple(watches)) for job_id, watches in self._watches.items()]
