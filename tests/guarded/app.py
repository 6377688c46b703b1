"""A Celery app with tasks of every kind, guarded and plain, as a worker runs it and a test publishes to it.

Each task tells the journal what it does under the name that it is given, which is the test's own.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from celery import Celery, Task
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded
from celery.result import GroupResult
from celery.worker.request import Request
from faults.journal import Journal
from pydantic import BaseModel

from oncelery import TASK_ID, Backoff, Oncelery, current_run

app = Celery("guarded", set_as_current=False)
app.conf.update(
    worker_prefetch_multiplier=1,
    task_default_queue="guarded",
    broker_connection_retry_on_startup=True,
    broker_transport_options={"polling_interval": 0.05},
    redis_backend_health_check_interval=None,
    task_publish_retry=False,
)
once = Oncelery(app)

NO_WAIT = Backoff(first=timedelta(0), most=timedelta(0))


class RefusedError(Exception):
    """A failure that may pass."""


class ForbiddenError(Exception):
    """A failure that will not."""


class UnspeakableError(Exception):
    """A failure that cannot even be printed."""

    def __str__(self) -> str:
        raise RefusedError


class UnpicklableError(Exception):
    """A failure that no other process can be handed."""

    def __init__(self, name: str, code: int) -> None:
        super().__init__(lambda: (name, code))


class Order(BaseModel):
    """An argument that is a model."""

    order_id: str
    amount: int


def tell(name: str, what: str = "effect", payload: object = None) -> None:
    """Write to the journal which run does what."""
    run = current_run()
    Journal().record(name, what=what, job_id=run.job_id, fence=run.fence, attempt=run.attempt, payload=payload)


def wait(gate: str | None) -> None:
    """Wait until the test opens the gate."""
    while gate and not Path(gate).exists():
        time.sleep(0.01)


# What is done about duplicates


def work(name: str, payload: Any = None, gate: str | None = None) -> Any:
    """Begin, wait at the gate, take effect."""
    tell(name, "start", payload)
    wait(gate)
    tell(name, payload=payload)
    return payload


joining = once.task(name="joining", key="name")(work)
rejecting = once.task(name="rejecting", key="name", on_duplicate="reject")(work)
trailing = once.task(name="trailing", key="name", on_duplicate="trail")(work)
replacing = once.task(name="replacing", key="name", on_duplicate="replace")(work)
excluding = once.task(name="excluding", key="name", retention=0)(work)
notifying = once.task(name="notifying", key=TASK_ID)(work)
scoped = once.task(name="scoped", key="payload", scope="name")(work)
expiring = once.task(name="expiring", key="name", expires=3600)(work)


# A task class of the app's own, with Celery's own way to watch requests


class Announced(Request):
    """A delivery that says when a child has taken it."""

    def on_accepted(self, pid: str, time_accepted: float) -> None:
        """Tell the journal."""
        Journal().record(self.args[0], what="accepted")
        super().on_accepted(pid, time_accepted)


class AnnouncedTask(Task):  # type: ignore[type-arg]
    """As Celery's documentation has it."""

    abstract = True
    Request = "guarded.app:Announced"


announced = once.task(name="announced", base=AnnouncedTask, key="name")(work)


# What canvases are made of, once plain and once guarded


def increment(x: int, name: str) -> int:
    """Add one."""
    Journal().record(name, what="increment", payload=x)
    return x + 1


def total(xs: list[int], name: str) -> int:
    """Add up."""
    Journal().record(name, what="total", payload=xs)
    return sum(xs)


def refuse(x: int, name: str) -> int:
    """Fail."""
    Journal().record(name, what="refuse", payload=x)
    raise RefusedError(name)


def lament(failed_id: str, name: str) -> str:
    """Be told of a failure, as a task of its own."""
    Journal().record(name, what="lament")
    return failed_id


def mourn(_request: Any, error: BaseException, _traceback: Any, name: str) -> None:
    """Be told of a failure, within the task that failed."""
    Journal().record(name, what="mourn", payload=type(error).__name__)


def become(task: Any, x: int, name: str) -> int:
    """Let another task do the work."""
    Journal().record(name, what="become", payload=x)
    kind = task.name.partition("-")[0]
    return int(task.replace(app.tasks[f"{kind}-increment"].s(x, name)))


