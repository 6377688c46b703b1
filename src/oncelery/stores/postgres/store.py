"""The ledger in PostgreSQL: each verb is one function in the database, called by one statement."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from oncelery import answers as a
from oncelery.errors import ConfigurationError
from oncelery.job import (
    DEFAULT_NAMESPACE,
    Duplicate,
    DuplicateCount,
    Durability,
    Job,
    JobSummary,
    Lease,
    OnDuplicate,
    Page,
    Progress,
    Query,
    Quota,
    State,
    Submission,
    Tally,
)
from oncelery.settlement import Settlement
from oncelery.stores.base import Clock
from oncelery.stores.facts import ServerFacts
from oncelery.stores.postgres import rows, schema
from oncelery.stores.postgres.address import Address
from oncelery.stores.postgres.connections import BorrowedConnection, BoundedConnection, Connections
from oncelery.stores.postgres.facts import server_facts
from oncelery.stores.postgres.faults import store_errors
from oncelery.stores.postgres.rows import Row

if TYPE_CHECKING:
    import psycopg

_NAMESPACE = re.compile(r"[a-z_][a-z0-9_]{0,62}")

#: The server's cluster and the database in it, whatever name and address they are reached by.
_IDENTITY = (
    b"SELECT system_identifier || '/' || oid FROM pg_control_system(), pg_database WHERE datname = current_database()"
)

#: The answers that consist of a job, by the name that the verb's function gives.
_OF_A_JOB = (
    *(a.Reserved, a.Existing, a.Mismatched, a.Busy, a.Later, a.Finished, a.Buried, a.Cancelled),
    *(a.Requested, a.Revived, a.Resubmitted, a.NotBuried, a.Discarded),
)
_ANSWERS: dict[str, Callable[[Job], Any]] = {
    **{answer.__name__: answer for answer in _OF_A_JOB},
    "Repeated": partial(a.Existing, repeated=True),
}

#: No limit.
NO_QUOTA = Quota()


class PostgresStore:
    """Keeps the ledger in the schema `namespace` of a PostgreSQL database (14 or newer).

    The URL is the one that psql takes. It may also say `migrate=false` (the schema is made by `oncelery migrate`, not
    at the first use), `pgbouncer=true` (behind a pooler in transaction mode), `connections=` (most per process; 4).
    """

    shared = True

    def __init__(self, url: str, *, namespace: str = DEFAULT_NAMESPACE, clock: Clock | None = None) -> None:
        if not _NAMESPACE.fullmatch(namespace):
            raise ConfigurationError(f"namespace must be a-z, 0-9 and _, 63 at most, not {namespace!r}")
        self.namespace = namespace
        self._clock = clock
        self._statements: dict[str, bytes] = {}
        self._identity: str | None = None
        self._connections = Connections(Address.parse(url), check=self._check)
        self._session: Connections | BorrowedConnection = self._connections
        # A connection of their own, so that renewals wait behind no verb that waits for a lock.
        alone = Connections(replace(Address.parse(url), connections=1), check=self._check)
        self._renewals: Connections | BorrowedConnection = alone

    def migrate(self) -> None:
        """Make the schema, or bring it to this version; nothing is ever set back."""
        with store_errors(), self._connections.connect() as connection:
            schema.migrate(connection, self.namespace)

    def missing(self) -> str:
        """Write what `migrate` would do, and do nothing."""
        with store_errors(), self._connections.connect() as connection:
            return schema.script(self.namespace, schema.installed(connection, self.namespace))

    def within(self, connection: psycopg.Connection[Any]) -> PostgresStore:
        """Give this store inside the caller's transaction: what it does is done if and when the caller commits."""
        with store_errors():
            self._connections.check()
        inside = copy(self)
        inside._session = inside._renewals = BorrowedConnection(connection)  # noqa: SLF001 - a copy of itself
        return inside

    def identity(self, connection: psycopg.Connection[Any] | None = None) -> str:
        """Name the database that the connection leads to, or the ledger's own; no two have the same name."""
        with store_errors():
            if connection is not None:
                return str(BorrowedConnection(connection).fetch(_IDENTITY, ())[0][0])
            if self._identity is None:
                self._identity = str(self._connections.fetch(_IDENTITY, ())[0][0])
            return self._identity

    # Verbs

    def reserve(self, submission: Submission, *, on_duplicate: OnDuplicate) -> a.ReserveAnswer:
        quota = submission.quota or NO_QUOTA
        limits = (quota.max_active, quota.per_minute)
        values = (*_work(submission), submission.delay, *_keeping(submission), on_duplicate, *limits)
        [(answer, wait, *job)] = self._call("reserve", values, "answer, wait, {job}")
        return a.Full(wait) if answer == "Full" else _answer(answer, job)

    def reserving(self, submission: Submission, *, on_duplicate: OnDuplicate) -> Callable[[], a.ReserveAnswer]:
        return partial(self.reserve, submission, on_duplicate=on_duplicate)

    def begin(
        self, submission: Submission, *, holder: str, worker: str, lease: timedelta, max_crashes: int, hold: bool
    ) -> a.BeginAnswer:
        values = (*_work(submission), *_keeping(submission), holder, worker, lease, max_crashes, hold)
        [(answer, interrupted, *columns)] = self._call("begin_run", values, "answer, (job).interrupted, {job}")
        if answer == "Granted":
            job = rows.job_of(columns)
            return a.Granted(job.lease(lease, submission.durability), interrupted, job.steps, job.body)
        declined: a.BeginAnswer = _answer(answer, columns)
        return declined

    def renew(self, leases: Sequence[Lease]) -> Sequence[a.RenewAnswer]:
        if not leases:
            return []
        values = (
            [lease.job_id for lease in leases],
            [lease.holder for lease in leases],
            [lease.fence for lease in leases],
            [lease.duration for lease in leases],
        )
        [answers] = self._call("renew", values, session=self._renewals)
        return [
            a.Renewed(until, cancel_requested) if ours else _unowned(state)
            for ours, until, cancel_requested, state in zip(*answers, strict=True)
        ]

    def settle(self, lease: Lease, settlement: Settlement) -> a.SettleAnswer:
        safe = lease.durability is Durability.SAFE
        values = (lease.job_id, lease.key, lease.holder, lease.fence, safe, *rows.ending_of(settlement))
        [(answer, state, next_id)] = self._call("settle", values)
        return a.Settled(State(state), next_id) if answer == "Settled" else _unowned(state)

    def record(
        self, lease: Lease, *, progress: Progress | None = None, step: tuple[str, bytes] | None = None
    ) -> a.RecordAnswer:
        # Progress is worth no wait.
        safe = step is not None and lease.durability is Durability.SAFE
        values = (lease.job_id, lease.holder, lease.fence, safe, rows.json_of(progress), *(step or (None, None)))
        [(answer, cancel_requested, state)] = self._call("record", values)
        return a.Recorded(cancel_requested) if answer == "Recorded" else _unowned(state)

    def cancel(self, job_id: str, *, reason: str, force: bool = False) -> a.CancelAnswer:
        told: a.CancelAnswer = self._ask("cancel", (job_id, reason, force, False))
        return told

    def withdraw(self, job_id: str, *, reason: str) -> a.CancelAnswer | a.Existing:
        told: a.CancelAnswer | a.Existing = self._ask("cancel", (job_id, reason, False, True))
        return told

    def revive(self, job_id: str, *, body: bytes | None = None, submission: Submission | None = None) -> a.ReviveAnswer:
        other: tuple[object, ...] = (None,) * 13
        if s := submission:
            body = s.body
            kept = (s.delay, *_keeping(s))
            other = (s.id, s.key, s.alias, s.task, s.digest, s.follows, s.scope, s.queue, s.caller, *kept)
        told: a.ReviveAnswer = self._ask("revive", (job_id, body, *other))
        return told

    def discard(self, job_id: str) -> a.DiscardAnswer:
        told: a.DiscardAnswer = self._ask("discard", (job_id,))
        return told

    def received(self, job_id: str, *, limit: int, lease: timedelta | None = None) -> a.ReceivedAnswer:
        [(answer, counted, *job)] = self._call("received", (job_id, limit, lease), "answer, counted, {job}")
        return a.Counted(counted) if answer == "Counted" else _answer(answer, job)

    def due(
        self, *, limit: int, empty_queues: Collection[str] = (), formats: Collection[str] | None = None
    ) -> Sequence[Job]:
        values = (limit, list(empty_queues), None if formats is None else list(formats))
        return [rows.job_of(row) for row in self._call("due", values, "{job}")]

    # Reading and housekeeping

    def get(self, job_id: str) -> Job | None:
        found = self._call("get", (job_id,), "{job}")
        return rows.job_of(found[0]) if found else None

    def last(self, key: str) -> Job | None:
        found = self._call("last", (key,), "{job}")
        return rows.job_of(found[0]) if found else None

    def find(self, query: Query) -> Page[JobSummary]:
        end_at, end_id = rows.position_of(query.cursor) if query.cursor else (None, None)
        limits = (query.since, query.until, end_at, end_id, query.limit + 1)
        found = self._call("find", (list(query.states), query.task, query.scope, *limits), "{summary}")
        jobs = tuple(rows.summary_of(row) for row in found[: query.limit])
        return Page(items=jobs, cursor=rows.cursor_of(jobs[-1]) if len(found) > len(jobs) else "")

    def duplicates(self, *, cursor: str = "", limit: int = 50, task: str = "", scope: str = "") -> Page[Duplicate]:
        found = self._call("duplicates", (task, scope, int(cursor) if cursor else None, limit + 1))
        shown = found[:limit]
        items = tuple(rows.duplicate_of(row) for row in shown)
        return Page(items=items, cursor=str(shown[-1][0]) if len(found) > len(shown) else "")

    def duplicate_counts(self, *, since: datetime, task: str = "", scope: str = "") -> Sequence[DuplicateCount]:
        return [rows.duplicate_count_of(row) for row in self._call("duplicate_counts", (since, task, scope))]

    def count(self, decisions: Mapping[tuple[str, str], int]) -> None:
        if decisions:
            tasks, names = [task for task, _ in decisions], [name for _, name in decisions]
            self._call("count", (tasks, names, list(decisions.values())))

    def tally(self) -> Tally:
        [row] = self._call("tally", ())
        return rows.tally_of(row)

    def prune(self, *, limit: int) -> int:
        [(pruned,)] = self._call("prune", (limit,))
        return int(pruned)

    def server(self) -> ServerFacts:
        with store_errors(), self._connections.connect() as connection:
            return server_facts(connection, self.namespace, migrates=self._connections.migrates)

    def close(self) -> None:
        self._session.close()
        self._renewals.close()

    def _ask(self, verb: str, values: Sequence[object]) -> Any:  # noqa: ANN401 - each verb knows which answers it has
        [(answer, *job)] = self._call(verb, values, "answer, {job}")
        return _answer(answer, job)

    def _call(
        self,
        verb: str,
        values: Sequence[object],
        columns: str = "*",
        *,
        session: Connections | BorrowedConnection | None = None,
    ) -> list[Row]:
        """Call the verb's function with these values and the time."""
        statement = self._statements.get(verb)
        if statement is None:
            statement = rows.statement(self.namespace, verb, len(values) + 1, columns)
            self._statements[verb] = statement
        now = self._clock() if self._clock else None
        with store_errors():
            return (session or self._session).fetch(statement, (*values, now))

    def _check(self, connection: BoundedConnection, *, migrate: bool) -> None:
        (schema.migrate if migrate else schema.verify)(connection, self.namespace)


def _work(submission: Submission) -> tuple[object, ...]:
    s = submission
    return (s.id, s.key, s.alias, s.task, s.body, s.digest, s.follows, s.scope, s.queue, s.caller)


def _keeping(submission: Submission) -> tuple[object, ...]:
    return (submission.retention, submission.history, submission.durability is Durability.SAFE)


def _answer(name: str, job: Sequence[Any]) -> Any:  # noqa: ANN401 - each verb knows which answers its own function gives
    return a.Absent() if name == "Absent" else _ANSWERS[name](rows.job_of(job))


def _unowned(state: str | None) -> a.Fenced | a.Absent:
    return a.Fenced(State(state)) if state else a.Absent()
