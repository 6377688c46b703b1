"""A service whose tasks run at once, in its own process: for those who only want to see what is answered."""

from __future__ import annotations

import os
from datetime import date
from typing import Literal

from celery import Celery
from pydantic import BaseModel

from oncelery import Oncelery
from oncelery.http import create_app

#: Names a file of API keys.
KEYS = "SERVED_KEYS"

#: Names a store other than this process.
STORE = "SERVED_STORE"

celery = Celery("served", broker="memory://", backend="cache+memory://", set_as_current=False)
celery.conf.update(task_always_eager=True, task_store_eager_result=False)
once = Oncelery(celery, store=os.environ.get(STORE, "memory://"))


class Item(BaseModel):
    """A line of an order."""

    article: str
    number: int


@once.task(name="shop.charge", key="order_id", shared=False)
def charge(order_id: int, amount: int = 1) -> dict[str, int]:
    """Charge an order; a large one is refused."""
    if amount > 1000:
        raise ValueError(f"order {order_id} is too large")
    return {"charged": amount}


@once.task(name="shop.pack", shared=False)
def pack(items: list[Item], *, by: date | None = None, wrap: Literal["paper", "box"] = "box") -> int:
    """Pack items."""
    return len(items) + bool(by) + len(wrap)


@once.task(name="shop.refund", key="order_id", on_duplicate="reject", shared=False)
def refund(order_id: int, **more: str) -> None:
    """Refund an order."""


app = create_app(once, tasks=[charge, pack, refund], keys=os.environ.get(KEYS))
