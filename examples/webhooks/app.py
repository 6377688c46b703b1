"""Events of a payment provider, booked exactly once for each tenant."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from sqlalchemy import create_engine, text

from oncelery import Oncelery, current_run

#: Where the books are. The ledger is elsewhere, so `oncelery migrate --effects URL` makes a table beside them.
engine = create_engine(os.environ.get("DATABASE_URL", "sqlite:///books.db"), connect_args={"timeout": 60})

app = Celery("webhooks", broker=os.environ.get("BROKER_URL", "redis://localhost:6379/0"))
once = Oncelery(app, store=os.environ.get("LEDGER_URL", "redis://localhost:6379/1"))


@once.task(key="event_id", scope="tenant")
def book(tenant: str, event_id: str, event: dict[str, Any]) -> None:  # noqa: ARG001 - it is the key
    """Add a payment to a tenant's balance: an effect of which nobody could see later that it happened twice."""
    with current_run().transaction(engine) as tx:
        change = {"tenant": tenant, "amount": event["amount"]}
        tx.connection.execute(text("UPDATE books SET balance = balance + :amount WHERE tenant = :tenant"), change)
        tx.result = {"booked": event["amount"]}
