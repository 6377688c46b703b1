"""The app on which faults are tried that strike at a commit: a clerk who keeps books in PostgreSQL."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from secrets import token_hex
from typing import Any

from celery import Celery
from celery.result import AsyncResult
from guarded.books import Books, pay
from guarded.closing import closed

from faults.brokers import Broker
from faults.workers import ALONE, Worker, Workers
from oncelery import Backoff, Oncelery, current_run
from oncelery.job import Job, State
from oncelery.testing.failpoints import Failpoint, environment

#: Tells a worker where the books are.
VARIABLE = "CLERK_BOOKS"


class Clerk:
    """An app, and its one task."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - Celery's own
        self.app = Celery("clerk", set_as_current=False)
        self.app.conf.update(worker_prefetch_multiplier=1, **settings)
        self.once = Oncelery(self.app)
        self.enter: Any = self.once.task(
            enter,
            name="enter",
            shared=False,
            # However often it is killed, and whatever the database says while it restarts.
            retry_on=(Exception,),
            max_attempts=100,
            max_crashes=100,
            backoff=Backoff(first=timedelta(seconds=0.1), most=timedelta(seconds=1)),
        )


def enter(order: str, kind: str = "session", seconds: float = 0.0, url: str = "") -> None:
    """Pay an order into the books."""
    with books(url or os.environ[VARIABLE]).target(kind) as target, current_run().transaction(target) as tx:
        pay(tx.connection, order, before_the_sum=lambda: time.sleep(seconds))
        tx.result = receipt(order)


def receipt(order: str) -> dict[str, str]:
    """Tell what the job of an order is completed with."""
    return {"paid": order}


@cache
def books(url: str) -> Books:
    """Give this process's way to the books; made in the child, so that no two share a connection."""
    return Books(url)


@dataclass(frozen=True, slots=True, kw_only=True)
class Office:
    """A clerk with broker, ledger, workers and books."""

    broker: Broker
    results: str
    clerk: Clerk
    books: Books
    workers: Workers
    folder: Path
    environment: Mapping[str, str]

    def start(self, *points: Failpoint, concurrency: int = 2, books: str = "") -> Worker:
        """Start a worker, which breaks at the points."""
        return self.workers.start(
            "faults.clerk",
            broker=self.broker,
            concurrency=concurrency,
            env={**self.environment, **environment(*points), VARIABLE: books or self.books.url},
            settings={"result_backend": self.results},
            options=[*ALONE],
        )

    def job(self, job_id: str) -> Job:
        """Read a job from the ledger."""
        job = self.clerk.once.ledger.get(job_id)
        assert job is not None
        return job

    def result(self, job_id: str) -> AsyncResult[Any]:
        """Give what Celery knows of a job's end."""
        return self.clerk.app.AsyncResult(job_id)

    @property
    def is_joined(self) -> bool:
        """Whether the ledger is in the books' own database."""
        return self.books.url == self.environment["ONCELERY_STORE"]

    def completed(self) -> int:
        """Count the completed jobs."""
        return self.clerk.once.ledger.tally().states.get(State.COMPLETED, 0)


@contextmanager
def office_of(folder: Path, *, broker: Broker, store: str, results: str, books: Books) -> Iterator[Office]:
    """Open an office; nothing of its workers is left after the block."""
    names = {"ONCELERY_STORE": store, "ONCELERY_NAMESPACE": f"clerk_{token_hex(8)}", "ONCELERY_LEASE": "2.0"}
    ours = {name.lower(): value for name, value in names.items()} | {"oncelery_lease": 2.0}
    clerk = Clerk(**broker.settings, result_backend=results, **ours)
    # A publisher would listen for each result, over a connection that outlives the test.
    clerk.app.backend.on_task_call = lambda *_: None  # type: ignore[method-assign]
    with closed(clerk.once), Workers(folder) as workers, clerk.app:
        yield Office(
            broker=broker,
            results=results,
            clerk=clerk,
            books=books,
            workers=workers,
            folder=folder,
            environment=names,
        )
    books.close()


if VARIABLE in os.environ:  # this is a worker
    app = Clerk().app
