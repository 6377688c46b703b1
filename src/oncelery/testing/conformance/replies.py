"""Replies get lost and processes die: a verb may be sent twice, and a job ends once wherever its run broke off."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta

import pytest

from oncelery.answers import Cancelled, Counted, Fenced, Granted, NotBuried, Settled
from oncelery.job import Cause, Lease, OnDuplicate, Progress, Query, Reason, State
from oncelery.settlement import Bury, Cancel, Complete, Release
from oncelery.stores.base import PUBLISH_GRACE, Store
from oncelery.testing.clock import FakeClock
from oncelery.testing.conformance.acts import (
    BOOM,
    INSTANT,
    JOB,
    OTHER,
    accepted,
    begin,
    buried,
    complete,
    granted,
    lapsed,
    release,
    reserve,
    running,
    seen,
    work,
)
from oncelery.testing.conformance.cells import GIVEN, UNDONE
from oncelery.testing.conformance.fixtures import Fixtures
from oncelery.testing.conformance.table import Situation

Say = Callable[[Store, Lease], object]

#: Verbs, each in a situation where it does something: a client says it, hears nothing, and says it again.
RESENT: Mapping[str, tuple[Situation, Say]] = {
    "reserve": (Situation.ABSENT, lambda store, _: reserve(store, digest="d1")),
    "reserve a delayed one": (Situation.ABSENT, lambda store, _: reserve(store, delay=timedelta(hours=1))),
    "reserve behind": (Situation.RUNNING, lambda store, _: reserve(store, OTHER, on_duplicate=OnDuplicate.TRAIL)),
    "reserve in place": (Situation.QUEUED, lambda store, _: reserve(store, OTHER, on_duplicate=OnDuplicate.REPLACE)),
    "begin": (Situation.QUEUED, lambda store, _: begin(store)),
    "begin what is unknown": (Situation.ABSENT, lambda store, _: begin(store)),
    "begin too early": (Situation.DELAYED, lambda store, _: begin(store)),
    "take over": (Situation.LAPSED, lambda store, _: begin(store, holder="second")),
    "record a step": (Situation.RUNNING, lambda store, lease: store.record(lease, step=("paid", b"yes"))),
    "record progress": (Situation.RUNNING, lambda store, lease: store.record(lease, progress=Progress(done=1))),
    "complete": (Situation.RUNNING, lambda store, lease: store.settle(lease, Complete(result=b"done"))),
    "complete late": (Situation.LAPSED, lambda store, lease: store.settle(lease, Complete(result=b"done"))),
    "retry": (Situation.RUNNING, lambda store, lease: store.settle(lease, Release(cause=Cause.RETRY, error=BOOM))),
    "hand back": (Situation.RUNNING, lambda store, lease: store.settle(lease, Release(cause=Cause.HANDBACK))),
    "crash": (Situation.RUNNING, lambda store, lease: store.settle(lease, Release(cause=Cause.CRASH))),
    "crash while cancelling": (
        Situation.CANCELLING,
        lambda store, lease: store.settle(lease, Release(cause=Cause.CRASH)),
    ),
    "bury": (Situation.RUNNING, lambda store, lease: store.settle(lease, Bury(reason=Reason.FAILED, error=BOOM))),
    "heed a cancel": (Situation.CANCELLING, lambda store, lease: store.settle(lease, Cancel(reason="heeded"))),
    "cancel": (Situation.QUEUED, lambda store, _: store.cancel(JOB, reason="no")),
    "cancel a running one": (Situation.RUNNING, lambda store, _: store.cancel(JOB, reason="no")),
    "withdraw": (Situation.QUEUED, lambda store, _: store.withdraw(JOB, reason="no")),
    "cancel by force": (Situation.RUNNING, lambda store, _: store.cancel(JOB, reason="no", force=True)),
}


class LostReplies(Fixtures):
    """A client that hears nothing says the same again."""

    @pytest.mark.parametrize(("given", "say"), RESENT.values(), ids=RESENT.keys())
    def test_a_verb_sent_again_is_answered_the_same_and_changes_nothing_more(
        self, store: Store, clock: FakeClock, given: Situation, say: Say
    ) -> None:
        lease = GIVEN[given](store, clock) or UNDONE
        first = say(store, lease)
        after = [store.get(job.id) for job in store.find(Query()).items]
        clock.now += INSTANT

        again = say(store, lease)

        assert again == first
        assert [store.get(job.id) for job in store.find(Query()).items] == after

    def test_a_begin_that_cancelled_its_job_is_answered_the_same_again(self, store: Store, clock: FakeClock) -> None:
        lapsed(store, clock)
        store.cancel(JOB, reason="not wanted")

        assert begin(store, holder="second") == begin(store, holder="second") == Cancelled(seen(store))

    def test_a_renewal_sent_again_extends_from_the_new_moment(self, store: Store, clock: FakeClock) -> None:
        lease = running(store)
        store.renew([lease])
        clock.now += INSTANT

        store.renew([lease])

        assert seen(store).lease_until == clock.now + lease.duration

    def test_a_revival_sent_again_finds_the_job_queued(self, store: Store) -> None:
        buried(store)
        store.revive(JOB)

        assert store.revive(JOB) == NotBuried(seen(store))
        assert seen(store).state is State.QUEUED

    def test_a_discard_sent_again_finds_the_job_cancelled(self, store: Store) -> None:
        buried(store)
        store.discard(JOB)

        assert store.discard(JOB) == NotBuried(seen(store))

    def test_a_death_told_twice_is_counted_twice_but_buries_no_earlier_than_its_limit(self, store: Store) -> None:
        accepted(store)

        assert store.received(JOB, limit=3) == Counted(1)
        assert store.received(JOB, limit=3) == Counted(2)

    def test_a_completion_is_known_again_after_a_retention_that_is_over(self, store: Store, clock: FakeClock) -> None:
        lease = running(store, work(retention=timedelta(0)))
        complete(store, lease)
        clock.advance(hours=1)

        assert complete(store, lease) == Settled(State.COMPLETED)

    def test_a_settlement_of_one_kind_is_not_taken_for_another(self, store: Store) -> None:
        lease = buried(store)

        assert store.settle(lease, Complete(result=b"done")) == Fenced(State.BURIED)
        assert store.settle(lease, Release(cause=Cause.RETRY)) == Fenced(State.BURIED)


# Where a run may break off. What is done before it; then nothing more comes from there.


def _after_reserve(store: Store) -> None:
    accepted(store)


def _after_begin(store: Store) -> None:
    accepted(store)
    running(store)


def _after_record(store: Store) -> None:
    accepted(store)
    store.record(running(store), step=("paid", b"yes"))


def _after_renew(store: Store) -> None:
    accepted(store)
    store.renew([running(store)])


def _after_release(store: Store) -> None:
    accepted(store)
    release(store, running(store), Cause.RETRY, delay=timedelta(minutes=5))


def _after_told_crash(store: Store) -> None:
    accepted(store)
    release(store, running(store), Cause.CRASH)


def _after_handback(store: Store) -> None:
    accepted(store)
    release(store, running(store), Cause.HANDBACK)


def _after_complete(store: Store) -> None:
    accepted(store)
    complete(store, running(store), result=b"first")


def _after_begin_without_reserve(store: Store) -> None:
    granted(store)


def _after_revive(store: Store) -> None:
    buried(store)
    store.revive(JOB)


def _after_due(store: Store) -> None:
    _after_reserve(store)
    store.due(limit=10, empty_queues={"celery"})


BREAKS = [
    _after_reserve,
    _after_begin,
    _after_record,
    _after_renew,
    _after_release,
    _after_told_crash,
    _after_handback,
    _after_complete,
    _after_begin_without_reserve,
    _after_revive,
    _after_due,
]


class BrokenRuns(Fixtures):
    """Wherever a process dies, the sweeper and another worker bring the job to its one end."""

    @pytest.mark.parametrize("break_off", BREAKS, ids=lambda break_off: break_off.__name__.strip("_"))
    def test_a_job_ends_once_wherever_its_run_broke_off(
        self, store: Store, clock: FakeClock, break_off: Callable[[Store], None]
    ) -> None:
        break_off(store)

        ends = _sweep_until_it_ends(store, clock)

        job = seen(store)
        assert job.state is State.COMPLETED
        assert job.result == (b"first" if break_off is _after_complete else b"by the rescuer")
        assert ends == (0 if break_off is _after_complete else 1)

    def test_a_trailing_job_begins_though_whoever_ended_its_front_died_before_publishing_it(
        self, store: Store, clock: FakeClock
    ) -> None:
        lease = running(store, work("front"))
        accepted(store, on_duplicate=OnDuplicate.TRAIL)
        complete(store, lease)

        assert _sweep_until_it_ends(store, clock) == 1

    def test_a_job_that_always_kills_its_worker_is_buried_and_not_tried_for_ever(
        self, store: Store, clock: FakeClock
    ) -> None:
        accepted(store)
        grants = 0
        for number in range(20):
            grants += isinstance(begin(store, holder=str(number), max_crashes=3), Granted)
            clock.advance(hours=1)
            store.due(limit=10)

        assert grants == 4
        assert (seen(store).state, seen(store).reason, seen(store).crashes) == (State.BURIED, Reason.CRASHED, 4)


def _sweep_until_it_ends(store: Store, clock: FakeClock) -> int:
    """Be the sweeper and the worker that gets what it publishes; tell how often the job was completed."""
    ends = 0
    for turn in range(10):
        clock.now += PUBLISH_GRACE * 4
        for job in store.due(limit=10, empty_queues={"celery"}):
            answer = begin(store, work(job.id), holder=f"rescuer {turn}")
            if isinstance(answer, Granted):
                complete(store, answer.lease, result=b"by the rescuer")
                ends += job.id == JOB
    return ends
