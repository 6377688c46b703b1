"""The ledger on Redis or Valkey: each verb is one script, and its reply read as an answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any

import msgspec

from oncelery import answers as a
from oncelery.codec import decode, encode
from oncelery.errors import ConfigurationError
from oncelery.job import (
    DEFAULT_NAMESPACE,
    EPOCH,
    Duplicate,
    DuplicateCount,
    Durability,
    Failure,
    Job,
    JobSummary,
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
from oncelery.stores.facts import ServerFacts
from oncelery.stores.redis.address import Address
from oncelery.stores.redis.connections import Server
from oncelery.stores.redis.packing import pack_holder, pack_id, pack_key, unpack_id, unpack_key
from oncelery.stores.redis.records import (
    instant,
    microseconds,
    read_counts,
    read_duplicate,
    read_job,
    read_steps,
    read_summary,
    read_tally,
)
from oncelery.stores.redis.wire import Word

#: What a job that begins for the first time has finished before.
NO_STEPS: Mapping[str, bytes] = MappingProxyType({})

#: How many scripts look for the first job of a page, before it is given empty.
SCRIPTS_A_PAGE = 10

#: How nearly every run is settled.
COMPLETED = a.Settled(State.COMPLETED, "")

_encode_offer = msgspec.msgpack.Encoder().encode

#: What stands in the place of a submission where there is none.
NO_OFFER = (b"", b"", b"", _encode_offer(("", "", "", "", "", 0)))

#: The answers that are a name and a job, or a name alone.
ANSWERS: dict[bytes, Any] = {
    b"reserved": a.Reserved,
    b"existing": a.Existing,
    b"repeated": partial(a.Existing, repeated=True),
    b"mismatched": a.Mismatched,
    b"busy": a.Busy,
    b"later": a.Later,
    b"finished": a.Finished,
    b"buried": a.Buried,
    b"cancelled": a.Cancelled,
    b"absent": a.Absent,
    b"requested": a.Requested,
    b"revived": a.Revived,
    b"resubmitted": a.Resubmitted,
    b"not_buried": a.NotBuried,
    b"discarded": a.Discarded,
}


class RedisStore:
    """Keeps the ledger on Redis 6.2 or newer, or on Valkey, under keys that begin with `{namespace}:`."""

    shared = True

    def __init__(self, url: str, *, namespace: str = DEFAULT_NAMESPACE, clock: Clock | None = None) -> None:
        if not namespace or set(namespace) & set("{}"):
            raise ConfigurationError(f"a namespace is not empty and has no braces, unlike {namespace!r}")
        self.namespace = namespace
        self._server = Server(Address(url), b"{%b}:" % namespace.encode())
        self._clock = clock

    # Verbs

    def reserve(self, submission: Submission, *, on_duplicate: OnDuplicate) -> a.ReserveAnswer:
        return self.reserving(submission, on_duplicate=on_duplicate)()

    def reserving(self, submission: Submission, *, on_duplicate: OnDuplicate) -> Callable[[], a.ReserveAnswer]:
        quota = submission.quota
        limits = (quota.max_active, quota.per_minute) if quota else ()
        inputs = [self._now(), *_offer(submission, on_duplicate, *limits)]
        if submission.body is not None:
            inputs.append(submission.body)
        if submission.durability is Durability.SAFE:
            return lambda: _reserved(submission, self._server.run("reserve", inputs, safe=True))
        reply = self._server.send("reserve", inputs)
        return lambda: _reserved(submission, reply())

    def begin(
        self, submission: Submission, *, holder: str, worker: str, lease: timedelta, max_crashes: int, hold: bool
    ) -> a.BeginAnswer:
        offer = _offer(submission, max_crashes, hold)
        inputs = [self._now(), *offer, pack_holder(holder), worker, microseconds(lease)]
        if submission.body is not None:
            inputs.append(submission.body)
        answer = self._server.run("begin", inputs, safe=submission.durability is Durability.SAFE)
        if isinstance(answer, bytes):
            return _begun(submission, holder, lease, answer)
        if answer[0] == b"granted":
            return _granted(submission, holder, lease, answer)
        declined: a.BeginAnswer = _answer(answer)
        return declined

    def renew(self, leases: Sequence[Lease]) -> Sequence[a.RenewAnswer]:
        inputs = [part for lease in leases for part in (*_claim(lease), microseconds(lease.duration))]
        told = iter(self._run("renew", *inputs))
        return [
            _unowned(value) if cancel_requested is None else a.Renewed(instant(value), bool(cancel_requested))
            for value, cancel_requested in zip(told, told, strict=True)
        ]

    def settle(self, lease: Lease, settlement: Settlement) -> a.SettleAnswer:
        inputs = [self._now(), *_claim(lease), *_terms(settlement)]
        answer = self._server.run("settle", inputs, safe=lease.durability is Durability.SAFE)
        if answer == b"completed":
            return COMPLETED
        if answer[0] != b"settled":
            return _unowned(*answer[1:])
        _, state, next_id = answer
        return a.Settled(State(state.decode()), unpack_id(next_id))

    def record(
        self, lease: Lease, *, progress: Progress | None = None, step: tuple[str, bytes] | None = None
    ) -> a.RecordAnswer:
        inputs = [self._now(), *_claim(lease), encode(progress) if progress else b"", *_step(step)]
        # Progress is worth no wait.
        safe = step is not None and lease.durability is Durability.SAFE
        name, *told = self._server.run("record", inputs, safe=safe)
        return a.Recorded(bool(told[0])) if name == b"recorded" else _unowned(*told)

    def cancel(self, job_id: str, *, reason: str, force: bool = False) -> a.CancelAnswer:
        answer: a.CancelAnswer = _answer(self._run("cancel", pack_id(job_id), reason, "force" if force else ""))
        return answer

    def withdraw(self, job_id: str, *, reason: str) -> a.CancelAnswer | a.Existing:
        answer: a.CancelAnswer | a.Existing = _answer(self._run("cancel", pack_id(job_id), reason, "unless joined"))
        return answer

    def revive(self, job_id: str, *, body: bytes | None = None, submission: Submission | None = None) -> a.ReviveAnswer:
        offer = _offer(submission, submission.id) if submission else NO_OFFER
        body = submission.body if submission else body
        told = self._run("revive", *offer, pack_id(job_id), *([] if body is None else [body]))
        answer: a.ReviveAnswer = _answer(told)
        return answer

    def discard(self, job_id: str) -> a.DiscardAnswer:
        answer: a.DiscardAnswer = _answer(self._run("discard", pack_id(job_id)))
        return answer

    def received(self, job_id: str, *, limit: int, lease: timedelta | None = None) -> a.ReceivedAnswer:
        answer = self._run("received", pack_id(job_id), limit, *([] if lease is None else [microseconds(lease)]))
        return a.Counted(int(answer[1])) if answer[0] == b"counted" else _answer(answer)

    def due(
        self, *, limit: int, empty_queues: Collection[str] = (), formats: Collection[str] | None = None
    ) -> Sequence[Job]:
        readable = "" if formats is None else "\n" + "".join(f"{each}\n" for each in formats)
        return [read_job(told) for told in self._run("due", limit, readable, *empty_queues)]

    # Reading and housekeeping

    def get(self, job_id: str) -> Job | None:
        told = self._run("get", pack_id(job_id))
        return read_job(told) if told else None

    def last(self, key: str) -> Job | None:
        told = self._run("last", pack_key(key))
        return read_job(told) if told else None

    def find(self, query: Query) -> Page[JobSummary]:
        cursor, told = query.cursor, []
        for _ in range(SCRIPTS_A_PAGE):
            at, job_id = _read_cursor(cursor, r"(\d+)/((?:[0-9a-f]{2})+)")
            span = [_moment(query.since), _moment(query.until), at, bytes.fromhex(job_id)]
            last_at, last_id, *told = self._run("find", query.limit, query.task, query.scope, *span, *query.states)
            cursor = f"{last_at.decode()}/{last_id.hex()}" if last_at else ""
            if told or not cursor:
                break
        return Page(items=tuple(read_summary(flat) for flat in told), cursor=cursor)

    def duplicates(self, *, cursor: str = "", limit: int = 50, task: str = "", scope: str = "") -> Page[Duplicate]:
        (entry,) = _read_cursor(cursor, r"(\d+-\d+)")
        last, *told = self._run("duplicates", entry, limit, task, scope)
        return Page(items=tuple(read_duplicate(flat) for flat in told), cursor=last.decode())

    def duplicate_counts(self, *, since: datetime, task: str = "", scope: str = "") -> Sequence[DuplicateCount]:
        counts: list[DuplicateCount] = []
        start, *hours = self._run("duplicate_counts", _moment(since), task, scope)
        while start:
            counts += read_counts(hours)
            start, *hours = self._run("duplicate_counts", start, task, scope)
        return counts + read_counts(hours)

    def count(self, decisions: Mapping[tuple[str, str], int]) -> None:
        inputs = (part for decision, count in decisions.items() for part in (encode(decision), count))
        self._run("count", *inputs)

    def tally(self) -> Tally:
        return read_tally(self._run("tally"))

    def prune(self, *, limit: int) -> int:
        return int(self._run("prune", limit))

    def server(self) -> ServerFacts:
        return self._server.facts()

    def close(self) -> None:
        self._server.close()

    def _run(self, verb: str, *inputs: Word) -> Any:  # noqa: ANN401 - as its script says
        return self._server.run(verb, [self._now(), *inputs])

    def _now(self) -> Word:
        """The time for the scripts: nothing, so that they ask the server; in tests, the clock's."""
        return b"" if self._clock is None else microseconds(self._clock() - EPOCH)


