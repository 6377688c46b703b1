"""The app that the benchmark serves: a bare route that calls `delay()`, and beside it the routes of Oncelery."""

from __future__ import annotations

import os

from celery import Celery
from fastapi import FastAPI
from pydantic import BaseModel

from oncelery import Oncelery
from oncelery.http import create_router

celery = Celery("bench", broker=os.environ["BENCH_BROKER"])
celery.conf.task_ignore_result = True
once = Oncelery(celery, store=os.environ["BENCH_STORE"])


@celery.task(name="plain", shared=False)
def plain(order_id: str, amount: int) -> None:
    """Stand for a task that nothing guards."""


@once.task(key="order_id", name="guarded", shared=False)
def guarded(order_id: str, amount: int) -> None:
    """Stand for a guarded task."""


class Order(BaseModel):
    """What the bare route takes."""

    order_id: str
    amount: int


app = FastAPI()
app.include_router(create_router(once, tasks=[guarded]))


@app.post("/bare", status_code=202)
def bare(order: Order) -> dict[str, str]:
    """Submit as everybody does: Celery blocks, so FastAPI calls this in a thread."""
    return {"id": plain.delay(order.order_id, order.amount).id}


@app.post("/blocking", status_code=202)
async def blocking(order: Order) -> dict[str, str]:
    """Submit without a thread: while the broker is slow, nobody else is served."""
    return {"id": plain.delay(order.order_id, order.amount).id}
