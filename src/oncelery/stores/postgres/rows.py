"""What is sent to the verbs' functions, and what their rows mean."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, assert_never

from msgspec.structs import replace
from psycopg import sql
from psycopg.adapt import PyFormat

from oncelery.codec import decode, decode_cut, encode
from oncelery.job import (
    SUMMARY_BYTES,
    Answer,
    Attempt,
    Duplicate,
    DuplicateCount,
    Failure,
    Job,
    JobSummary,
    Progress,
    State,
    Tally,
)
from oncelery.settlement import Bury, Cancel, Complete, Release, Settlement
from oncelery.stores.postgres.values import Json, plain

#: A row as the driver gives it.
Row = tuple[Any, ...]

#: The columns of a job that are fields of the same name, as they are.
_FIELDS = (
    *("id", "key", "task", "scope", "queue", "caller"),
    *("created_at", "changed_at", "not_before", "begun_at", "settled_at", "retained_until"),
    *("holder", "worker", "fence", "lease_until", "attempt", "crashes"),
    *("cancel_requested", "behind", "result_omitted", "duplicates"),
)

#: Those that a list does not show, or not in full.
_WHOLE = ("digest", "follows", "body", "reason", "result", "replaced_by")

#: What a statement selects of a job in a list. Columns that are not named here are not read, however large they are.
_SUMMARY = ", ".join(
    [
        *(f"(job).{field}" for field in _FIELDS),
        "(job).state",
        # Longer than a list shows: what is escaped must be whole.
        f"left((job).reason, {SUMMARY_BYTES})",
        # As bytes: JSON has its own escapes. `decode_cut` reads what was cut.
        f"convert_to(left(split_part((job).error::text, '\",\"traceback\":\"', 1), {SUMMARY_BYTES}), 'UTF8')",
        f"convert_to(left((job).progress::text, {SUMMARY_BYTES}), 'UTF8')",
    ]
)

#: What a statement selects of a job. Most jobs have neither past nor steps; nothing is looked up for them.
_JOB = ", ".join(
    [
        *(f"(job).{field}" for field in (*_FIELDS, *_WHOLE)),
        "(job).state",
        "(job).error",
        "(job).progress",
        "CASE WHEN cardinality((job).past) > 0 THEN to_json((job).past) END",
        "CASE WHEN (job).stepped THEN {schema}.step_names((job).id) END",
        "CASE WHEN (job).stepped THEN {schema}.step_values((job).id) END",
    ]
)


def statement(namespace: str, verb: str, values: int, columns: str) -> bytes:
    """Write the call of a verb's function; `{job}` and `{summary}` stand for what `job_of` and `summary_of` read."""
    call = "SELECT " + columns.format(job=_JOB, summary=_SUMMARY) + " FROM {schema}.{verb}({values}) AS job"  # noqa: S608 - constants
    composed = sql.SQL(call).format(
        schema=sql.Identifier(namespace),
        verb=sql.Identifier(verb),
        values=sql.SQL(", ").join([sql.Placeholder(format=PyFormat.BINARY)] * values),
    )
    return composed.as_bytes(None)


def job_of(row: Sequence[Any]) -> Job:
    """Read the columns that `{job}` stands for."""
    *fields, state, error, progress, past, names, values = row
    known = dict(zip((*_FIELDS, *_WHOLE), fields, strict=True))
    if error:
        known["error"] = decode(error, Failure)
    if progress:
        known["progress"] = decode(progress, Progress)
    if past:
        known["past"] = tuple(_attempt_of(attempt) for attempt in decode(past, list[Attempt]))
    if names:
        known["steps"] = MappingProxyType(dict(zip(names, values, strict=True)))
    return Job(state=State(state), **known)


def summary_of(row: Sequence[Any]) -> JobSummary:
    """Read the columns that `{summary}` stands for."""
    *fields, state, reason, error, progress = row
    return JobSummary(
        state=State(state),
        reason=reason,
        error=decode_cut(error, Failure) if error else None,
        progress=decode_cut(progress, Progress) if progress else None,
        **dict(zip(_FIELDS, fields, strict=True)),
    ).shortened()


def duplicate_of(row: Row) -> Duplicate:
    """Read a duplicate; its place comes first."""
    _place, at, job_id, task, scope, caller, answer = row
    return Duplicate(at=at, job_id=job_id, task=task, scope=scope, caller=caller, answer=Answer(answer))


def duplicate_count_of(row: Row) -> DuplicateCount:
    """Read how often one answer was given in an hour."""
    hour, task, scope, answer, count = row
    return DuplicateCount(hour=hour, task=task, scope=scope, answer=Answer(answer), count=count)


def tally_of(row: Row) -> Tally:
    """Read the sums; an array is null where there is nothing to sum up."""
    states, counts, lapsed, overdue, tasks, decisions, decision_counts = row
    found = dict(zip(states or (), counts or (), strict=True))
    keys = zip(tasks or (), decisions or (), strict=True)
    return Tally(
        states=MappingProxyType({state: found.get(state, 0) for state in State}),
        lapsed=lapsed,
        overdue=overdue,
        decisions=MappingProxyType(dict(zip(keys, decision_counts or (), strict=True))),
    )


def ending_of(settlement: Settlement) -> tuple[object, ...]:
    """Name a settlement, then its result, replacement and omission, its reason, error, cause, delay and body."""
    match settlement:
        case Complete(result=result, replaced_by=replaced_by, omitted=omitted):
            return ("complete", result, replaced_by, omitted, None, None, None, None, None)
        case Bury(reason=reason, error=error):
            return ("bury", None, None, None, reason, json_of(error), None, None, None)
        case Cancel(reason=reason):
            return ("cancel", None, None, None, reason, None, None, None, None)
        case Release(cause=cause, delay=delay, error=error, body=body):
            return ("release", None, None, None, None, json_of(error), cause, delay, body)
        case _:
            assert_never(settlement)


def json_of(value: Failure | Progress | None) -> Json | None:
    """Write a small record, or nothing for None."""
    return None if value is None else Json(encode(value))


def cursor_of(job: JobSummary) -> str:
    """Name a job's place in the order of `find`."""
    return f"{job.changed_at.isoformat(timespec='microseconds')}/{job.id}"


def position_of(cursor: str) -> tuple[datetime, str]:
    """Read where a page of `find` ended."""
    changed_at, _, job_id = cursor.partition("/")
    return datetime.fromisoformat(changed_at), job_id


def _attempt_of(attempt: Attempt) -> Attempt:
    # Written by the server: its texts are escaped, its times in the time zone of that session.
    return replace(
        attempt,
        worker=plain(attempt.worker),
        begun_at=attempt.begun_at.astimezone(UTC),
        ended_at=attempt.ended_at.astimezone(UTC),
    )
