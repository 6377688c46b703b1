"""Threads for what blocks: `await in_thread(once.jobs.get, job_id)`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

#: How many calls of the store and the broker are under way at once; more only fight for the interpreter.
THREADS: Final = 16

_threads = ThreadPoolExecutor(THREADS, thread_name_prefix="oncelery-http")


async def in_thread(ask: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Ask the store or the broker, which block, without blocking the others; the trace under way stays under way."""
    context = copy_context()
    return await asyncio.get_running_loop().run_in_executor(_threads, lambda: context.run(ask, *args, **kwargs))
