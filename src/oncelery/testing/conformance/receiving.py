"""Deliveries that lead to no run: a payload that kills the worker before it begins."""

from __future__ import annotations

from datetime import timedelta

from oncelery.answers import Absent, Buried, Busy, Cancelled, Counted, Finished, Later
from oncelery.job import Cause, OnDuplicate, Reason, State
from oncelery.stores.base import Store
from oncelery.testing.clock import FakeClock
from oncelery.testing.conformance.acts import (
    INSTANT,
    JOB,
    LEASE,
    OTHER,
    accepted,
    begin,
    complete,
    completed,
    release,
    running,
    seen,
    work,
)
from oncelery.testing.conformance.fixtures import Fixtures


class Receiving(Fixtures):
    """A death before a run is counted; a job that never starts is buried."""

    def test_deaths_before_a_run_are_counted(self, store: Store) -> None:
        before = accepted(store)

        assert store.received(JOB, limit=2) == Counted(1)
        assert store.received(JOB, limit=2) == Counted(2)
        assert seen(store) == before

    def test_over_the_limit_the_job_is_buried_as_never_started(self, store: Store, clock: FakeClock) -> None:
        accepted(store)
        store.received(JOB, limit=1)
        clock.advance(seconds=5)

        answer = store.received(JOB, limit=1)

        job = seen(store)
        assert answer == Buried(job)
        assert (job.state, job.reason, job.body) == (State.BURIED, Reason.NEVER_STARTED, b"message")
        assert (job.settled_at, job.changed_at) == (clock.now, clock.now)
        assert store.received(JOB, limit=1) == Finished(job)

    def test_a_delivery_that_reached_begin_is_not_one_that_never_did(self, store: Store, clock: FakeClock) -> None:
        accepted(store, delay=timedelta(hours=1))
        for _ in range(5):
            store.received(JOB, limit=3)
            store.received(JOB, limit=3, lease=LEASE)
            assert isinstance(begin(store), Later)
            clock.now += LEASE

        assert store.received(JOB, limit=0, lease=LEASE) == Counted(0)

    def test_one_at_a_time_opens_a_message(self, store: Store, clock: FakeClock) -> None:
        before = accepted(store)

        assert store.received(JOB, limit=0, lease=LEASE) == Counted(0)
        clock.now += LEASE - INSTANT
        assert store.received(JOB, limit=0, lease=LEASE) == Busy(before)
        assert seen(store) == before

    def test_whoever_opens_a_message_and_does_not_begin_within_the_lease_is_dead(
        self, store: Store, clock: FakeClock
    ) -> None:
        accepted(store)
        for deaths in range(3):
            assert store.received(JOB, limit=2, lease=LEASE) == Counted(deaths)
            clock.now += LEASE

        answer = store.received(JOB, limit=2, lease=LEASE)

        assert answer == Buried(seen(store))
        assert seen(store).reason == Reason.NEVER_STARTED

    def test_a_message_that_was_opened_may_wait_for_ever(self, store: Store, clock: FakeClock) -> None:
        accepted(store)
        for _ in range(5):
            assert store.received(JOB, limit=0, lease=LEASE) == Counted(0)
            assert store.received(JOB, limit=0, lease=timedelta(0)) == Counted(0)
            clock.advance(days=1)

        assert seen(store).state is State.QUEUED

    def test_who_is_late_but_has_opened_it_is_not_dead(self, store: Store, clock: FakeClock) -> None:
        accepted(store)
        store.received(JOB, limit=0, lease=LEASE)
        clock.now += LEASE

        assert store.received(JOB, limit=0, lease=timedelta(0)) == Counted(0)

    def test_a_death_that_is_told_of_is_counted_once(self, store: Store, clock: FakeClock) -> None:
        accepted(store)
        store.received(JOB, limit=5, lease=LEASE)

        assert store.received(JOB, limit=5) == Counted(1)
        clock.now += LEASE
        assert store.received(JOB, limit=5, lease=LEASE) == Counted(1)

    def test_a_run_that_begins_has_survived_opening_its_message(self, store: Store, clock: FakeClock) -> None:
        accepted(store)
        store.received(JOB, limit=5, lease=LEASE)
        release(store, running(store), Cause.RETRY)
        clock.now += LEASE

        assert store.received(JOB, limit=5, lease=LEASE) == Counted(0)

    def test_a_revived_job_is_counted_anew(self, store: Store) -> None:
        accepted(store)
        store.received(JOB, limit=0)
        store.revive(JOB)

        assert store.received(JOB, limit=1, lease=LEASE) == Counted(0)

    def test_a_running_job_is_not_counted(self, store: Store) -> None:
        running(store)

        assert store.received(JOB, limit=0) == Counted(0) == store.received(JOB, limit=0, lease=LEASE)
        assert seen(store).state is State.RUNNING

    def test_an_ended_or_unknown_job_is_told(self, store: Store) -> None:
        completed(store, work("a", "key 1"))
        accepted(store, "b", "key 2")
        store.cancel("b", reason="not wanted")

        assert store.received("a", limit=0) == Finished(seen(store, "a"))
        assert store.received("b", limit=0) == Cancelled(seen(store, "b"))
        assert store.received("unheard of", limit=0) == Absent()
        assert seen(store, "a").duplicates == 0

    def test_a_job_buried_while_it_waited_leaves_its_place_to_another(self, store: Store) -> None:
        lease = running(store)
        accepted(store, OTHER, on_duplicate=OnDuplicate.TRAIL)
        store.received(OTHER, limit=0)

        accepted(store, "third", on_duplicate=OnDuplicate.TRAIL)

        assert complete(store, lease).next_id == "third"

    def test_a_job_released_by_a_crash_may_be_received_and_begin(self, store: Store) -> None:
        release(store, running(store), Cause.CRASH, delay=timedelta(0))

        assert store.received(JOB, limit=3) == Counted(1)
        assert running(store, holder="second").attempt == 2
