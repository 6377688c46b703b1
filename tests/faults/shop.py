"""The app on which faults are tried: a shop whose effects, and what the ledger says of them, go to the journal."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from celery import Celery
from celery.signals import task_prerun
from kombu.serialization import register

from faults import bank, wrong_clock
from faults import journal as journals
from faults.journal import Journal
from oncelery import Backoff, Oncelery, current_run
from oncelery.events import Event
from oncelery.failpoints import failpoint
from oncelery.stores import base

#: Tells a worker how many seconds a message may be under way before the sweeper asks for it; else as in life.
GRACE_VARIABLE = "SHOP_PUBLISH_GRACE"

#: A serialiser of which nobody survives reading.
BOMB = "application/x-bomb"

DIES_BEFORE_BEGIN = "die_before_begin"


class Shop:
    """An app, and its tasks."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - Celery's own
        self.app = Celery("shop", set_as_current=False)
        self.app.conf.update(worker_prefetch_multiplier=1, accept_content=["json", BOMB], **settings)
        self.once = Oncelery(self.app)
        self.charge = self._task(charge)
        self.bundle = self._task(bundle)
        self.charge_when_told = self._task(charge_when_told)
        self.charge_in_step = self._task(charge_in_step)
        self.charge_with_progress = self._task(charge_with_progress)
        self.pay = self._task(pay, retry_on=OSError, backoff=Backoff(first=timedelta(0), most=timedelta(0)))
        self.charge_slowly_at_first = self._task(charge_slowly_at_first)
        self.charge_and_fail_at_first = self._task(charge_and_fail_at_first)
        self.keep_the_gil = self._task(keep_the_gil)
        self.die = self._task(die)
        self.die_before_begin = self._task(charge, name=DIES_BEFORE_BEGIN)
        #: Not guarded: it has nothing to do with the ledger.
        self.greet: Any = self.app.task(name="greet", shared=False)(greet)

    def _task(self, function: Callable[..., Any], *, name: str = "", **options: Any) -> Any:  # noqa: ANN401
        # Celery would give it to every other app as well.
        return self.once.task(function, name=name or function.__name__, shared=False, **options)


def charge(order: str, seconds: float = 0.0) -> dict[str, str]:
    """Take effect at the end."""
    _note(order, "start")
    if not current_run().recovered:
        failpoint("first-run")
    time.sleep(seconds)
    failpoint("mid-effect")
    _note(order)
    return receipt(order)


def bundle(receipts: list[dict[str, str]], order: str) -> dict[str, list[str]]:
    """Take effect when all of some orders have."""
    charge(order)
    return {order: sorted(receipt["paid"] for receipt in receipts)}


def charge_when_told(order: str, sign: str) -> dict[str, str]:
    """Take effect once a file is there."""
    while not Path(sign).exists():
        time.sleep(0.05)
    return charge(order)


def charge_in_step(order: str, seconds: float = 0.0) -> dict[str, str]:
    """Take effect in a step."""
    _note(order, "start")
    time.sleep(seconds)
    failpoint("before-step")
    current_run().step("charge", _note, order)
    failpoint("after-step")
    return receipt(order)


def charge_with_progress(order: str) -> dict[str, str]:
    """Take effect between two words on how far it has come; the second may end the run."""
    current_run().progress(1, 3, stage="before")
    charged = charge(order)
    current_run().progress(2, 3, stage="after")
    return charged


def pay(order: str) -> dict[str, Any]:
    """Have the bank do two things, each in a step."""
    hold = current_run().step("hold", _at_the_bank, "hold", order)
    charged = current_run().step("charge", _at_the_bank, "charge", order)
    failpoint("charge-recorded")
    return {"hold": hold, "charge": charged}


def charge_slowly_at_first(order: str, seconds: float) -> dict[str, str]:
    """Take effect at once when another run of the job was cut short."""
    return charge(order, 0.0 if current_run().recovered else seconds)


def charge_and_fail_at_first(order: str) -> dict[str, str]:
    """Take effect, and raise unless another run of the job was cut short."""
    charged = charge(order)
    if not current_run().recovered:
        raise ValueError(order)
    return charged


def keep_the_gil(order: str, seconds: float) -> dict[str, str]:
    """Work in C that lets no other thread of the process run, and take effect."""
    _note(order, "start")
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))
    _note(order)
    return receipt(order)


def greet(name: str) -> str:
    """Take no effect."""
    return f"hello {name}"


def die(order: str) -> None:
    """Take the process along."""
    _note(order, "start")
    os.kill(os.getpid(), signal.SIGKILL)


@task_prerun.connect
def die_in_a_signal(sender: object, **_: object) -> None:
    """Take the process along before anything asks the ledger."""
    if getattr(sender, "name", "") == DIES_BEFORE_BEGIN:
        os.kill(os.getpid(), signal.SIGKILL)


def read_bomb(_: str) -> None:
    """Take the process along, which is a worker's main process."""
    if journals.VARIABLE in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)


register("bomb", lambda _: "bomb", read_bomb, BOMB, "utf-8")


def receipt(order: str) -> dict[str, str]:
    """Tell what charging an order returns."""
    return {"paid": order}


def _note(key: str, what: str = "effect") -> None:
    run = current_run()
    Journal().record(key, what=what, job_id=run.job_id, fence=run.fence, attempt=run.attempt)


def _at_the_bank(what: str, order: str) -> dict[str, str]:
    run = current_run()
    failpoint(f"before-{what}")
    receipt = bank.ask(what, order, key=run.idempotency_key(what), fence=run.fence, attempt=run.attempt)
    failpoint(f"after-{what}")
    return receipt


def _note_event(event: Event) -> None:
    """Write down what the ledger answered this process, which tells commits apart from effects."""
    Journal().record(event.job_id, what=event.decision, job_id=event.job_id)


if journals.VARIABLE in os.environ:  # this is a worker
    if wrong_clock.VARIABLE in os.environ:
        wrong_clock.put_on(float(os.environ[wrong_clock.VARIABLE]))
    if GRACE_VARIABLE in os.environ:
        # Before a store is imported, which takes it from there.
        base.PUBLISH_GRACE = timedelta(seconds=float(os.environ[GRACE_VARIABLE]))
    shop = Shop()
    app = shop.app
    shop.once.ledger.events.subscribe(_note_event)
