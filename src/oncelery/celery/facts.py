"""Gathers what the doctor looks at. Nothing is changed, and whatever does not answer is told as such."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from celery import Celery
from celery.schedules import crontab, maybe_schedule

from oncelery.celery.declaring import ONLY_ONE
from oncelery.celery.task import IdempotentTask
from oncelery.errors import OnceleryError, WebhookTargetError
from oncelery.job import Query, State
from oncelery.ledger import Ledger
from oncelery.operations.facts import (
    BrokerFacts,
    Facts,
    Period,
    QueueFacts,
    StoreFacts,
    TaskFacts,
    WorkerFacts,
)
from oncelery.settings import PREFIX, Settings
from oncelery.stores import open_store
from oncelery.stores.facts import Examinable, ServerFacts
from oncelery.telemetry.counting import bounds_of

if TYPE_CHECKING:
    from oncelery.celery.extension import Oncelery

#: How long the broker may take to answer, and for how long workers are waited for, in seconds.
BROKER_PATIENCE = 2.0
WORKERS_PATIENCE = 1.0

#: How many queued jobs are looked at for how long they were told to wait.
LOOKED_AT = 200

#: How many of its next runs a crontab's shortest gap is looked for in.
RUNS_LOOKED_AT = 10

#: What the names of Celery's own tasks, and of ours, begin with.
BUILT_IN = ("celery.", "oncelery.")

#: The settings of Celery that the checks read.
SETTINGS = (
    "accept_content",
    "broker_connection_max_retries",
    "broker_connection_retry",
    "broker_connection_retry_on_startup",
    "broker_transport_options",
    "result_accept_content",
    "task_always_eager",
    "worker_prefetch_multiplier",
)


def gather(once: Oncelery) -> Facts:
    """Look at the app, its broker, its store and its workers."""
    app = once.app
    app.loader.import_default_modules()
    app.finalize()
    broker = _broker(app)
    return Facts(
        store=_store(once.settings.store, lambda: once.ledger),
        settings=once.settings,
        variables=tuple(name for name in sorted(os.environ) if name.startswith(PREFIX.upper())),
        conf={name: app.conf.get(name) for name in SETTINGS},
        tasks=tuple(_task(task) for name, task in sorted(app.tasks.items()) if not name.startswith(BUILT_IN)),
        schedule=tuple(_schedule(app)),
        broker=broker,
        workers=() if broker.error else tuple(_workers(app)),
    )


def gather_store(url: str, namespace: str) -> Facts:
    """Look at a store alone."""
    return Facts(
        store=_store(url, lambda: Ledger(open_store(url, namespace=namespace))),
        settings=Settings(namespace=namespace),
    )


def _store(url: str, find_ledger: Callable[[], Ledger]) -> StoreFacts:
    scheme = urlsplit(url).scheme
    if not scheme:
        return StoreFacts(scheme="")
    try:
        ledger = find_ledger()
        asked_at, started = datetime.now(UTC), monotonic()
        server = ledger.store.server() if isinstance(ledger.store, Examinable) else None
        took = timedelta(seconds=monotonic() - started)
        skew = server.now - (asked_at + took / 2) if server else timedelta(0)
        if server and (server.replica or not server.ready):
            return StoreFacts(scheme=scheme, server=server, skew=skew)
        started = monotonic()
        tally = ledger.tally()
        return StoreFacts(
            scheme=scheme,
            server=server,
            skew=skew if abs(skew) > took else timedelta(0),
            round_trip=timedelta(seconds=monotonic() - started),
            tally=tally,
            p99=_p99(tally.decisions),
            longest_delay=_longest_delay(ledger),
        )
    except OnceleryError as error:
        return StoreFacts(scheme=scheme, error=str(error))


def _p99(decisions: Mapping[tuple[str, str], int]) -> dict[str, timedelta]:
    """Read from the counters of runs how long, at least, the slowest one in a hundred takes."""
    tasks: dict[str, dict[str, int]] = {}
    for (task, counted), count in decisions.items():
        tasks.setdefault(task, {})[counted] = count
    between = {task: bounds_of(counts, 0.99) for task, counts in tasks.items()}
    return {task: timedelta(seconds=float(bounds[0])) for task, bounds in between.items() if bounds}


def _longest_delay(ledger: Ledger) -> timedelta:
    queued = ledger.find(Query(states=frozenset({State.QUEUED}), limit=LOOKED_AT)).items
    return max((job.not_before - job.created_at for job in queued if job.not_before), default=timedelta(0))


def _broker(app: Celery) -> BrokerFacts:
    queues = tuple(
        QueueFacts(name=queue.name, arguments=queue.queue_arguments or {}) for queue in app.amqp.queues.values()
    )
    kind = ""
    try:
        with app.connection_for_read() as connection:
            kind = connection.transport.driver_type
            connection.ensure_connection(max_retries=1, timeout=BROKER_PATIENCE)
            return BrokerFacts(
                kind=kind,
                version=_rabbitmq_version(connection),
                server=_redis_server(connection) if kind == "redis" else None,
                queues=queues,
            )
    except Exception as error:  # noqa: BLE001 - each transport has errors of its own, and may itself be missing
        missing = _extra(app) if isinstance(error, ImportError) else ""
        return BrokerFacts(kind=kind, error=f"{type(error).__name__}: {error}", missing=missing, queues=queues)


def _extra(app: Celery) -> str:
    """Name the extra of Celery for its broker, by the URL, or the first of several."""
    urls: str | list[str] = app.conf.broker_read_url or ""
    scheme = urlsplit(urls if isinstance(urls, str) else urls[0]).scheme
    return "redis" if scheme in {"rediss", "sentinel"} else scheme


def _rabbitmq_version(connection: Any) -> tuple[int, ...]:
    properties = getattr(connection.connection, "server_properties", {})
    return tuple(int(part) for part in str(properties.get("version", "")).split(".")[:2] if part.isdigit())


def _redis_server(connection: Any) -> ServerFacts | None:
    try:
        says = {name: str(value) for name, value in connection.default_channel.client.info().items()}
    except connection.transport.channel_errors:
        return None  # our user may not ask
    return ServerFacts(
        kind="redis",
        version=tuple(int(number) for number in says["redis_version"].split(".")[:2]),
        now=datetime.now(UTC),
        says=says,
        replica=says.get("role") == "slave",
    )


def _workers(app: Celery) -> Iterator[WorkerFacts]:
    workers = app.control.inspect(timeout=WORKERS_PATIENCE)
    told = workers.stats() or {}
    registered = (workers.registered() or {}) if told else {}
    for name, stats in told.items():
        yield WorkerFacts(
            name=name,
            prefetched=stats.get("prefetch_count") or 0,
            concurrency=(stats.get("pool") or {}).get("max-concurrency") or 1,
            # Each name may be followed by options of the task, in brackets.
            knows=frozenset(task.partition(" [")[0] for task in registered[name]) if name in registered else None,
        )


def _schedule(app: Celery) -> Iterator[Period]:
    for name, entry in (app.conf.beat_schedule or {}).items():
        when = maybe_schedule(entry.get("schedule"), app=app)
        every = _shortest_gap(when) if isinstance(when, crontab) else getattr(when, "run_every", None)
        task = entry.get("task", "")
        yield Period(name=name, task=task, every=every, known=task in app.tasks)


def _shortest_gap(when: crontab) -> timedelta | None:
    runs = [datetime.now(UTC)]
    try:
        for _ in range(RUNS_LOOKED_AT + 1):
            start, ahead, _now = when.remaining_delta(runs[-1])
            runs.append(start + ahead)
    except RuntimeError:
        return None  # on a day that never comes
    return min(later - run for run, later in pairwise(runs[1:]))


def _task(task: Any) -> TaskFacts:
    guarded = isinstance(task, IdempotentTask)
    return TaskFacts(
        name=task.name,
        policy=task.policy if guarded else None,
        acks_late=bool(task.acks_late),
        reject_on_worker_lost=bool(task.reject_on_worker_lost),
        # Celery 5.6 and older know one option for both.
        acks_on_failure=bool(getattr(task, "acks_on_failure", task.acks_on_failure_or_timeout)),
        acks_on_timeout=bool(getattr(task, "acks_on_timeout", task.acks_on_failure_or_timeout)),
        only_one=getattr(task.run, ONLY_ONE, False),
        counted=_counted(task) if guarded else {},
        calls=frozenset(_code_of(task).co_names) if _code_of(task) else frozenset(),
        notify_refused=_notify_refused(task) if guarded else "",
    )


def _notify_refused(task: IdempotentTask) -> str:
    try:
        if task.policy.notify:
            task.oncelery.callbacks.check(task.policy.notify)
    except WebhookTargetError as error:
        return str(error)
    return ""


def _counted(task: IdempotentTask) -> dict[str, str]:
    ignored = task.policy.ignore
    left_out = {ignored} if isinstance(ignored, str) else set(ignored)
    parameters = inspect.signature(task.run).parameters.values()
    return {each.name: _type_name(each.annotation) for each in parameters if each.name not in left_out}


def _type_name(annotation: object) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")


def _code_of(task: Any) -> Any:
    return getattr(inspect.unwrap(task.run), "__code__", None)
