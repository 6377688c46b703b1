"""The ledger on Redis or Valkey: each verb is one script, and its reply read as an answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from oncelery import answers as a
from oncelery.codec import encode
from oncelery.errors import ConfigurationError
from oncelery.job import (
    Duplicate,
    DuplicateCount,
    Durability,
    Failure,
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
from oncelery.stores import DEFAULT_NAMESPACE
from oncelery.stores.base import Clock
from oncelery.stores.redis.address import Address
from oncelery.stores.redis.connection import Server
from oncelery.stores.redis.packing import pack, unpack
from oncelery.stores.redis.records import (
    EPOCH,
    instant,
    microseconds,
    read_counts,
    read_duplicate,
    read_job,
    read_steps,
    read_tally,
)
from oncelery.stores.redis.scripts import Word

#: The answers that are a name and a job, or a name alone.
ANSWERS: dict[bytes, Any] = {
    b"reserved": a.Reserved,
    b"existing": a.Existing,
    b"mismatched": a.Mismatched,
    b"busy": a.Busy,
    b"later": a.Later,
    b"finished": a.Finished,
    b"buried": a.Buried,
    b"cancelled": a.Cancelled,
    b"absent": a.Absent,
    b"requested": a.Requested,
    b"revived": a.Revived,
    b"not_buried": a.NotBuried,
    b"discarded": a.Discarded,
}


class RedisStore:
    """Keeps the ledger on Redis 6.2 or newer, or on Valkey, under keys that begin with `{namespace}:`."""

    shared = True

    def __init__(self, url: str, *, namespace: str = DEFAULT_NAMESPACE, clock: Clock | None = None) -> None:
        if not namespace or set(namespace) & set("{}"):
            raise ConfigurationError(f"a namespace is not empty and has no braces, unlike {namespace!r}")
        self._server = Server(Address(url), b"{%b}:" % namespace.encode())
        self._clock = clock

    # Verbs

    def reserve(self, submission: Submission, *, on_duplicate: OnDuplicate) -> a.ReserveAnswer:
        body = () if submission.body is None else (submission.body,)
        safe = submission.durability is Durability.SAFE
        answer = self._server.run("reserve", self._now(), *_offer(submission), on_duplicate, *body, safe=safe)
        return _accepted(submission, answer) if answer[0] == b"accepted" else _answer(answer)

    def begin(
        self, submission: Submission, *, holder: str, worker: str, lease: timedelta, max_crashes: int, hold: bool
    ) -> a.BeginAnswer:
        body = () if submission.body is None else (submission.body,)
        terms = (pack(holder), worker, microseconds(lease), max_crashes, "1" if hold else "")
        safe = submission.durability is Durability.SAFE
        answer = self._server.run("begin", self._now(), *_offer(submission), *terms, *body, safe=safe)
        return _granted(submission, holder, lease, answer) if answer[0] == b"granted" else _answer(answer)

    def renew(self, leases: Sequence[Lease]) -> Sequence[a.RenewAnswer]:
        inputs = [part for lease in leases for part in (*_claim(lease), microseconds(lease.duration))]
        told = iter(self._server.run("renew", self._now(), *inputs))
        return [
            a.Fenced(_state(value)) if cancel_requested is None else a.Renewed(instant(value), bool(cancel_requested))
            for value, cancel_requested in zip(told, told, strict=True)
        ]

    def settle(self, lease: Lease, settlement: Settlement) -> a.SettleAnswer:
        safe = lease.durability is Durability.SAFE
        inputs = (*_claim(lease), *_terms(settlement))
        name, state, next_id = self._server.run("settle", self._now(), *inputs, safe=safe)
        if name == b"fenced":
            return a.Fenced(_state(state))
        return a.Settled(State(state.decode()), unpack(next_id) if next_id else "")

    def record(
        self, lease: Lease, *, progress: Progress | None = None, step: tuple[str, bytes] | None = None
    ) -> a.RecordAnswer:
        noted = encode(progress) if progress else b""
        name, told = self._server.run("record", self._now(), *_claim(lease), noted, *(step or ()))
        return a.Fenced(_state(told)) if name == b"fenced" else a.Recorded(bool(told))

    def cancel(self, job_id: str, *, reason: str, force: bool = False) -> a.CancelAnswer:
        told = self._server.run("cancel", self._now(), pack(job_id), reason, "1" if force else "")
        answer: a.CancelAnswer = _answer(told)
        return answer

    def revive(self, job_id: str, *, body: bytes | None = None) -> a.ReviveAnswer:
        told = self._server.run("revive", self._now(), pack(job_id), *([] if body is None else [body]))
        answer: a.ReviveAnswer = _answer(told)
        return answer

    def discard(self, job_id: str) -> a.DiscardAnswer:
        answer: a.DiscardAnswer = _answer(self._server.run("discard", self._now(), pack(job_id)))
        return answer

    def received(self, job_id: str, *, limit: int) -> a.ReceivedAnswer:
        answer = self._server.run("received", self._now(), pack(job_id), limit)
        return a.Counted(int(answer[1])) if answer[0] == b"counted" else _answer(answer)

    def due(self, *, limit: int, empty_queues: Collection[str] = ()) -> Sequence[Job]:
        return [read_job(told) for told in self._server.run("due", self._now(), limit, *empty_queues)]

    # Reading and housekeeping

    def get(self, job_id: str) -> Job | None:
        told = self._server.run("get", self._now(), pack(job_id))
        return read_job(told) if told else None

    def last(self, key: str) -> Job | None:
        told = self._server.run("last", self._now(), pack(key))
        return read_job(told) if told else None

    def find(self, query: Query) -> Page[Job]:
        at, _, job_id = query.cursor.partition("/")
        span = [_moment(query.since), _moment(query.until), at, bytes.fromhex(job_id)]
        inputs = (query.limit, query.task, query.scope, *span, *query.states)
        last_at, last_id, *told = self._server.run("find", self._now(), *inputs)
        cursor = f"{last_at.decode()}/{last_id.hex()}" if last_at else ""
        return Page(items=tuple(read_job(flat) for flat in told), cursor=cursor)

    def duplicates(self, *, cursor: str = "", limit: int = 50, task: str = "", scope: str = "") -> Page[Duplicate]:
        last, *told = self._server.run("duplicates", self._now(), cursor, limit, task, scope)
        return Page(items=tuple(read_duplicate(flat) for flat in told), cursor=last.decode())

    def duplicate_counts(self, *, since: datetime) -> Sequence[DuplicateCount]:
        return read_counts(self._server.run("duplicate_counts", self._now(), _moment(since)))

    def count(self, decisions: Mapping[tuple[str, str], int]) -> None:
        inputs = (part for decision, count in decisions.items() for part in (encode(decision), count))
        self._server.run("count", self._now(), *inputs)

    def tally(self) -> Tally:
        return read_tally(self._server.run("tally", self._now()))

    def prune(self, *, limit: int) -> int:
        return int(self._server.run("prune", self._now(), limit))

    def close(self) -> None:
        self._server.close()

    def _now(self) -> Word:
        """The time for the scripts: nothing, so that they ask the server; in tests, the clock's."""
        return "" if self._clock is None else microseconds(self._clock() - EPOCH)


