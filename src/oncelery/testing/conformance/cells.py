"""Every cell of the table as a test: bring the job into the situation, say the verb, and look."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial

import pytest

from oncelery.answers import Granted, Reserved
from oncelery.job import EPOCH, Cause, Job, Lease, OnDuplicate, Reason, State
from oncelery.settlement import Bury, Cancel, Complete, Release
from oncelery.stores.base import PUBLISH_GRACE, Store
from oncelery.testing.clock import FakeClock
from oncelery.testing.conformance.acts import (
    JOB,
    KEY,
    LEASE,
    OTHER,
    accepted,
    begin,
    buried,
    completed,
    lapsed,
    reserve,
    running,
    work,
)
from oncelery.testing.conformance.fixtures import Fixtures
from oncelery.testing.conformance.table import CELLS, Cell, Left, Situation, Taken, Verb

#: The job that runs while the one of the sentence trails it.
FRONT = "front"

#: Of a run that this store does not know: it was granted by a primary that has failed, and did not reach this one.
UNDONE = Lease(
    job_id=JOB,
    key=KEY,
    task="shop.charge",
    scope="",
    holder="first",
    fence=1 << 62,
    attempt=1,
    crashes=0,
    until=EPOCH,
    duration=LEASE,
)


class Table(Fixtures):
    """The state machine, cell by cell."""

    @pytest.mark.parametrize("cell", CELLS, ids=str)
    def test_the_table_tells_the_answer_and_what_follows(self, cell: Cell, store: Store, clock: FakeClock) -> None:
        lease = GIVEN[cell.given](store, clock) or UNDONE

        answer = VERBS[cell.verb](store, clock, lease)

        assert type(answer) is cell.answer
        assert situation(store, clock) is cell.then
        other = store.get(OTHER)
        assert (other.state if other else None) == _fate_of_the_other(cell)


def situation(store: Store, clock: FakeClock) -> Situation:
    """Tell how the job stands."""
    job = store.get(JOB)
    if job is None:
        return Situation.ABSENT
    if job.state is State.QUEUED:
        return _how_it_waits(job)
    if job.state is State.RUNNING and job.cancel_requested:
        return Situation.CANCELLING
    if job.state is State.RUNNING:
        assert job.lease_until is not None
        return Situation.RUNNING if job.lease_until > clock.now else Situation.LAPSED
    if job.state is State.COMPLETED:
        assert job.retained_until is not None
        return Situation.COMPLETED if job.retained_until > clock.now else Situation.LET_GO
    return Situation(job.state.value)


def _how_it_waits(job: Job) -> Situation:
    if job.behind:
        return Situation.TRAILING
    return Situation.DELAYED if job.not_before else Situation.QUEUED


def _fate_of_the_other(cell: Cell) -> State | None:
    if cell.verb in (Verb.RESERVE_AGAIN, Verb.BEGIN, Verb.BEGIN_AGAIN):
        return None
    states: dict[type, State] = {Reserved: State.QUEUED, Granted: State.RUNNING}
    return states.get(cell.answer)


# Situations: each gives the lease of the job's last run, if there was one.


def _absent(_store: Store, _clock: FakeClock) -> None:
    pass


def _queued(store: Store, _clock: FakeClock) -> None:
    accepted(store)


def _delayed(store: Store, _clock: FakeClock) -> None:
    accepted(store, delay=timedelta(minutes=1))


def _trailing(store: Store, _clock: FakeClock) -> None:
    running(store, work(FRONT), holder="front's")
    accepted(store, on_duplicate=OnDuplicate.TRAIL)


def _running(store: Store, _clock: FakeClock) -> Lease:
    return running(store)


def _lapsed(store: Store, clock: FakeClock) -> Lease:
    return lapsed(store, clock)


def _cancelling(store: Store, _clock: FakeClock) -> Lease:
    lease = running(store)
    store.cancel(JOB, reason="asked")
    return lease


def _completed(store: Store, _clock: FakeClock) -> Lease:
    return completed(store)


def _let_go(store: Store, clock: FakeClock) -> Lease:
    lease = completed(store)
    clock.advance(hours=24)
    return lease


def _forgotten(store: Store, clock: FakeClock) -> Lease:
    lease = completed(store)
    clock.advance(days=7)
    return lease


def _buried(store: Store, _clock: FakeClock) -> Lease:
    return buried(store)


def _cancelled(store: Store, _clock: FakeClock) -> Lease:
    lease = running(store)
    store.cancel(JOB, reason="asked", force=True)
    return lease


GIVEN: Mapping[Situation, Callable[[Store, FakeClock], Lease | None]] = {
    Situation.ABSENT: _absent,
    Situation.QUEUED: _queued,
    Situation.DELAYED: _delayed,
    Situation.TRAILING: _trailing,
    Situation.RUNNING: _running,
    Situation.LAPSED: _lapsed,
    Situation.CANCELLING: _cancelling,
    Situation.COMPLETED: _completed,
    Situation.LET_GO: _let_go,
    Situation.FORGOTTEN: _forgotten,
    Situation.BURIED: _buried,
    Situation.CANCELLED: _cancelled,
}

# Verbs


def _reserve_other(on_duplicate: OnDuplicate, store: Store, _clock: FakeClock, _lease: Lease) -> object:
    return reserve(store, OTHER, on_duplicate=on_duplicate)


def _due(store: Store, clock: FakeClock, _lease: Lease) -> Taken | Left:
    clock.advance(seconds=PUBLISH_GRACE.total_seconds())
    taken = store.due(limit=10, empty_queues={"celery"})
    return Taken() if JOB in {job.id for job in taken if job.state.live} else Left()


VERBS: Mapping[Verb, Callable[[Store, FakeClock, Lease], object]] = {
    Verb.RESERVE_AGAIN: lambda store, _clock, _lease: reserve(store),
    Verb.JOIN: partial(_reserve_other, OnDuplicate.JOIN),
    Verb.REJECT: partial(_reserve_other, OnDuplicate.REJECT),
    Verb.TRAIL: partial(_reserve_other, OnDuplicate.TRAIL),
    Verb.REPLACE: partial(_reserve_other, OnDuplicate.REPLACE),
    Verb.BEGIN: lambda store, _clock, _lease: begin(store, holder="second"),
    Verb.BEGIN_AGAIN: lambda store, _clock, _lease: begin(store, holder="first"),
    Verb.BEGIN_OTHER: lambda store, _clock, _lease: begin(store, work(OTHER), holder="second"),
    Verb.BEGIN_OTHER_BODILESS: lambda store, _clock, _lease: begin(store, work(OTHER, body=None), holder="second"),
    Verb.RENEW: lambda store, _clock, lease: store.renew([lease])[0],
    Verb.RECORD: lambda store, _clock, lease: store.record(lease, step=("paid", b"yes")),
    Verb.COMPLETE: lambda store, _clock, lease: store.settle(lease, Complete(result=b"done")),
    Verb.RELEASE: lambda store, _clock, lease: store.settle(lease, Release(cause=Cause.RETRY)),
    Verb.BURY: lambda store, _clock, lease: store.settle(lease, Bury(reason=Reason.FAILED)),
    Verb.CANCEL_RUN: lambda store, _clock, lease: store.settle(lease, Cancel(reason="seen")),
    Verb.CANCEL: lambda store, _clock, _lease: store.cancel(JOB, reason="asked"),
    Verb.CANCEL_BY_FORCE: lambda store, _clock, _lease: store.cancel(JOB, reason="asked", force=True),
    Verb.REVIVE: lambda store, _clock, _lease: store.revive(JOB),
    Verb.DISCARD: lambda store, _clock, _lease: store.discard(JOB),
    Verb.OPENED: lambda store, _clock, _lease: store.received(JOB, limit=0, lease=LEASE),
    Verb.RECEIVED: lambda store, _clock, _lease: store.received(JOB, limit=3),
    Verb.RECEIVED_TOO_OFTEN: lambda store, _clock, _lease: store.received(JOB, limit=0),
    Verb.DUE: _due,
}