def _moment(time: datetime | None) -> Word:
    return "" if time is None else microseconds(time - EPOCH)


def _read_cursor(cursor: str, pattern: str) -> Sequence[str]:
    """Read a cursor that we gave; it may come back from far away, so nothing else gets to the scripts."""
    parts = re.fullmatch(f"(?:{pattern})?", cursor)
    if parts is None:
        raise ValueError(f"no cursor of this store: {cursor!r}")
    return [part or "" for part in parts.groups()]


def _offer(submission: Submission, *terms: object) -> tuple[bytes, bytes, bytes, bytes]:
    """Write a submission as accept.lua reads it: what every case needs in words, the rest in one that is packed."""
    kind = _kind(submission.task, submission.queue, submission.retention, submission.history)
    s = submission
    rest = (kind, s.caller, s.digest, s.follows, s.scope, microseconds(s.delay), *terms)
    alias = pack_key(s.alias) if s.alias else b""
    return pack_id(s.id), pack_key(s.key), alias, _encode_offer(rest)


@lru_cache
def _kind(task: str, queue: str, retention: timedelta, history: timedelta) -> str:
    spans = (str(microseconds(span)) for span in (retention, max(history, retention)))
    return encode((task, queue, *spans)).decode()


def _claim(lease: Lease) -> tuple[Word, ...]:
    return pack_id(lease.job_id), lease.fence, pack_holder(lease.holder)


