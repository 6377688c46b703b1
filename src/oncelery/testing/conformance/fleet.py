"""Processes that do to one ledger the same thing at the same moment."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.synchronize import Barrier
from types import TracebackType
from typing import Self

from oncelery.answers import Granted
from oncelery.stores.base import Store
from oncelery.testing.conformance.acts import begin, complete, reserve, work
from oncelery.testing.conformance.fixtures import Opener

#: How long the slowest process may take to start, on a busy machine.
PATIENCE_SECONDS = 120


class Fleet:
    """So many processes, started with the first race and ended with the last."""

    def __init__(self, *, size: int) -> None:
        self.size = size
        self._processes: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._processes:
            self._processes.shutdown()

    def race(self, act: str, opener: Opener, *, each: int) -> list[str]:
        """Let each process do the act so many times, all from one moment on; give what they tell."""
        if self._processes is None:
            # Forked from a server that has imported what is needed, but never from this process: a child opens
            # connections of its own, and knows nothing of the parent's threads.
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["__main__", __name__])
            self._processes = ProcessPoolExecutor(
                self.size, mp_context=context, initializer=_meet_at, initargs=(context.Barrier(self.size),)
            )
        # One is taken by each process: it then waits at the barrier for the others.
        told = [self._processes.submit(_run, act, opener, number, each) for number in range(self.size)]
        try:
            return [word for future in told for word in future.result(PATIENCE_SECONDS)]
        except BaseException:
            # The barrier is broken for good; the next race gets other processes.
            self._processes.shutdown(cancel_futures=True)
            self._processes = None
            raise


_start: Barrier


def _meet_at(barrier: Barrier) -> None:
    global _start  # noqa: PLW0603 - a barrier can be handed over only when a process starts
    _start = barrier


def _run(act: str, opener: Opener, number: int, each: int) -> list[str]:
    store = opener()
    try:
        # Connect before the race, or the first to have connected would win it.
        store.get("")
    except BaseException:
        _start.abort()
        raise
    _start.wait(PATIENCE_SECONDS)
    told = [word for turn in range(each) for word in ACTS[act](store, number, turn)]
    store.close()
    return told


def _begin(store: Store, number: int, turn: int) -> list[str]:
    return [type(begin(store, holder=f"{number}/{turn}")).__name__]


def _reserve(store: Store, number: int, turn: int) -> list[str]:
    return [type(reserve(store, f"{number}/{turn}")).__name__]


def _sweep(store: Store, _number: int, _turn: int) -> list[str]:
    return [job.id for job in store.due(limit=10)]


def _work(store: Store, number: int, turn: int) -> list[str]:
    answer = begin(store, work(f"job {turn}", f"key {turn}"), holder=f"{number}/{turn}")
    if not isinstance(answer, Granted):
        return []
    complete(store, answer.lease)
    return [answer.lease.job_id]


ACTS: Mapping[str, Callable[[Store, int, int], list[str]]] = {
    "begin": _begin,
    "reserve": _reserve,
    "sweep": _sweep,
    "work": _work,
}
