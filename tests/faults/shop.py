"""The app on which faults are tried: a shop whose effects, and what the ledger says of them, go to the journal."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from celery import Celery

from faults import journal as journals
from faults.journal import Journal
from oncelery import Oncelery, current_run
from oncelery.events import Event
from oncelery.failpoints import failpoint


@dataclass(frozen=True, slots=True)
class Shop:
    """An app, and its tasks."""

    app: Celery
    once: Oncelery
    charge: Any
    charge_in_step: Any


def open_shop(**settings: Any) -> Shop:  # noqa: ANN401 - Celery's own
    """Make the app, for a worker or for a test that publishes."""
    app = Celery("shop", set_as_current=False)
    app.conf.update(worker_prefetch_multiplier=1, **settings)
    once = Oncelery(app)

    return Shop(
        app,
        once,
        charge=once.task(charge, name="charge"),
        charge_in_step=once.task(charge_in_step, name="charge_in_step"),
    )


def charge(order: str, seconds: float = 0.0) -> dict[str, str]:
    """Take effect at the end."""
    _note(order, "start")
    time.sleep(seconds)
    failpoint("mid-effect")
    _note(order)
    return receipt(order)


def charge_in_step(order: str, seconds: float = 0.0) -> dict[str, str]:
    """Take effect in a step."""
    _note(order, "start")
    time.sleep(seconds)
    current_run().step("charge", _note, order)
    failpoint("after-step")
    return receipt(order)


def receipt(order: str) -> dict[str, str]:
    """Tell what charging an order returns."""
    return {"paid": order}


def _note(key: str, what: str = "effect") -> None:
    run = current_run()
    Journal().record(key, what=what, job_id=run.job_id, fence=run.fence, attempt=run.attempt)


def _note_event(event: Event) -> None:
    """Write down what the ledger answered this process, which tells commits apart from effects."""
    Journal().record(event.job_id, what=event.decision, job_id=event.job_id)


if journals.VARIABLE in os.environ:  # this is a worker
    shop = open_shop()
    app = shop.app
    shop.once.ledger.events.subscribe(_note_event)
