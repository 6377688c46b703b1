"""Maintenance tickets from the field: batches arrive at least once, each ticket is kept exactly once."""

from __future__ import annotations

import os
from typing import Any

import psycopg
from celery import Celery

from oncelery import Oncelery, current_run, insert_once

DATABASE_URL = os.environ.get("DATABASE_URL", "postgresql:///work_orders")

app = Celery("work_orders", broker=os.environ.get("BROKER_URL", "redis://localhost:6379/0"))
app.conf.worker_prefetch_multiplier = 1  # batches are long: one that waits is better off with another worker
once = Oncelery(app, store=os.environ.get("LEDGER_URL", "redis://localhost:6379/1"))

#: So many tickets are committed at a time: a long batch must not hold a long transaction.
CHUNK = 100


@once.task(key="batch_id", retry_on=(psycopg.OperationalError,))
def ingest(batch_id: str, tickets: list[dict[str, Any]]) -> dict[str, int]:
    """Keep each ticket of a batch once. Run again after a crash, it goes on where the dead worker had come to."""
    inserted = 0
    with psycopg.connect(DATABASE_URL, application_name=f"ingest {batch_id}") as connection:
        for start in range(0, len(tickets), CHUNK):
            current_run().progress(start, len(tickets))
            chunk = insert_once(connection, "tickets", tickets[start : start + CHUNK], key=("site", "number"))
            connection.commit()
            inserted += len(chunk.inserted)
    return {"inserted": inserted, "duplicates": len(tickets) - inserted}
