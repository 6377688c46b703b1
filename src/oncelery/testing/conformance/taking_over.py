"""What is due because its worker is lost: runs whose lease has lapsed."""

from __future__ import annotations

from oncelery.answers import Busy, Fenced, Settled
from oncelery.job import Cause, OnDuplicate, Progress, State
from oncelery.settlement import Complete
from oncelery.stores.base import PUBLISH_GRACE, SLOW_CHECK, Store
from oncelery.testing.clock import FakeClock
from oncelery.testing.conformance.acts import (
    INSTANT,
    JOB,
    LEASE,
    OTHER,
    accepted,
    begin,
    complete,
    lapsed,
    running,
    seen,
    work,
)
from oncelery.testing.conformance.fixtures import Fixtures
from oncelery.testing.conformance.sweeping import EMPTY, swept


class LostWorkers(Fixtures):
    """A run whose lease has lapsed is published again; until somebody begins, it may still win."""

    def test_a_run_that_was_taken_over_is_superseded_also_when_the_history_of_its_job_is_over(
        self, store: Store, clock: FakeClock
    ) -> None:
        brief = work(history=LEASE, retention=LEASE)
        ghost = lapsed(store, clock, brief)
        complete(store, running(store, brief, holder="second"))
        clock.now += LEASE

        assert store.get(JOB) is None
        assert store.renew([ghost]) == [Fenced(State.COMPLETED)]
        assert store.record(ghost, progress=Progress(done=1)) == Fenced(State.COMPLETED)
        assert store.settle(ghost, Complete(result=b"by the ghost")) == Fenced(State.COMPLETED)

    def test_a_run_is_due_when_its_lease_has_lapsed_and_not_before(self, store: Store, clock: FakeClock) -> None:
        lease = running(store)

        clock.now = lease.until - INSTANT
        assert swept(store, empty=EMPTY) == []
        clock.now = lease.until
        assert swept(store) == [JOB]

    def test_a_renewed_run_is_due_when_its_new_lease_has_lapsed(self, store: Store, clock: FakeClock) -> None:
        lease = running(store)
        clock.advance(seconds=20)
        store.renew([lease])

        clock.now = lease.until
        assert swept(store) == []
        clock.advance(seconds=20)
        assert swept(store) == [JOB]

    def test_a_lapsed_run_that_is_renewed_is_due_no_more(self, store: Store, clock: FakeClock) -> None:
        lease = lapsed(store, clock)
        store.renew([lease])

        assert swept(store, empty=EMPTY) == []

    def test_a_due_run_is_neither_ended_nor_fenced(self, store: Store, clock: FakeClock) -> None:
        lease = lapsed(store, clock)
        before = seen(store)

        assert swept(store) == [JOB]
        assert seen(store) == before
        assert complete(store, lease) == Settled(State.COMPLETED)

    def test_a_lapsed_run_that_nobody_takes_is_due_again(self, store: Store, clock: FakeClock) -> None:
        lapsed(store, clock)
        assert swept(store) == [JOB]

        clock.now += PUBLISH_GRACE * 2 - INSTANT
        assert swept(store, empty=EMPTY) == []
        clock.now += INSTANT
        assert swept(store) == [JOB]

    def test_a_lapsed_run_of_an_old_job_is_due_again_as_soon(self, store: Store, clock: FakeClock) -> None:
        accepted(store)
        clock.now += SLOW_CHECK
        lapsed(store, clock)
        assert swept(store) == [JOB]

        clock.now += PUBLISH_GRACE * 2

        assert swept(store) == [JOB]

    def test_a_run_taken_over_is_due_when_that_lease_lapses_too(self, store: Store, clock: FakeClock) -> None:
        lapsed(store, clock)
        swept(store)
        lease = running(store, holder="second")

        clock.now = lease.until - INSTANT
        assert swept(store, empty=EMPTY) == []
        clock.now = lease.until
        assert swept(store) == [JOB]

    def test_a_lapsed_run_that_was_asked_to_cancel_ends_here(self, store: Store, clock: FakeClock) -> None:
        lease = running(store)
        store.cancel(JOB, reason="not wanted")

        clock.now = lease.until - INSTANT
        assert swept(store) == []
        assert seen(store).state is State.RUNNING
        clock.now = lease.until
        assert swept(store) == []
        assert (seen(store).state, seen(store).reason) == (State.CANCELLED, "not wanted")
        assert [attempt.cause for attempt in seen(store).past] == [Cause.LAPSE]
        assert store.settle(lease, Complete(result=b"late")) == Fenced(State.CANCELLED)

    def test_a_lapsed_run_with_an_empty_body_ends_here(self, store: Store, clock: FakeClock) -> None:
        lapsed(store, clock, work(body=b""))

        assert swept(store) == []
        assert (seen(store).state, seen(store).reason) == (State.CANCELLED, "lapsed")

    def test_a_run_that_ends_here_lets_the_one_behind_it_begin(self, store: Store, clock: FakeClock) -> None:
        lease = running(store)
        accepted(store, OTHER, on_duplicate=OnDuplicate.TRAIL)
        store.cancel(JOB, reason="not wanted")
        clock.now = lease.until

        assert swept(store) == []
        assert running(store, work(OTHER), holder="second").fence > lease.fence

    def test_nobody_but_a_run_of_the_same_id_takes_over(self, store: Store, clock: FakeClock) -> None:
        lapsed(store, clock)
        swept(store)

        assert isinstance(begin(store, work(OTHER), holder="second"), Busy)
        assert running(store, holder="second", lease=LEASE).attempt == 2