def _step(step: tuple[str, bytes] | None) -> tuple[Word, ...]:
    # By its exact name, which may have lone surrogates: a step that is not found again is done again.
    return (step[0].encode(errors="surrogatepass"), step[1]) if step else ()


def _terms(settlement: Settlement) -> tuple[Word, ...]:
    match settlement:
        case Complete():
            beside = (settlement.replaced_by or b"", settlement.omitted)
            return b"complete", settlement.result, *(beside if any(beside) else ())
        case Release():
            body = () if settlement.body is None else (settlement.body,)
            return "release", settlement.cause, microseconds(settlement.delay), _error(settlement.error), *body
        case Bury():
            return "bury", settlement.reason, _error(settlement.error)
        case Cancel():
            return "cancel", settlement.reason


def _error(failure: Failure | None) -> Word:
    return encode(failure) if failure else ""


def _unowned(state: bytes = b"") -> a.Fenced | a.Absent:
    return a.Fenced(State(state.decode())) if state else a.Absent()


def _answer(answer: Sequence[Any]) -> Any:  # noqa: ANN401 - each verb knows which answers its own script gives
    name, *told = answer
    return ANSWERS[name](*map(read_job, told))


def _reserved(submission: Submission, answer: Any) -> a.ReserveAnswer:  # noqa: ANN401 - as its script says
    if isinstance(answer, bytes):
        return _accepted(submission, answer)
    if answer[0] == b"full":
        return a.Full(timedelta(microseconds=int(answer[1])) if answer[1] else None)
    return _accepted(submission, *answer[1:]) if answer[0] == b"accepted" else _answer(answer)


def _accepted(submission: Submission, now: bytes, fence: bytes = b"0", behind: bytes = b"") -> a.Reserved:
    return a.Reserved(submission.accepted(instant(now), fence=int(fence), behind=unpack_id(behind)))


@lru_cache
def _task(kind: bytes) -> str:
    return decode(kind, tuple[str, str, str, str])[0]


def _begun(submission: Submission, holder: str, lease: timedelta, fence: bytes) -> a.Granted:
    held = Lease(
        job_id=submission.id,
        key=submission.key,
        task=submission.task,
        scope="",
        holder=holder,
        fence=int(fence),
        attempt=1,
        crashes=0,
        until=instant(fence) + lease,
        duration=lease,
        durability=submission.durability,
    )
    return a.Granted(held, recovered=False, steps=NO_STEPS)


def _granted(submission: Submission, holder: str, lease: timedelta, answer: Sequence[Any]) -> a.Granted:
    _, fence, key, kind, attempt, crashes, until, scope, interrupted, body, *steps = answer
    held = Lease(
        job_id=submission.id,
        key=unpack_key(key),
        task=_task(kind),
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
