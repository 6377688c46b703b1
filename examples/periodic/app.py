"""Two periodic tasks of which one instance runs at a time, however many beats tick and however long it takes."""

from __future__ import annotations

import os
from urllib.request import urlopen

from celery import Celery

from oncelery import Oncelery, only_one

WAREHOUSE_URL = os.environ.get("WAREHOUSE_URL", "http://localhost:8080")

app = Celery("periodic", broker=os.environ.get("BROKER_URL", "redis://localhost:6379/0"))
once = Oncelery(app, store=os.environ.get("LEDGER_URL", "redis://localhost:6379/1"))

#: In seconds. Far too often for what the tasks do; that is the point.
EVERY = 0.5

app.conf.beat_schedule = {
    "stock": {"task": "examples.periodic.app.sync_stock", "schedule": EVERY},
    "prices": {"task": "examples.periodic.app.refresh_prices", "schedule": EVERY},
}


@once.task(retention=0)
def sync_stock() -> int:
    """Fetch the stock. A tick joins the job that is there, queued or running; killed half-way, that is run again."""
    return fetch("stock")


@app.task
@only_one
def refresh_prices() -> int | None:
    """Fetch the prices. A tick that comes while an instance runs is skipped; killed half-way, the next tick runs."""
    return fetch("prices")


def fetch(what: str) -> int:
    """Ask the warehouse, which takes its time."""
    with urlopen(f"{WAREHOUSE_URL}/{what}", timeout=60) as answer:  # noqa: S310 - our own warehouse
        return len(answer.read())