def _moment(time: datetime | None) -> Word:
    return "" if time is None else microseconds(time - EPOCH)


def _offer(submission: Submission) -> tuple[Word, ...]:
    return (
        pack(submission.id),
        pack(submission.key),
        submission.task,
        submission.digest,
        submission.scope,
        submission.queue,
        submission.caller,
        microseconds(submission.delay),
        microseconds(submission.retention),
        microseconds(max(submission.history, submission.retention)),
    )


def _claim(lease: Lease) -> tuple[Word, ...]:
    return pack(lease.job_id), lease.fence, pack(lease.holder)


def _terms(settlement: Settlement) -> tuple[Word, ...]:
    match settlement:
        case Complete():
            return "complete", settlement.result
        case Release():
            body = () if settlement.body is None else (settlement.body,)
            return "release", settlement.cause, microseconds(settlement.delay), _error(settlement.error), *body
        case Bury():
            return "bury", settlement.reason, _error(settlement.error)
        case Cancel():
            return "cancel", settlement.reason


def _error(failure: Failure | None) -> Word:
    return encode(failure) if failure else ""


def _state(word: bytes) -> State | None:
    return State(word.decode()) if word else None


def _answer(answer: Sequence[Any]) -> Any:  # noqa: ANN401 - each verb knows which answers its own script gives
    name, *told = answer
    return ANSWERS[name](*map(read_job, told))


def _accepted(submission: Submission, answer: Sequence[Any]) -> a.Reserved:
    _, now, fence, behind = answer
    created_at = instant(now)
    return a.Reserved(
        Job(
            id=submission.id,
            key=submission.key,
            task=submission.task,
            state=State.QUEUED,
            scope=submission.scope,
            queue=submission.queue,
            caller=submission.caller,
            digest=submission.digest,
            body=submission.body,
            created_at=created_at,
            changed_at=created_at,
            not_before=created_at + submission.delay if submission.delay else None,
            fence=int(fence),
            behind=unpack(behind) if behind else "",
        )
    )


def _granted(submission: Submission, holder: str, lease: timedelta, answer: Sequence[Any]) -> a.Granted:
    _, fence, attempt, crashes, until, key, task, scope, interrupted, body, *steps = answer
    held = Lease(
        job_id=submission.id,
        key=unpack(key),
        task=task.decode(),
        scope=scope.decode(),
        holder=holder,
        fence=int(fence),
        attempt=int(attempt),
        crashes=int(crashes),
        until=instant(until),
        duration=lease,
        durability=submission.durability,
    )
    return a.Granted(held, bool(interrupted), read_steps(steps), body)
