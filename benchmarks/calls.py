"""The work that is guarded: calls of one task, each with a payload of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from uuid import uuid4

#: The keyword arguments of a call, some hundred bytes.
Call = dict[str, object]

#: A task name of common length.
TASK = "shop.tasks.charge"

#: What Celery sends for such a call is some hundred bytes; kept until the job is completed.
BODY = json.dumps([[], {"order_id": str(uuid4()), "amount": 500}, {"callbacks": None, "errbacks": None}]).encode() * 3

#: What a task that returns nothing leaves.
RESULT = b"null"


def charge(order_id: str, amount: int, currency: str, *, capture: bool) -> None:
    """Stand for the task that is called."""


def calls(number: int) -> Iterator[Call]:
    """Give so many calls, no two alike."""
    for _ in range(number):
        yield {"order_id": str(uuid4()), "amount": 500, "currency": "EUR", "capture": True}
