"""Scene: one shop with its broker, ledger, results, workers and journal, none of them shared with another scene."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from celery.result import AsyncResult
from guarded.closing import closed

from faults.brokers import Broker
from faults.journal import Journal
from faults.shop import Shop
from faults.workers import ALONE, Worker, Workers
from oncelery.embedded.process import eventually
from oncelery.job import Job, State
from oncelery.testing.failpoints import Failpoint, environment

#: Longer than anything here takes on a busy machine; reached only by a test that fails.
SOON = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Where one story of faults is played."""

    broker: Broker
    store: str
    #: Where Celery keeps results.
    results: str
    folder: Path
    shop: Shop
    workers: Workers
    journal: Journal
    #: For workers, beside where the journal and the ledger are.
    environment: Mapping[str, str]

    def start(
        self,
        *points: Failpoint,
        pool: str = "prefork",
        concurrency: int = 2,
        settings: Mapping[str, object] | None = None,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        broker: Broker | None = None,
    ) -> Worker:
        """Start a worker of the shop, which breaks at the points."""
        return self.workers.start(
            "faults.shop",
            broker=broker or self.broker,
            pool=pool,
            concurrency=concurrency,
            env={**self.environment, **environment(*points), **(env or {})},
            settings={"result_backend": self.results, **(settings or {})},
            options=[*ALONE, *options],
        )

    def job(self, job_id: str) -> Job:
        """Read a job from the ledger."""
        job = self.shop.once.ledger.get(job_id)
        assert job is not None
        return job

    def all_are(self, state: State, jobs: Iterable[str]) -> bool:
        """Whether all jobs have come to a state."""
        return all(self.job(job_id).state is state for job_id in jobs)

    def commits(self) -> list[str]:
        """Give the job of every recorded outcome; one that is there twice is a broken promise."""
        return [entry.key for entry in self.journal.entries(what="completed")]

    def result(self, job_id: str) -> AsyncResult[Any]:
        """Give what Celery knows of a job's end."""
        return self.shop.app.AsyncResult(job_id)

    def returned(self, job_id: str, value: object) -> bool:
        """Whether the caller of a job comes to see this value."""
        return eventually(lambda: self.result(job_id).state == "SUCCESS", SOON) and self.result(job_id).result == value


@contextmanager
def scene_of(
    folder: Path, *, broker: Broker, store: str, results: str, lease: float = 2.0, **settings: object
) -> Iterator[Scene]:
    """Set a scene; nothing of its workers is left after the block."""
    journal = Journal(folder / "journal")
    names = {
        "ONCELERY_STORE": store,
        "ONCELERY_NAMESPACE": f"shop_{secrets.token_hex(8)}",
        "ONCELERY_LEASE": str(lease),
    }
    ours = {name.lower(): value for name, value in names.items()} | {"oncelery_lease": lease}
    shop = Shop(**broker.settings, result_backend=results, **ours, **settings)
    # A publisher would listen for each result, over a connection that outlives the test.
    shop.app.backend.on_task_call = lambda *_: None  # type: ignore[method-assign]
    with closed(shop.once), Workers(folder) as workers, shop.app:
        yield Scene(
            broker=broker,
            store=store,
            results=results,
            folder=folder,
            shop=shop,
            workers=workers,
            journal=journal,
            environment={**journal.environment, **names},
        )


def busyness() -> float:
    """Tell by what factor this machine is slower than an idle one: how many processes want each of its processors."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def through(scene: Scene, *, broker: str) -> Scene:
    """Give the scene with another way to its broker, for the workers that are started then."""
    return replace(scene, broker=replace(scene.broker, url=broker))
