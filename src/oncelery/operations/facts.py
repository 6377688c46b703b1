"""What the doctor looks at: an app, its broker, its ledger and its workers, as they are; gathered elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from oncelery.job import Tally
from oncelery.policy import Policy
from oncelery.settings import Settings
from oncelery.stores.facts import ServerFacts

#: How long Celery's Redis transport waits for an acknowledgement, in seconds, unless it is told otherwise.
DEFAULT_VISIBILITY_TIMEOUT = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFacts:
    """A task that the app knows; `policy` is None if it is not guarded."""

    name: str
    policy: Policy | None = None
    acks_late: bool = True
    reject_on_worker_lost: bool = True
    acks_on_failure: bool = True
    acks_on_timeout: bool = True
    #: Whether `@only_one` keeps its instances apart.
    only_one: bool = False
    #: The arguments that make its key, with the names of their types.
    counted: Mapping[str, str] = field(default_factory=dict)
    #: What its code calls by name.
    calls: frozenset[str] = frozenset()
    #: Why its own call-back could not be sent; empty if it could, or there is none.
    notify_refused: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """An entry of beat's schedule."""

    name: str
    task: str
    #: The least time between two runs; None where it cannot be told, as by the sun.
    every: timedelta | None
    #: Whether the app knows the task.
    known: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    """A queue that the app declares, with what it asks of the broker."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFacts:
    """The broker."""

    #: By its transport: "redis", "amqp", "memory", ...
    kind: str
    #: Why it did not answer; empty if it did.
    error: str = ""
    #: The extra of Celery that is not installed, if that is why.
    missing: str = ""
    #: Where it is a RabbitMQ.
    version: tuple[int, ...] = ()
    #: Where it is a Redis.
    server: ServerFacts | None = None
    queues: tuple[QueueFacts, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """A worker that answered."""

    name: str
    prefetched: int
    concurrency: int
    #: The names of the tasks that it knows; None if it did not tell.
    knows: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """The ledger's store."""

    #: The scheme of its URL; empty if there is none.
    scheme: str
    #: Why it did not answer; empty if it did.
    error: str = ""
    server: ServerFacts | None = None
    #: How far its clock is ahead of this machine's.
    skew: timedelta = timedelta(0)
    #: How long it took to answer.
    round_trip: timedelta = timedelta(0)
    tally: Tally | None = None
    #: How long runs of each task take, but for one in a hundred.
    p99: Mapping[str, timedelta] = field(default_factory=dict)
    #: The longest that a job that is queued now was told to wait.
    longest_delay: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All of it. Without an app, only the store."""

    store: StoreFacts
    settings: Settings = field(default_factory=Settings)
    #: The names in the environment that begin like those of ours.
    variables: tuple[str, ...] = ()
    #: Celery's own settings.
    conf: Mapping[str, Any] = field(default_factory=dict)
    tasks: tuple[TaskFacts, ...] = ()
    schedule: tuple[Period, ...] = ()
    broker: BrokerFacts = field(default_factory=lambda: BrokerFacts(kind=""))
    workers: tuple[WorkerFacts, ...] = ()

    @property
    def guarded(self) -> tuple[tuple[TaskFacts, Policy], ...]:
        """The tasks that run through the ledger, with their policies."""
        return tuple((task, task.policy) for task in self.tasks if task.policy)

    @property
    def safe_tasks(self) -> list[str]:
        """Those whose transitions must survive a crash of the store."""
        return [task.name for task, policy in self.guarded if policy.durability == "safe"]

    @property
    def visibility_timeout(self) -> timedelta | None:
        """After how long Redis delivers a message once more; None on other brokers."""
        if self.broker.kind != "redis":
            return None
        options = self.conf.get("broker_transport_options") or {}
        return timedelta(seconds=float(options.get("visibility_timeout", DEFAULT_VISIBILITY_TIMEOUT)))