CANVAS: dict[str, Any] = {function.__name__: function for function in (increment, total, refuse, lament, mourn, become)}
for _kind, _declare in {"plain": app.task, "guarded": once.task}.items():
    for _name, _function in CANVAS.items():
        _task: Any = _declare
        _task(name=f"{_kind}-{_name}", bind=_name == "become")(_function)


# Going on later


@once.task(name="asks-again", bind=True, key="name", max_retries=5)
def asks_again(self: Any, name: str, times: int, countdown: float = 0) -> int:
    """Retry so many times."""
    tell(name, payload=self.request.headers.get("colour") if self.request.headers else None)
    if self.request.retries < times:
        raise self.retry(countdown=countdown)
    return int(self.request.retries)


@once.task(name="asks-otherwise", bind=True)
def asks_otherwise(self: Any, name: str, left: int) -> str:
    """Retry with other arguments."""
    tell(name, payload=left)
    if left:
        raise self.retry(args=(name, left - 1), countdown=0)
    return "done"


@once.task(name="gives-up", bind=True)
def gives_up(self: Any, name: str) -> None:
    """Retry once more than may be."""
    tell(name)
    raise self.retry(exc=RefusedError(name), countdown=0, max_retries=1)


@once.task(name="asks-quietly", bind=True)
def asks_quietly(self: Any, name: str) -> str:
    """Retry without an exception."""
    tell(name)
    if not self.request.retries:
        self.retry(countdown=0, throw=False)
        return "not yet"
    return "done"


@once.task(name="retried-by-celery", autoretry_for=(RefusedError,), default_retry_delay=0, max_retries=2)
def retried_by_celery(name: str, failures: int) -> int:
    """Fail so many times."""
    return fail(name, failures)


@once.task(
    name="retried-by-policy",
    retry_on=(RefusedError,),
    bury_on=(ForbiddenError,),
    max_attempts=3,
    backoff=NO_WAIT,
)
def retried_by_policy(name: str, failures: int) -> int:
    """Fail so many times."""
    return fail(name, failures)


@once.task(name="retried-soon", retry_on=RefusedError, backoff=Backoff(first=timedelta(seconds=0.9)))
def retried_soon(name: str, failures: int) -> int:
    """Fail so many times, and be run again within a second."""
    return fail(name, failures)


@once.task(
    name="retried-by-both",
    autoretry_for=(RefusedError,),
    default_retry_delay=0,
    max_retries=2,
    retry_on=(ForbiddenError,),
    backoff=NO_WAIT,
)
def retried_by_both(name: str, errors: list[str]) -> int:
    """Fail with each of these errors in turn."""
    failed = len(Journal().entries(what=name))
    tell(name, what=name)
    if failed < len(errors):
        raise {"refused": RefusedError, "forbidden": ForbiddenError}[errors[failed]](name)
    return failed


def fail(name: str, failures: int) -> int:
    """Fail so many times in all, whoever counts attempts."""
    failed = len(Journal().entries(what=name))
    tell(name, what=name)
    if failed < failures:
        raise RefusedError(name)
    return failed


# Ends of all kinds


@once.task(name="rejects", bind=True)
def rejects(self: Any, name: str, *, requeue: bool) -> str:
    """Reject the message; once, where it is to come back."""
    tell(name)
    if requeue and self.request.delivery_info["redelivered"]:
        return "done"
    raise Reject("no", requeue=requeue)


@once.task(name="rejects-for-good", retry_on=(Exception,), backoff=NO_WAIT)
def rejects_for_good(name: str) -> None:
    """Reject the message of a task that retries whatever goes wrong."""
    tell(name)
    raise Reject("no", requeue=False)


@once.task(name="ignores")
def ignores(name: str) -> None:
    """End without a result."""
    tell(name)
    raise Ignore


@once.task(name="polls", bind=True)
def polls(self: Any, name: str, times: int) -> int:
    """Be replaced by itself until it has run so many times."""
    tell(name)
    runs = sum(entry.key == name for entry in Journal().entries())
    if runs < times:
        raise self.replace(self.s(name, times))
    return runs


@once.task(name="counts-down", bind=True)
def counts_down(self: Any, name: str, n: int) -> list[int]:
    """Call itself."""
    tell(name, payload=n)
    return [n, *(self(name, n - 1) if n else [])]


@once.task(name="calls-directly")
def calls_directly(name: str) -> str:
    """Call another guarded task as a function."""
    tell(name, "outer")
    return str(joining(name, "direct"))


@once.task(name="returns")
def returns(name: str, kind: str) -> Any:
    """Return a value of some kind."""
    tell(name)
    return value_of(kind)


