"""Threads for what blocks: `await peers.read(once.jobs.get, job_id)`; no call waits for ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from oncelery.breaker import MARGIN, Breaker
from oncelery.http.problems import BROKER_UNAVAILABLE, OVERLOADED, STORE_UNAVAILABLE, ProblemError

if TYPE_CHECKING:
    from oncelery.celery.extension import Oncelery

P = ParamSpec("P")
T = TypeVar("T")

#: How many calls of one kind are under way at once; more only fight for the interpreter.
THREADS: Final = 16

#: How many calls may wait for a thread; further ones are refused at once.
LINE: Final = 1000

#: After so many seconds without an answer, a look finds out whether the store is silent.
SUSPICIOUS: Final = 0.5

#: How long an answer is waited for while the store is well, in seconds.
LONGEST: Final = 15.0


class Peers:
    """The store and the broker of one app, as the service asks them.

    Calls that only read have their own threads, so that they never wait behind those that a silent broker holds. While
    the store is silent each call is refused at once; a look every second finds out when it is back.
    """

    def __init__(self, once: Oncelery) -> None:
        self.store = Breaker(lambda: once.ledger.get("-"), name="store")
        self.broker = once.broker.breaker
        self._bounded = once.broker.bounded
        self._reads, self._acts = _Threads("read"), _Threads("act")

    @staticmethod
    def of(once: Oncelery) -> Peers:
        """Return those of this app; all its routers share them."""
        known: Peers | None = vars(once).get("http_peers")
        return known or vars(once).setdefault("http_peers", Peers(once))

    async def read(self, ask: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Ask the store; the trace under way stays under way.

        Raises:
            ProblemError: the store is silent, or too many calls wait.
        """
        return await self._answer(self._reads, partial(ask, *args, **kwargs), LONGEST)

    async def act(self, ask: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do what may need the broker as well, without a long wait for that."""
        return await self._answer(self._acts, partial(self._in_time, ask, *args, **kwargs), LONGEST)

    async def act_at_length(self, ask: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do what takes as long as there is to do, such as to revive many, or to run a task here and now."""
        return await self._answer(self._acts, partial(self._in_time, ask, *args, **kwargs), float("inf"))

    def _in_time(self, ask: Callable[..., T], *args: Any, **kwargs: Any) -> T:  # noqa: ANN401 - of any call
        with self._bounded():
            return ask(*args, **kwargs)

    async def _answer(self, threads: _Threads, ask: Callable[[], T], longest: float) -> T:
        if trouble := self.store.trouble:
            raise ProblemError(STORE_UNAVAILABLE, trouble)
        answer = asyncio.wrap_future(threads.begin(ask))
        if not await _ends(answer, SUSPICIOUS):
            await self._wait(answer, longest, looks_at_broker=threads is self._acts)
        return answer.result()

    async def _wait(self, answer: asyncio.Future[T], longest: float, *, looks_at_broker: bool) -> None:
        """Wait for an answer that takes long; give it up, and raise, if the store is silent or it takes too long."""
        until = asyncio.get_running_loop().time() + longest
        while not answer.done():
            if looks_at_broker:
                # What is sent next need not find out by itself.
                self.broker.look()
            await _ends(answer, self.store.seconds + MARGIN, or_when=self.store.look())
            trouble = self.store.trouble
            if not answer.done() and (trouble or asyncio.get_running_loop().time() > until):
                # What has not begun never will; what has begun ends by itself.
                answer.cancel()
                silent = BROKER_UNAVAILABLE if looks_at_broker and not trouble else STORE_UNAVAILABLE
                raise ProblemError(silent, f"{trouble or 'no answer in time'}; send it again")
            await _ends(answer, SUSPICIOUS)


async def looked(breaker: Breaker) -> str:
    """Look at a peer, in one look with all who ask now; return its trouble, empty if it answers."""
    look = asyncio.wrap_future(breaker.look())
    await asyncio.wait({look}, timeout=breaker.seconds + MARGIN)
    return breaker.trouble


async def _ends(answer: asyncio.Future[Any], seconds: float, *, or_when: Future[None] | None = None) -> bool:
    """Wait so long for an answer, or until something else has ended; return whether it is there."""
    waited = {answer} if or_when is None else {answer, asyncio.wrap_future(or_when)}
    await asyncio.wait(waited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    return answer.done()


class _Threads:
    """Threads for calls of one kind, and the line of those that wait for one."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix=f"oncelery-{name}")
        self._lock = threading.Lock()
        self._under_way = 0

    def begin(self, ask: Callable[[], T]) -> Future[T]:
        """Begin a call as soon as a thread is free."""
        with self._lock:
            if self._under_way >= THREADS + LINE:
                raise ProblemError(OVERLOADED, "send it again in a moment")
            self._under_way += 1
        future = self._pool.submit(copy_context().run, ask)
        future.add_done_callback(self._end)
        return future

    def _end(self, _: Future[Any]) -> None:
        with self._lock:
            self._under_way -= 1
