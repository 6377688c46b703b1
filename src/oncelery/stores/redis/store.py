"""The ledger on Redis or Valkey: each verb is one script, and its reply read as an answer."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from oncelery import answers as a
from oncelery.codec import encode
from oncelery.errors import ConfigurationError
from oncelery.job import Failure, Job, Lease, OnDuplicate, State, Submission
from oncelery.settlement import Bury, Cancel, Complete, Release, Settlement
from oncelery.stores import DEFAULT_NAMESPACE
from oncelery.stores.base import Clock
from oncelery.stores.redis.address import Address
from oncelery.stores.redis.connection import Input, Server
from oncelery.stores.redis.records import EPOCH, instant, microseconds, read_job, read_steps

#: The answers that are a name and a job.
ANSWERS = {
    b"reserved": a.Reserved,
    b"existing": a.Existing,
    b"mismatched": a.Mismatched,
    b"busy": a.Busy,
    b"later": a.Later,
    b"finished": a.Finished,
    b"cancelled": a.Cancelled,
}


class RedisStore:
    """Keeps the ledger on Redis 6.2 or newer, or on Valkey, under keys that begin with `{namespace}:`."""

    shared = True

    def __init__(self, url: str, *, namespace: str = DEFAULT_NAMESPACE, clock: Clock | None = None) -> None:
        if not namespace or set(namespace) & set("{}"):
            raise ConfigurationError(f"a namespace is not empty and has no braces, unlike {namespace!r}")
        self._server = Server(Address(url), namespace)
        self._clock = clock

    # Verbs

    def reserve(self, submission: Submission, *, on_duplicate: OnDuplicate) -> a.ReserveAnswer:
        body = () if submission.body is None else (submission.body,)
        name, job = self._server.run("reserve", self._now(), *_offer(submission), on_duplicate, *body)
        return ANSWERS[name](read_job(job))

    def begin(
        self, submission: Submission, *, holder: str, worker: str, lease: timedelta, max_crashes: int, hold: bool
    ) -> a.BeginAnswer:
        body = () if submission.body is None else (submission.body,)
        terms = (holder, worker, microseconds(lease), max_crashes, "1" if hold else "")
        name, *told = self._server.run("begin", self._now(), *_offer(submission), *terms, *body)
        if name == b"granted":
            return _granted(submission, holder, lease, *told)
        return ANSWERS[name](read_job(told[0])) if told else a.Absent()

    def renew(self, leases: Sequence[Lease]) -> Sequence[a.RenewAnswer]:
        inputs = [part for lease in leases for part in (*_claim(lease), microseconds(lease.duration))]
        told = iter(self._server.run("renew", self._now(), *inputs))
        return [
            a.Fenced(_state(value)) if cancel_requested is None else a.Renewed(instant(value), bool(cancel_requested))
            for value, cancel_requested in zip(told, told, strict=True)
        ]

    def settle(self, lease: Lease, settlement: Settlement) -> a.SettleAnswer:
        name, state, *next_id = self._server.run("settle", self._now(), *_claim(lease), *_terms(settlement))
        if name == b"fenced":
            return a.Fenced(_state(state))
        return a.Settled(State(state.decode()), next_id[0].decode())

    def get(self, job_id: str) -> Job | None:
        told = self._server.run("get", self._now(), job_id)
        return told and read_job(told)

    def last(self, key: str) -> Job | None:
        told = self._server.run("last", self._now(), key)
        return told and read_job(told)

    def close(self) -> None:
        self._server.close()

    def _now(self) -> Input:
        """The time for the scripts: nothing, so that they ask the server; in tests, the clock's."""
        return "" if self._clock is None else microseconds(self._clock() - EPOCH)


def _offer(submission: Submission) -> tuple[Input, ...]:
    return (
        submission.id,
        submission.key,
        submission.task,
        submission.digest,
        submission.scope,
        submission.queue,
        submission.caller,
        microseconds(submission.delay),
        microseconds(submission.retention),
        microseconds(max(submission.history, submission.retention)),
    )


def _claim(lease: Lease) -> tuple[Input, ...]:
    return lease.job_id, lease.fence, lease.holder


def _terms(settlement: Settlement) -> tuple[Input, ...]:
    match settlement:
        case Complete():
            return "complete", settlement.result
        case Release():
            return "release", settlement.cause, microseconds(settlement.delay), _error(settlement.error)
        case Bury():
            return "bury", settlement.reason, _error(settlement.error)
        case Cancel():
            return "cancel", settlement.reason


def _error(failure: Failure | None) -> Input:
    return encode(failure) if failure else ""


def _state(word: bytes) -> State | None:
    return State(word.decode()) if word else None


def _granted(submission: Submission, holder: str, lease: timedelta, *told) -> a.Granted:
    fence, attempt, crashes, until, job_id, key, task, scope, steps, *body = told
    held = Lease(
        job_id=job_id.decode(),
        key=key.decode(),
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
    return a.Granted(held, held.crashes > 0, read_steps(steps), body[0] if body else None)
