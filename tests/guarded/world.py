"""World: the guarded app as a publisher sees it, on the servers that it is given, and those who run its tasks."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from celery import Celery, _state
from celery.result import AsyncResult
from faults.brokers import Broker
from faults.journal import Entry, Journal
from faults.workers import Worker, Workers

from guarded.closing import closed
from oncelery import Oncelery
from oncelery.embedded.process import eventually
from oncelery.job import Job, Query

#: Longer than anything here takes on a busy machine; reached only by a test that fails.
SOON = 40.0

#: What the workers import.
APP = "guarded.app"

#: What all apps of the process share; the stubs know little of it.
STATE: Any = _state

_names = itertools.count(1)


class World:
    """A fresh copy of the app, configured like this, and a journal of what its tasks do."""

    def __init__(self, folder: Path, settings: Mapping[str, object]) -> None:
        self.folder = folder
        self.settings = dict(settings)
        self.journal = Journal(folder / "journal")
        self.tasks = load_app()
        self.app: Celery = self.tasks.app
        self.app.conf.update(self.settings)
        self.once: Oncelery = self.tasks.once
        # Signatures inside a canvas look for the current app.
        self.app.set_current()

    def start(
        self,
        workers: Workers,
        *,
        broker: Broker,
        env: Mapping[str, str] | None = None,
        settings: Mapping[str, object] | None = None,
        **options: Any,
    ) -> Worker:
        """Start a worker of this world."""
        env = self.journal.environment | dict(env or {})
        return workers.start(APP, broker=broker, env=env, settings=self.settings | dict(settings or {}), **options)

    def name(self) -> str:
        """Make a name that no other test uses."""
        return f"name-{next(_names)}"

    def gate(self, name: str) -> Gate:
        """Make a gate, at which a task waits until it is opened."""
        return Gate(self.folder / f"gate-{name}")

    def told(self, name: str, what: str = "effect") -> list[Entry]:
        """Give what has been told of a name."""
        return [entry for entry in self.journal.entries(what=what) if entry.key == name]

    def hears(self, name: str, what: str = "effect", *, times: int = 1) -> bool:
        """Wait until so much has been told of a name."""
        return eventually(lambda: len(self.told(name, what)) >= times, SOON)

    def job(self, result: AsyncResult[Any] | str) -> Job:
        """Read a job."""
        job = self.once.ledger.get(result if isinstance(result, str) else result.id)
        assert job
        return job

    def jobs(self) -> list[Job]:
        """Read all jobs, as many as fit on one page."""
        return [self.job(job.id) for job in self.once.ledger.find(Query()).items]

    def becomes(self, result: AsyncResult[Any] | str, state: str) -> bool:
        """Wait until a job is in this state."""
        return eventually(lambda: self.job(result).state == state, SOON)

    @contextmanager
    def captured(self) -> Iterator[Sent]:
        """Keep what this process publishes, to deliver it once more."""
        amqp: Any = self.app.amqp
        send, sent = amqp.send_task_message, Sent(self.app)

        def capture(producer: Any, name: str, message: Any, **options: Any) -> Any:
            sent.messages.append(lambda producer, **more: send(producer, name, message, **options, **more))
            return send(producer, name, message, **options)

        amqp.send_task_message = capture
        try:
            yield sent
        finally:
            amqp.send_task_message = send

    def close(self) -> None:
        """Let go of the connections, and leave no trace."""
        STATE._tls.current_app = None  # noqa: SLF001 - the opposite of set_current
        backend: Any = self.app.backend
        with closed(self.once):
            if consumer := getattr(backend, "result_consumer", None):
                # Results that are still referred to would else unsubscribe on a connection that is gone.
                consumer.stop()
                consumer._pubsub = None  # noqa: SLF001
        self.app.close()


class Sent:
    """What was published."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.messages: list[Callable[..., Any]] = []

    def again(self) -> None:
        """Publish all of it once more, marked as what a broker delivers a second time."""
        with self.app.producer_or_acquire() as producer:
            for message in self.messages:
                message(producer, delivery_info={"redelivered": True})

    def copy(self) -> None:
        """Publish all of it once more, as a publisher does that is not sure."""
        with self.app.producer_or_acquire() as producer:
            for message in self.messages:
                message(producer)


class Gate:
    """A file for whose coming into being a task waits."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def open(self) -> None:
        """Let the task go on."""
        Path(self.path).touch()


def load_app() -> ModuleType:
    """Run the app's module once more, for an app and tasks of one's own under the same names."""
    spec = importlib.util.find_spec(APP)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    # Pydantic looks annotations up by the name of the module.
    sys.modules[APP] = module
    with unshared_tasks():
        spec.loader.exec_module(module)
    return module


@contextmanager
def unshared_tasks() -> Iterator[None]:
    """Keep the tasks that are declared here to their own app; Celery would give them to every app of the process."""
    finalizers = STATE._on_app_finalizers  # noqa: SLF001 - Celery has no way to undo it
    before = set(finalizers)
    try:
        yield
    finally:
        finalizers.intersection_update(before)
