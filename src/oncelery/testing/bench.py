"""Bench: your app with broker, results, ledger and worker in the test's own process, on a clock that the test moves."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, get_args
from unittest import mock

from celery.app.trace import build_tracer
from celery.backends import cache
from kombu import Queue
from kombu.transport import memory

from oncelery.answers import RecordAnswer, SettleAnswer
from oncelery.celery.extension import Oncelery
from oncelery.celery.made_once import made_once
from oncelery.celery.task import IdempotentTask
from oncelery.errors import ConfigurationError
from oncelery.job import Job, Lease, Query, State
from oncelery.ledger import Ledger
from oncelery.run import run_under_way
from oncelery.settlement import Settlement
from oncelery.stores.base import PUBLISH_GRACE
from oncelery.stores.memory import MemoryStore
from oncelery.testing.clock import FakeClock

if TYPE_CHECKING:
    from celery import Celery
    from celery.result import AsyncResult

#: Where a worker can die: before the ledger knows of the run, before the task's body, after it but before its outcome
#: is recorded, and after that but before the message is acknowledged.
Place = Literal["before-begin", "after-begin", "before-settle", "after-settle"]

#: More messages than a test that ends would send.
MOST_MESSAGES = 1_000

#: What is made anew for the bench: by its settings, or on its ledger.
_CACHED = tuple(name for name, made in vars(Oncelery).items() if isinstance(made, made_once))


class WorkerCrash(BaseException):
    """The worker dies here. No code of yours should catch it, and the ledger hears no more of the run."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """A message that was taken from the queue, and what became of it."""

    task_id: str
    task: str
    #: As Celery calls it: SUCCESS, FAILURE, RETRY, IGNORED, REJECTED; or CRASHED.
    state: str
    #: What the task returned, or the error.
    value: Any


@dataclass(frozen=True, slots=True)
class _Message:
    headers: Mapping[str, Any]
    payload: Sequence[Any]
    routing: Mapping[str, Any]

    @property
    def due(self) -> datetime:
        """When it may run."""
        eta = self.headers.get("eta")
        return datetime.fromisoformat(eta) if eta else datetime.min.replace(tzinfo=UTC)


class Bench:
    """Plays broker and worker for an app; what waits is run when the test says so, in order of time."""

    def __init__(self, once: Oncelery) -> None:
        if not isinstance(once, Oncelery):
            raise TypeError(f"give the bench your Oncelery (`once`), not a {type(once).__name__}")
        self.once = once
        self.app: Celery[Any] = once.app
        #: The ledger's clock. It starts now, and stands until it is moved.
        self.clock = FakeClock(datetime.now(UTC))
        self._ran: Counter[str] = Counter()
        self._seen: dict[str, _Message] = {}
        self._waiting: list[tuple[datetime, int, _Message]] = []
        self._order = itertools.count()
        self._crashed: set[str] = set()
        self._unacknowledged: list[_Message] = []

    # Running

    def deliver(self) -> Delivered:
        """Run the next message; the clock moves to its time, if that is later."""
        self._fetch()
        if not self._waiting:
            raise AssertionError("no message waits: nothing was published, or all of it was run")
        _, _, message = heapq.heappop(self._waiting)
        self.clock.now = max(self.clock.now, message.due)
        return self._run(message)

    def run_all(self) -> list[Delivered]:
        """Run messages until none is left, retries and countdowns too, for which the clock moves."""
        delivered = []
        while self.waiting:
            delivered.append(self.deliver())
            if len(delivered) > MOST_MESSAGES:
                raise AssertionError(f"it goes on for ever: {delivered[-3:]}")
        return delivered

    @property
    def waiting(self) -> int:
        """How many messages wait."""
        self._fetch()
        return len(self._waiting)

    def redeliver(self, result: AsyncResult[Any] | str) -> Delivered:
        """Deliver a message once more, as a broker does; also from inside its own task."""
        message = self._seen.get(_id(result))
        if message is None:
            raise AssertionError(f"job {_id(result)} has not been delivered yet: call deliver() or run_all() first")
        return self._run(message)

    # Crashing

    @contextmanager
    def crash_at(self, place: Place) -> Iterator[None]:
        """Let the worker die at a place: the first run that gets there inside the block."""
        if place not in get_args(Place):
            raise ConfigurationError(f"no such place: {place!r}; there are {', '.join(get_args(Place))}")
        left = [place]

        def fire(here: str) -> None:
            if here in left:
                left.remove(here)
                self.crash()

        with mock.patch("oncelery.execution.failpoint", fire):
            yield
        if left:
            raise AssertionError(f"nothing crashed: no run came to {place!r} inside the block")

    def crash(self, *_: object, **__: object) -> None:
        """Let the worker die here and now: call it in a task, or give it to a mock as `side_effect`."""
        if run := run_under_way():
            self._crashed.add(run.lease.holder)
        raise WorkerCrash

    def recover(self) -> list[Delivered]:
        """Let leases of dead workers lapse, the broker deliver again what they held, the sweeper find what is lost."""
        running = self.once.ledger.find(Query(states=frozenset({State.RUNNING}), limit=MOST_MESSAGES)).items
        lapses = [job.lease_until - self.clock.now for job in running if job.lease_until]
        self.clock.now += max([PUBLISH_GRACE, *lapses]) + timedelta(seconds=1)
        while self._unacknowledged:
            self._enqueue(self._unacknowledged.pop())
        self.once.sweep()
        return self.run_all()

    # Looking

    def job(self, result: AsyncResult[Any] | str) -> Job:
        """Give the job behind a result."""
        job = self.once.jobs.get(_id(result))
        if job is None:
            raise AssertionError(f"no job {_id(result)} is known")
        return job

    def runs(self, result: AsyncResult[Any] | str) -> int:
        """Count how often the task's body was run for a job."""
        return self._ran[_id(result)]

    def assert_ran_once(self, result: AsyncResult[Any] | str) -> None:
        """Say that a job is completed, and that its task's body was run a single time for it."""
        job, runs = self.job(result), self.runs(result)
        if runs != 1 or job.state is not State.COMPLETED:
            cause = f" ({job.error.type}: {job.error.message})" if job.error else ""
            raise AssertionError(
                f"job {job.id} of {job.task} is {job.state}{cause}, and was run {runs} times, not once"
            )

    # How

    @contextmanager
    def in_place(self) -> Iterator[Bench]:
        """Take the place of broker, results and ledger while the block runs; afterwards all is as it was."""
        app, attributes, conf = self.app, vars(self.once), self._conf
        before, changes = dict(attributes), dict(conf.changes)
        settings = replace(self.once.settings, store="memory://")
        for name in _CACHED:
            attributes.pop(name, None)
        attributes |= {"settings": settings, "ledger": _MortalLedger(self, MemoryStore(clock=self.clock))}
        urls = {"broker_url": "memory://", "broker_read_url": "memory://", "broker_write_url": "memory://"}
        conf.update({**urls, "result_backend": "cache+memory://", "task_always_eager": False})
        _forget_connections(app)
        _forget_messages()
        try:
            yield self
        finally:
            self._unwatch()
            attributes.clear()
            attributes.update(before)
            conf.changes.clear()
            conf.changes.update(changes)
            _forget_connections(app)

    @property
    def _conf(self) -> Any:  # noqa: ANN401 - the stubs do not know what it is made of
        return self.app.conf

    def _fetch(self) -> None:
        with self.app.connection_for_read() as connection:
            channel: Any = connection.default_channel
            for name in list(memory.Channel.queues):
                while message := Queue(name, channel=channel).get(no_ack=True, accept=self.app.conf.accept_content):
                    info = {part: message.delivery_info.get(part) for part in ("exchange", "routing_key")}
                    routing = info | {"priority": message.properties.get("priority"), "redelivered": False}
                    self._enqueue(_Message(message.headers, message.payload, routing))

    def _enqueue(self, message: _Message) -> None:
        heapq.heappush(self._waiting, (message.due, next(self._order), message))

    def _run(self, message: _Message) -> Delivered:
        headers = message.headers
        again = headers["id"] in self._seen
        self._seen[headers["id"]] = message
        args, kwargs, embedded = message.payload
        info = {**message.routing, "redelivered": again}
        request = {**headers, **embedded, "delivery_info": info, "hostname": "bench", "is_eager": False}
        task = self.app.tasks[headers["task"]]
        self._watch(task)
        trace = build_tracer(task.name, task, app=self.app)
        try:
            # As in a process of its own, also when a task that is running has this one delivered.
            ended = Context().run(trace, headers["id"], args, kwargs, request)
        except WorkerCrash as crash:
            self._unacknowledged.append(message)
            return Delivered(headers["id"], task.name, "CRASHED", crash)
        state, value = (ended.info.state, ended.info.retval) if ended.info else ("SUCCESS", ended.retval)
        return Delivered(headers["id"], task.name, state, value)

    def _watch(self, task: Any) -> None:  # noqa: ANN401 - a task of Celery's
        """Count how often the task's body is run."""
        if not isinstance(task, IdempotentTask) or getattr(task.run, "bench", None) is self:
            return
        body = task.run

        @wraps(body)
        def counted(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the task's own
            if run := run_under_way():
                self._ran[run.job_id] += 1
            return body(*args, **kwargs)

        counted.bench = self  # type: ignore[attr-defined]
        vars(task)["run"] = counted

    def _unwatch(self) -> None:
        for task in self.app.tasks.values():
            body: Any = task.run
            if getattr(body, "bench", None) is self:
                vars(task)["run"] = body.__wrapped__

    def is_dead(self, lease: Lease) -> bool:
        """Whether the run that holds this lease has crashed."""
        return lease.holder in self._crashed


class _MortalLedger(Ledger):
    """Hears nothing of a run whose worker has died."""

    def __init__(self, bench: Bench, store: MemoryStore) -> None:
        super().__init__(store)
        self._bench = bench

    def settle(self, lease: Lease, settlement: Settlement) -> SettleAnswer:
        self._live(lease)
        return super().settle(lease, settlement)

    def record(self, lease: Lease, **what: Any) -> RecordAnswer:  # noqa: ANN401 - as it is
        self._live(lease)
        return super().record(lease, **what)

    def _live(self, lease: Lease) -> None:
        if self._bench.is_dead(lease):
            raise WorkerCrash


def _id(result: AsyncResult[Any] | str) -> str:
    return result if isinstance(result, str) else str(result.id)


def _forget_connections(app: Celery[Any]) -> None:
    """Have the app connect anew, by the URLs that it has now."""
    attributes: Any = vars(app)
    app._pool = None  # type: ignore[attr-defined] # noqa: SLF001 - Celery has no way to say it
    attributes.pop("amqp", None)
    app._backend_cache = None  # type: ignore[attr-defined] # noqa: SLF001 - the same
    vars(app._local).pop("backend", None)  # type: ignore[attr-defined] # noqa: SLF001 - the same


def _forget_messages() -> None:
    """Empty what all in-memory brokers and results of a process share."""
    memory.Channel.queues.clear()
    memory.Transport.global_state.clear()
    vars(cache)["_DUMMY_CLIENT_CACHE"].clear()
