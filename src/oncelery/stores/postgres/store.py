"""The ledger in PostgreSQL: each verb is one function in the database, called by one statement."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from datetime import datetime, timedelta
from typing import Any, Protocol, assert_never

import psycopg
from psycopg import sql

from oncelery import answers as a
from oncelery.errors import ConfigurationError
from oncelery.job import (
    Durability,
    Duplicate,
    DuplicateCount,
    Job,
    Lease,
    OnDuplicate,
    Page,
    Progress,
    Query,
    State,
    Submission,
    Tally,
)
from oncelery.settlement import Bury, Cancel, Complete, Release, Settlement
from oncelery.stores.base import Clock
from oncelery.stores.postgres import schema
from oncelery.stores.postgres.address import Address
from oncelery.stores.postgres.connections import Connections
from oncelery.stores.postgres.faults import store_errors
from oncelery.stores.postgres.rows import COLUMNS, Row, job_of, json_of
from oncelery.stores.postgres.wire import Json

_NAMESPACE = re.compile(r"[a-z_][a-z0-9_]{0,62}")

_RESERVE: dict[str, Callable[[Job], a.ReserveAnswer]] = {
    "Reserved": a.Reserved,
    "Existing": a.Existing,
    "Mismatched": a.Mismatched,
}
_BEGIN: dict[str, Callable[[Job], a.BeginAnswer]] = {
    "Busy": a.Busy,
    "Later": a.Later,
    "Finished": a.Finished,
    "Cancelled": a.Cancelled,
    "Mismatched": a.Mismatched,
}


class PostgresStore:
    """Keeps the ledger in the schema `namespace` of a PostgreSQL database (14 or newer)."""

    shared = True

    def __init__(self, url: str, *, namespace: str = "oncelery", clock: Clock | None = None) -> None:
        if not _NAMESPACE.fullmatch(namespace):
            raise ConfigurationError(f"namespace must be small letters, digits and _, not {namespace!r}")
        self._namespace = namespace
        self._clock = clock
        address = Address.parse(url)
        check = schema.migrate if address.migrate else schema.verify
        self._connections = Connections(address, check=lambda connection: check(connection, namespace))
        self._statements: dict[str, sql.Composed] = {}

    # Verbs

    def reserve(self, submission: Submission, *, on_duplicate: OnDuplicate) -> a.ReserveAnswer:
        values = (*_work(submission), submission.delay, *_keeping(submission), on_duplicate)
        [(answer, *job)] = self._call("reserve", values, f"answer, {COLUMNS}")
        return _RESERVE[answer](job_of(job))

    def begin(
        self, submission: Submission, *, holder: str, worker: str, lease: timedelta, max_crashes: int, hold: bool
    ) -> a.BeginAnswer:
        values = (*_work(submission), *_keeping(submission), holder, worker, lease, max_crashes, hold)
        [(answer, *columns)] = self._call("begin", values, f"answer, {COLUMNS}")
        if answer == "Absent":
            return a.Absent()
        job = job_of(columns)
        if answer == "Granted":
            return a.Granted(_lease(job, lease, submission.durability), job.crashes > 0, job.steps, job.body)
        return _BEGIN[answer](job)

    def renew(self, leases: Sequence[Lease]) -> Sequence[a.RenewAnswer]:
        values = (
            [lease.job_id for lease in leases],
            [lease.holder for lease in leases],
            [lease.fence for lease in leases],
            [lease.duration for lease in leases],
        )
        return [_renewed(*row) for row in self._call("renew", values, "*")]

    def settle(self, lease: Lease, settlement: Settlement) -> a.SettleAnswer:
        safe = lease.durability is Durability.SAFE
        values = (lease.job_id, lease.key, lease.holder, lease.fence, safe, *_ending(settlement))
        [(answer, state, next_id)] = self._call("settle", values, "*")
        if answer == "Fenced":
            return a.Fenced(State(state) if state else None)
        return a.Settled(State(state), next_id)

    # Reading and housekeeping

    def get(self, job_id: str) -> Job | None:
        rows = self._call("get", (job_id,), COLUMNS)
        return job_of(rows[0]) if rows else None

    def last(self, key: str) -> Job | None:
        rows = self._call("last", (key,), COLUMNS)
        return job_of(rows[0]) if rows else None

    def close(self) -> None:
        self._connections.close()

    def _call(self, verb: str, values: Sequence[object], columns: str) -> list[Row]:
        """Call the verb's function with these values and the time."""
        statement = self._statements.get(verb)
        if statement is None:
            statement = self._statements[verb] = _statement(self._namespace, verb, len(values) + 1, columns)
        now = self._clock() if self._clock else None
        with store_errors():
            return self._connections.fetch(statement, (*values, now))


def _statement(namespace: str, verb: str, count: int, columns: str) -> sql.Composed:
    return sql.SQL("SELECT " + columns + " FROM {schema}.{verb}({values}) AS job").format(
        schema=sql.Identifier(namespace),
        verb=sql.Identifier(verb),
        values=sql.SQL(", ").join([sql.Placeholder()] * count),
    )


def _work(submission: Submission) -> tuple[object, ...]:
    s = submission
    return (s.id, s.key, s.task, s.body, s.digest, s.scope, s.queue, s.caller)


def _keeping(submission: Submission) -> tuple[object, ...]:
    return (submission.retention, submission.history, submission.durability is Durability.SAFE)


def _lease(job: Job, duration: timedelta, durability: Durability) -> Lease:
    assert job.lease_until is not None  # noqa: S101 - a running job has a lease
    return Lease(
        job_id=job.id,
        key=job.key,
        task=job.task,
        scope=job.scope,
        holder=job.holder,
        fence=job.fence,
        attempt=job.attempt,
        crashes=job.crashes,
        until=job.lease_until,
        duration=duration,
        durability=durability,
    )


def _renewed(ours: bool | None, until: datetime, cancel_requested: bool, state: str | None) -> a.RenewAnswer:  # noqa: FBT001
    if ours:
        return a.Renewed(until, cancel_requested)
    return a.Fenced(State(state) if state else None)


def _ending(settlement: Settlement) -> tuple[object, ...]:
    """Name the settlement, then its result, reason, error, cause and delay."""
    match settlement:
        case Complete(result=result):
            return ("complete", result, None, None, None, None)
        case Bury(reason=reason, error=error):
            return ("bury", None, reason, json_of(error), None, None)
        case Cancel(reason=reason):
            return ("cancel", None, reason, None, None, None)
        case Release(cause=cause, delay=delay, error=error):
            return ("release", None, None, json_of(error), cause, delay)
        case _:
            assert_never(settlement)
