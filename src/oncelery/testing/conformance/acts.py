"""Every verb as the suite says it: what does not matter to a sentence has its value here."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TypedDict, Unpack

from oncelery.answers import BeginAnswer, Granted, ReserveAnswer, Reserved, Settled
from oncelery.job import (
    EPOCH,
    MICROSECOND,
    Cause,
    Durability,
    Failure,
    Job,
    Lease,
    OnDuplicate,
    Quota,
    Reason,
    Submission,
)
from oncelery.settlement import Bury, Complete, Release
from oncelery.stores.base import Store
from oncelery.testing.clock import FakeClock

#: The job and the key that a sentence is about, unless it names others.
JOB = "job"
KEY = "key"

#: The second submission of the same key.
OTHER = "other"

LEASE = timedelta(seconds=30)

#: The smallest step of time that a store must tell apart.
INSTANT = timedelta(microseconds=1)

BOOM = Failure(type="ValueError", message="boom", traceback="Traceback: boom")


class Details(TypedDict, total=False):
    """What a submission may say beside its id and key."""

    task: str
    body: bytes | None
    alias: str
    digest: str
    follows: str
    scope: str
    queue: str
    caller: str
    delay: timedelta
    retention: timedelta
    history: timedelta
    durability: Durability
    quota: Quota | None


class Terms(TypedDict, total=False):
    """On what terms a worker asks to begin."""

    worker: str
    lease: timedelta
    max_crashes: int
    hold: bool


def work(job_id: str = JOB, key: str = KEY, **details: Unpack[Details]) -> Submission:
    """Offer some work."""
    filled: Details = {"task": "shop.charge", "body": b"message", **details}
    return Submission(id=job_id, key=key, **filled)


def reserve(
    store: Store,
    job_id: str = JOB,
    key: str = KEY,
    *,
    on_duplicate: OnDuplicate = OnDuplicate.JOIN,
    **details: Unpack[Details],
) -> ReserveAnswer:
    """Submit some work."""
    return store.reserve(work(job_id, key, **details), on_duplicate=on_duplicate)


def accepted(
    store: Store,
    job_id: str = JOB,
    key: str = KEY,
    *,
    on_duplicate: OnDuplicate = OnDuplicate.JOIN,
    **details: Unpack[Details],
) -> Job:
    """Submit work that must be accepted, and give its job."""
    answer = reserve(store, job_id, key, on_duplicate=on_duplicate, **details)
    assert isinstance(answer, Reserved), answer
    return answer.job


def begin(
    store: Store, submission: Submission | None = None, *, holder: str = "first", **terms: Unpack[Terms]
) -> BeginAnswer:
    """Ask to run some work."""
    filled: Terms = {"worker": f"worker of {holder}", "lease": LEASE, "max_crashes": 3, "hold": False, **terms}
    return store.begin(submission or work(), holder=holder, **filled)


def granted(
    store: Store, submission: Submission | None = None, *, holder: str = "first", **terms: Unpack[Terms]
) -> Granted:
    """Ask to run some work, which must be granted."""
    answer = begin(store, submission, holder=holder, **terms)
    assert isinstance(answer, Granted), answer
    return answer


def running(
    store: Store, submission: Submission | None = None, *, holder: str = "first", **terms: Unpack[Terms]
) -> Lease:
    """Run some work, and give the lease. Under a new key it is reserved first, as a publisher would have done."""
    offer = submission or work()
    if offer.body and store.last(offer.key) is None:
        store.reserve(offer, on_duplicate=OnDuplicate.JOIN)
    return granted(store, offer, holder=holder, **terms).lease


def lapsed(
    store: Store,
    clock: FakeClock,
    submission: Submission | None = None,
    *,
    holder: str = "first",
    **terms: Unpack[Terms],
) -> Lease:
    """Run some work, and let the lease lapse to the instant."""
    lease = running(store, submission, holder=holder, **terms)
    clock.advance(seconds=lease.duration.total_seconds())
    return lease


def completed(store: Store, submission: Submission | None = None, *, result: bytes = b"done") -> Lease:
    """Run some work to its end, and give the lease it had."""
    lease = running(store, submission)
    complete(store, lease, result=result)
    return lease


def buried(store: Store, submission: Submission | None = None) -> Lease:
    """Run some work into the ground, and give the lease it had."""
    lease = running(store, submission)
    answer = store.settle(lease, Bury(reason=Reason.FAILED, error=BOOM))
    assert isinstance(answer, Settled), answer
    return lease


def complete(store: Store, lease: Lease, *, result: bytes = b"done") -> Settled:
    """End a run well, which must be allowed."""
    answer = store.settle(lease, Complete(result=result))
    assert isinstance(answer, Settled), answer
    return answer


def release(
    store: Store, lease: Lease, cause: Cause, *, delay: timedelta = timedelta(0), error: Failure | None = None
) -> Settled:
    """End a run that may go on later, which must be allowed."""
    answer = store.settle(lease, Release(cause=cause, delay=delay, error=error))
    assert isinstance(answer, Settled), answer
    return answer


#: How many jobs of each kind `fill_with_large` leaves.
LARGE_JOBS = 20


def fill_with_large(store: Store, size: int = 100_000) -> None:
    """Leave many jobs with large bodies, results, steps and errors, whose listing must not cost so much."""
    large = b"x" * size
    error = Failure(type="ValueError", message="boom", traceback="t" * size)
    for number in range(LARGE_JOBS):
        accepted(store, f"queued {number}", f"q{number}", body=large)
        completed(store, work(f"completed {number}", f"c{number}"), result=large)
        lease = running(store, work(f"buried {number}", f"b{number}", body=large))
        store.record(lease, step=("paid", large))
        store.settle(lease, Bury(reason=Reason.FAILED, error=error))


def seen(store: Store, job_id: str = JOB) -> Job:
    """Read a job that must be there."""
    job = store.get(job_id)
    assert job is not None, f"no job {job_id!r}"
    return job


def micros(moment: datetime) -> int:
    """Give a moment as a fence counts it."""
    return (moment - EPOCH) // MICROSECOND
