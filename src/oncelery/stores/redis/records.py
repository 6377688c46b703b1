"""What the scripts tell, read as the nouns of the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from oncelery.codec import decode, decode_cut
from oncelery.job import (
    EPOCH,
    MICROSECOND,
    Answer,
    Attempt,
    Cause,
    Duplicate,
    DuplicateCount,
    Failure,
    Job,
    JobSummary,
    Progress,
    State,
    Tally,
)
from oncelery.stores.redis.packing import unpack_holder, unpack_id, unpack_key

#: What the names of the fields that hold steps begin with.
STEP = b"step:"

#: A value as the server sends it: text, or a number that Lua worked out.
Value = bytes | int


def microseconds(span: timedelta) -> int:
    """Write a span of time as the scripts count it."""
    return span // MICROSECOND


def instant(value: Value) -> datetime:
    """Read a time as the scripts count it."""
    return EPOCH + timedelta(microseconds=int(value))


class Fields(dict[bytes, Value]):
    """The fields of one job; what is missing is none."""

    def text(self, name: bytes) -> str:
        """Read text; empty if there is none."""
        return bytes(self.get(name, b"")).decode()

    def octets(self, name: bytes) -> bytes | None:
        """Read bytes as they were given."""
        value = self.get(name)
        return None if value is None else bytes(value)

    def number(self, name: bytes) -> int:
        """Read a number; 0 if there is none."""
        return int(self.get(name, 0))

    def time(self, name: bytes) -> datetime | None:
        """Read a time."""
        value = self.get(name)
        return None if value is None else instant(value)


def read_job(flat: Iterable[Value]) -> Job:
    """Read a job from its fields and values."""
    fields = Fields(_pairs(flat))
    return Job(
        **_listed(fields),
        digest=fields.text(b"digest"),
        follows=fields.text(b"follows"),
        body=fields.octets(b"body"),
        past=_past(fields.octets(b"past")),
        reason=fields.text(b"reason"),
        error=_failure(fields.octets(b"error")),
        result=fields.octets(b"result"),
        replaced_by=fields.octets(b"replaced_by"),
        result_omitted=fields.text(b"result_omitted"),
        progress=_progress(fields.octets(b"progress")),
        steps=read_steps(part for pair in fields.items() if pair[0].startswith(STEP) for part in pair),
    )


def read_summary(flat: Iterable[Value]) -> JobSummary:
    """Read what a list shows of a job; its texts may be cut."""
    fields = Fields(_pairs(flat))
    error, progress = fields.octets(b"error"), fields.octets(b"progress")
    return JobSummary(
        **_listed(fields),
        reason=(fields.octets(b"reason") or b"").decode(errors="ignore"),
        error=decode_cut(error, Failure) if error else None,
        result_omitted=(fields.octets(b"result_omitted") or b"").decode(errors="ignore"),
        progress=decode_cut(progress, Progress) if progress else None,
    ).shortened()


def _listed(fields: Fields) -> dict[str, Any]:
    """Read what every job has and no list cuts."""
    state = State(fields.text(b"state"))
    retained_until = fields.number(b"settled_at") + fields.number(b"retention")
    return {
        "id": unpack_id(fields.octets(b"id") or b""),
        "key": unpack_key(fields.octets(b"key") or b""),
        "task": fields.text(b"task"),
        "state": state,
        "scope": fields.text(b"scope"),
        "queue": fields.text(b"queue"),
        "caller": fields.text(b"caller"),
        "created_at": instant(fields[b"created_at"]),
        "changed_at": instant(fields[b"changed_at"]),
        "not_before": fields.time(b"not_before"),
        "begun_at": fields.time(b"begun_at"),
        "settled_at": fields.time(b"settled_at"),
        "retained_until": instant(retained_until) if state is State.COMPLETED else None,
        "holder": unpack_holder(fields.octets(b"holder") or b""),
        "worker": fields.text(b"worker"),
        "fence": fields.number(b"fence"),
        "lease_until": fields.time(b"lease_until"),
        "attempt": fields.number(b"attempt"),
        "crashes": fields.number(b"crashes"),
        "cancel_requested": b"cancel_requested" in fields,
        "behind": unpack_id(fields.octets(b"behind") or b""),
        "duplicates": fields.number(b"duplicates"),
    }


def read_duplicate(flat: Iterable[Value]) -> Duplicate:
    """Read one line of the audit."""
    fields = Fields(_pairs(flat))
    return Duplicate(
        at=instant(fields[b"at"]),
        job_id=unpack_id(fields.octets(b"job_id") or b""),
        task=fields.text(b"task"),
        scope=fields.text(b"scope"),
        caller=fields.text(b"caller"),
        answer=Answer(fields.text(b"answer")),
    )


def read_counts(hours: Iterable[Any]) -> list[DuplicateCount]:
    """Read the audit by the hour."""
    counts = []
    for hour, flat in _pairs(hours):
        for words, count in sorted((decode(name, list[str]), int(value)) for name, value in _pairs(flat)):
            task, scope, answer = words
            counts.append(
                DuplicateCount(hour=instant(hour), task=task, scope=scope, answer=Answer(answer), count=count)
            )
    return counts


def read_tally(told: Sequence[Any]) -> Tally:
    """Read how the ledger stands."""
    *numbers, lapsed, overdue, decisions = told
    counted: dict[tuple[str, str], int] = {
        decode(name, tuple[str, str]): int(count) for name, count in _pairs(decisions)
    }
    return Tally(
        states=MappingProxyType(dict(zip(State, numbers, strict=True))),
        lapsed=lapsed,
        overdue=overdue * MICROSECOND,
        decisions=MappingProxyType(counted),
    )


def read_steps(flat: Iterable[Value]) -> Mapping[str, bytes]:
    """Read finished steps from their fields and values."""
    return MappingProxyType(
        {name.removeprefix(STEP).decode(errors="surrogatepass"): bytes(value) for name, value in _pairs(flat)}
    )


def _pairs(flat: Iterable[Any]) -> Iterable[tuple[bytes, Any]]:
    parts = iter(flat)
    return zip(parts, parts, strict=True)


def _failure(text: bytes | str | None) -> Failure | None:
    return decode(text, Failure) if text else None


def _progress(text: bytes | None) -> Progress | None:
    return decode(text, Progress) if text else None


def _past(text: bytes | None) -> tuple[Attempt, ...]:
    if text is None:
        return ()
    rows: list[tuple[int, int, str, int, int, str, str]] = decode(text, list[tuple[int, int, str, int, int, str, str]])
    return tuple(
        Attempt(
            number=number,
            fence=fence,
            worker=worker,
            begun_at=instant(begun_at),
            ended_at=instant(ended_at),
            cause=Cause(cause),
            error=_failure(error),
        )
        for number, fence, worker, begun_at, ended_at, cause, error in rows
    )
