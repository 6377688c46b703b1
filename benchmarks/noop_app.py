"""The app that the benchmark's worker runs: tasks that do nothing, plain or guarded, and say so by one byte."""

from __future__ import annotations

import os
from functools import cache

from celery import Celery

from benchmarks.recipe import Recipe
from oncelery import Oncelery

app = Celery("bench", broker=os.environ["BENCH_BROKER"])
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=4,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)
once = Oncelery(app, store=os.environ["BENCH_STORE"])


@cache
def _bell() -> int:
    return os.open(os.environ["BENCH_BELL"], os.O_WRONLY)


@app.task(acks_late=True, reject_on_worker_lost=True, shared=False)
def plain(_number: int, _text: str) -> None:
    """Do nothing, as Celery does it with the same care for its message."""
    os.write(_bell(), b".")


@cache
def _recipe() -> Recipe:
    return Recipe(os.environ["BENCH_STORE"])


@app.task(acks_late=True, reject_on_worker_lost=True, shared=False)
def recipe(number: int, text: str) -> None:
    """Do nothing, behind what tutorials give."""
    _recipe().guard({"number": number, "text": text})
    os.write(_bell(), b".")


@once.task(key="_number", shared=False)
def guarded(_number: int, _text: str) -> None:
    """Do nothing, once for each number."""
    os.write(_bell(), b".")
