"""Hand: a worker that takes one message when the test says so, in the test's own process."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import Any

from celery.app.trace import build_tracer
from celery.backends import cache
from kombu.exceptions import OperationalError
from kombu.serialization import prepare_accept_content

from guarded.world import World
from oncelery.answers import Granted
from oncelery.errors import StoreUnavailableError
from oncelery.job import Job, Lease, Progress, Submission
from oncelery.ledger import Ledger
from oncelery.settlement import Complete
from oncelery.stores.memory import MemoryStore
from oncelery.telemetry.logging import log
from oncelery.testing.clock import FakeClock

#: More messages than any test sends.
MOST = 40


@dataclass(frozen=True, slots=True)
class Delivered:
    """A message that was taken from the queue, and what Celery made of it."""

    id: str
    task: str
    headers: dict[str, Any]
    #: As Celery calls it; None for success.
    state: str | None
    value: Any


class Hand(World):
    """A world without servers: broker, results and ledger are in this process, the ledger on a clock to be moved."""

    def __init__(self, folder: Path) -> None:
        self.queue = secrets.token_hex(4)
        super().__init__(
            folder,
            {
                "broker_url": "memory://",
                "result_backend": "cache+memory://",
                "oncelery_store": "memory://",
                "task_default_queue": self.queue,
            },
        )
        # Results in memory are those of the whole process, and tests use the same ids.
        vars(cache)["_DUMMY_CLIENT_CACHE"].clear()
        self.clock = FakeClock()
        self.store = MemoryStore(clock=self.clock)
        self.once.__dict__["ledger"] = Ledger(self.store)

    def watch(self) -> None:
        """Log what happens in the ledger, as an app does."""
        self.once.ledger.events.subscribe(log)

    def deliver(self) -> Delivered:
        """Take the next message and run its task, whatever its ETA."""
        return next(self._deliveries())

    def deliver_all(self) -> list[Delivered]:
        """Run tasks until no message is left."""
        delivered = list(itertools.islice(self._deliveries(), MOST))
        assert len(delivered) < MOST, f"it goes on for ever: {delivered[-3:]}"
        return delivered

    def waiting(self, queue: str = "") -> int:
        """Count the messages in a queue."""
        with self.app.connection_for_read() as connection:
            return int(connection.SimpleQueue(queue or self.queue).qsize())

    def drop(self) -> int:
        """Lose the messages in the queue, and tell how many."""
        with self.app.connection_for_read() as connection:
            channel: Any = connection.default_channel
            return int(channel.queue_purge(self.queue))

    @contextmanager
    def broker_down(self) -> Iterator[None]:
        """Let no message through."""
        amqp: Any = self.app.amqp
        send = amqp.send_task_message

        def refuse(*_: object, **__: object) -> None:
            raise OperationalError("the broker is down")

        amqp.send_task_message = refuse
        try:
            yield
        finally:
            amqp.send_task_message = send

    @contextmanager
    def ledger_down(self) -> Iterator[None]:
        """Let no verb through."""
        ledger, store = self.once.ledger, self.once.ledger.store
        vars(ledger)["store"] = Away()
        try:
            yield
        finally:
            ledger.store = store

    def _deliveries(self) -> Iterator[Delivered]:
        with self.app.connection_for_read() as connection:
            queue = connection.SimpleQueue(self.queue)
            while True:
                try:
                    message = queue.get(block=False)
                except Empty:
                    return
                message.ack()
                yield self._run(message)

    def _run(self, message: Any) -> Delivered:
        message.accept = prepare_accept_content(self.app.conf.accept_content)
        args, kwargs, embedded = message.payload
        headers = message.headers
        info = {name: message.delivery_info.get(name) for name in ("exchange", "routing_key")}
        info |= {
            "priority": message.properties.get("priority"),
            "redelivered": message.delivery_info.get("redelivered"),
        }
        request = {**headers, **embedded, "delivery_info": info, "hostname": "hand", "is_eager": False}
        task = self.app.tasks[headers["task"]]
        trace = build_tracer(task.name, task, app=self.app)
        # As in a process of its own, also when a task that is running has this one delivered.
        ended = Context().run(trace, headers["id"], args, kwargs, request)
        state, value = (ended.info.state, ended.info.retval) if ended.info else (None, ended.retval)
        return Delivered(headers["id"], task.name, headers, state, value)


class Away:
    """A store that does not answer."""

    def __getattr__(self, verb: str) -> Any:
        def refuse(*_: object, **__: object) -> None:
            raise StoreUnavailableError(f"no answer to {verb}")

        return refuse


class Runner:
    """Runs a job step by step, as a task would."""

    def __init__(self, hand: Hand, job: Job) -> None:
        self.ledger = hand.once.ledger
        granted = self.ledger.begin(Submission(id=job.id, key=job.key, task=job.task), hand.once.policy())
        assert isinstance(granted, Granted)
        self.lease: Lease = granted.lease

    def reports(self, done: float, stage: str) -> None:
        self.ledger.record(self.lease, progress=Progress(done=done, total=3, stage=stage, message=f"{done:g} of 3"))

    def completes(self, result: bytes = b'"paid"') -> None:
        self.ledger.settle(self.lease, Complete(result=result))
