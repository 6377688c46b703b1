"""Charges at a bank: once for each order, whatever is clicked twice, lost, overloaded or killed."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from celery import Celery

from oncelery import Backoff, Oncelery, current_run

BANK_URL = os.environ.get("BANK_URL", "http://localhost:8080")

app = Celery("payments", broker=os.environ.get("BROKER_URL", "redis://localhost:6379/0"))
once = Oncelery(app, store=os.environ.get("LEDGER_URL", "redis://localhost:6379/1"))


class BankBusyError(Exception):
    """The bank cannot answer now. Ask again."""


class CardRefusedError(Exception):
    """The bank has said no. To ask again is no use: a person must give another card."""


@once.task(
    key="order_id",
    retry_on=(BankBusyError, TimeoutError, ConnectionError),
    bury_on=(CardRefusedError,),
    max_attempts=4,
    backoff=Backoff(first=timedelta(milliseconds=200)),
)
def charge(order_id: str, card: str, amount: int) -> dict[str, Any]:
    """Charge an order once."""
    # The same in every run of this job. If the bank has charged and its answer was lost, it answers again, and no more.
    return ask_bank({"order": order_id, "card": card, "amount": amount}, key=current_run().idempotency_key("charge"))


def ask_bank(charge: dict[str, Any], key: str) -> dict[str, Any]:
    """Send a charge to the bank, and tell errors that pass from those that do not."""
    headers = {"Content-Type": "application/json", "Idempotency-Key": key}
    request = Request(f"{BANK_URL}/charges", json.dumps(charge).encode(), headers)  # noqa: S310 - our own bank's
    try:
        with urlopen(request, timeout=30) as answer:  # noqa: S310 - the same
            return json.load(answer)
    except HTTPError as refusal:
        with refusal:
            why = refusal.read().decode()
            if refusal.code == 402:  # noqa: PLR2004 - Payment Required
                raise CardRefusedError(why) from None
            raise BankBusyError(f"{refusal.code} {why}") from None
