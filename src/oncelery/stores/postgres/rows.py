"""What a row says: columns of a job, and the job they make."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC
from types import MappingProxyType
from typing import Any

from oncelery.codec import decode, encode
from oncelery.job import Attempt, Failure, Job, Progress, State
from oncelery.stores.postgres.wire import Json, plain

#: A row as the driver gives it.
Row = tuple[Any, ...]

_FIELDS = (
    "id",
    "key",
    "task",
    "state",
    "scope",
    "queue",
    "caller",
    "digest",
    "body",
    "created_at",
    "changed_at",
    "not_before",
    "begun_at",
    "settled_at",
    "retained_until",
    "holder",
    "worker",
    "fence",
    "lease_until",
    "attempt",
    "crashes",
    "cancel_requested",
    "behind",
    "reason",
    "result",
    "duplicates",
)

#: What a statement selects of a `job`, for `job_of`. Most jobs have no steps and no past: nothing is looked up then.
COLUMNS = ", ".join(
    [f"(job).{field}" for field in _FIELDS]
    + [
        "(job).error",
        "(job).progress",
        "CASE WHEN cardinality((job).past) > 0 THEN to_json((job).past) END",
        "CASE WHEN (job).stepped THEN (SELECT array_agg(name ORDER BY name) FROM {schema}.steps WHERE job_id = (job).id) END",
        "CASE WHEN (job).stepped THEN (SELECT array_agg(value ORDER BY name) FROM {schema}.steps WHERE job_id = (job).id) END",
    ]
)


def job_of(row: Row) -> Job:
    """Read the columns of a job, the last ones of a row."""
    *fields, error, progress, past, names, values = row
    known = dict(zip(_FIELDS, fields[-len(_FIELDS) :], strict=True))
    known["state"] = State(known["state"])
    if error:
        known["error"] = decode(error, Failure)
    if progress:
        known["progress"] = decode(progress, Progress)
    if past:
        known["past"] = tuple(_attempt(attempt) for attempt in decode(past, list[Attempt]))
    if names:
        known["steps"] = MappingProxyType(dict(zip(names, values, strict=True)))
    return Job(**known)


def json_of(value: object) -> Json | None:
    """Write a small record, or nothing for None."""
    return None if value is None else Json(encode(value))


def _attempt(attempt: Attempt) -> Attempt:
    return replace(
        attempt,
        worker=plain(attempt.worker),
        begun_at=attempt.begun_at.astimezone(UTC),
        ended_at=attempt.ended_at.astimezone(UTC),
    )