@once.task(name="returns-unseen", ignore_result=True)
def returns_unseen(name: str, kind: str) -> Any:
    """Return a value that nobody asks for."""
    tell(name)
    return value_of(kind)


def value_of(kind: str) -> Any:
    """Make a value."""
    values = {
        "none": None,
        "text": "text",
        "nested": {"list": [1, 2.5, None, {"a": True}]},
        "object": object(),
        "large": "x" * (2 << 20),
        "a result": app.AsyncResult("a-task"),
        "a group's result": GroupResult("a-group", [app.AsyncResult("a-task")]),
    }
    return values[kind]


@once.task(name="raises")
def raises(name: str, kind: str) -> None:
    """Raise an error of some kind."""
    tell(name)
    errors = {
        "refused": RefusedError(name),
        "unspeakable": UnspeakableError(),
        "unpicklable": UnpicklableError(name, 7),
        "key": KeyError(name),
    }
    raise errors[kind]


@once.task(name="exits")
def exits(name: str) -> None:
    """Try to end the process."""
    tell(name)
    sys.exit(3)


@once.task(name="sleeps", key="name", soft_time_limit=1)
def sleeps(name: str, *, catch: bool = False) -> str:
    """Sleep for longer than it may."""
    tell(name)
    try:
        time.sleep(30)
    except SoftTimeLimitExceeded:
        if not catch:
            raise
    return "woken"


@once.task(name="hangs", time_limit=1)
def hangs(name: str) -> None:
    """Sleep for longer than it may, without being asked."""
    tell(name)
    time.sleep(30)


@once.task(name="hangs-at-first", time_limit=1, retry_on=(Exception,), backoff=NO_WAIT)
def hangs_at_first(name: str) -> str:
    """Sleep for longer than it may, but only once."""
    tell(name)
    if current_run().attempt == 1:
        time.sleep(30)
    return "done"


@once.task(name="takes-models", pydantic=True)
def takes_models(order: Order, name: str) -> Order:
    """Take and return a model."""
    tell(name, payload=type(order).__name__)
    return order


# What a run can see and do


@once.task(name="reports", key="name", lease=1)
def reports(name: str, gate: str) -> dict[str, Any]:
    """Tell its progress, wait, and tell what it knows of itself."""
    run = current_run()
    run.progress(1, 3, stage="first")
    tell(name, "start")
    wait(gate)
    return {"job_id": run.job_id, "key": run.key, "receipt": run.idempotency_key("receipt"), "attempt": run.attempt}


@once.task(name="steps", bind=True, key="name")
def steps(self: Any, name: str) -> list[str]:
    """Take two steps, one in each of two attempts."""

    def take(step: str) -> str:
        tell(name, step)
        return f"{step}!"

    run = current_run()
    first = run.step("one", take, "one")
    if run.attempt == 1:
        raise self.retry(countdown=0)
    return [first, run.step("two", take, "two"), run.step("two", take, "two")]


@once.task(name="heeds", key="name", lease=1)
def heeds(name: str) -> None:
    """Go on until it is cancelled."""
    tell(name, "start")
    while True:
        current_run().raise_if_cancelled()
        time.sleep(0.02)


def was_charged(name: str, gate: str | None = None) -> str | None:  # noqa: ARG001 - called like the task
    """Tell whether an earlier run has taken effect."""
    Journal().record(name, what="verify")
    return "verified" if any(entry.key == name for entry in Journal().entries()) else None


def charge(name: str, gate: str | None = None) -> str:
    """Take effect, and then wait before saying so."""
    tell(name)
    run = current_run()
    Journal().record(name, what="recovered", payload=run.recovered)
    wait(gate)
    return "charged"


rerunning = once.task(name="rerunning", lease=1)(charge)
verifying = once.task(name="verifying", lease=1, on_takeover=was_charged)(charge)
holding = once.task(name="holding", lease=1, on_takeover="hold")(charge)


@once.task(name="pauses-between-steps", key="name", lease=1)
def pauses_between_steps(name: str, gate: str) -> list[str]:
    """Take one step, and wait within the next."""

    def take(step: str) -> str:
        tell(name, step)
        wait(gate if step == "two" else None)
        return step

    run = current_run()
    # Named as os.listdir names a file whose name is not UTF-8.
    return [run.step(os.fsdecode(f"{step} \xe9".encode("latin-1")), take, step) for step in ("one", "two")]
