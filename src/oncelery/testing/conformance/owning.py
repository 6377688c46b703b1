"""Who may write: the fence, the holder, renewing a lease, and recording under it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from msgspec.structs import replace

from oncelery.answers import Absent, Busy, Fenced, Recorded, Renewed, Settled
from oncelery.job import Cause, Lease, OnDuplicate, Progress, Reason, State
from oncelery.settlement import Bury, Cancel, Complete, Release
from oncelery.stores.base import Store
from oncelery.testing.clock import FakeClock
from oncelery.testing.conformance.acts import (
    BOOM,
    INSTANT,
    JOB,
    LEASE,
    OTHER,
    accepted,
    begin,
    buried,
    complete,
    completed,
    granted,
    lapsed,
    micros,
    release,
    running,
    seen,
    work,
)
from oncelery.testing.conformance.fixtures import Fixtures

Write = Callable[[Store, Lease], object]

#: All that a run may write.
WRITES: dict[str, Write] = {
    "renewal": lambda store, lease: store.renew([lease])[0],
    "progress": lambda store, lease: store.record(lease, progress=Progress(done=99, total=100)),
    "step": lambda store, lease: store.record(lease, step=("paid", b"by a ghost")),
    "completion": lambda store, lease: store.settle(lease, Complete(result=b"by a ghost")),
    "release": lambda store, lease: store.settle(lease, Release(cause=Cause.RETRY, error=BOOM)),
    "crash": lambda store, lease: store.settle(lease, Release(cause=Cause.CRASH, error=BOOM)),
    "burial": lambda store, lease: store.settle(lease, Bury(reason=Reason.FAILED, error=BOOM)),
    "cancellation": lambda store, lease: store.settle(lease, Cancel(reason="by a ghost")),
}

#: How a job may stand when the grant of its next run is undone.
GIVEN: dict[str, Callable[[Store, FakeClock], Lease]] = {
    "queued": lambda store, _: _released(store),
    "running": lambda store, _: running(store),
    "lapsed": lapsed,
    "completed": lambda store, _: completed(store),
    "buried": lambda store, _: buried(store),
}


def _released(store: Store) -> Lease:
    lease = running(store)
    release(store, lease, Cause.RETRY)
    return lease


every_write = pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())


class Owning(Fixtures):
    """Ownership is running, fence and holder; a run that lost it changes nothing and is told so."""

    @every_write
    def test_a_superseded_run_changes_nothing(self, store: Store, clock: FakeClock, write: Write) -> None:
        ghost = lapsed(store, clock)
        running(store, holder="second")
        before = seen(store)
        clock.advance(seconds=5)

        answer = write(store, ghost)

        assert answer == Fenced(State.RUNNING)
        assert seen(store) == before

    @every_write
    def test_a_run_whose_job_another_has_completed_changes_nothing(
        self, store: Store, clock: FakeClock, write: Write
    ) -> None:
        ghost = lapsed(store, clock)
        complete(store, running(store, holder="second"), result=b"by the second")
        before = seen(store)
        clock.advance(seconds=5)

        answer = write(store, ghost)

        assert answer == Fenced(State.COMPLETED)
        assert seen(store) == before

    @every_write
    def test_a_run_whose_job_was_cancelled_by_force_changes_nothing(
        self, store: Store, clock: FakeClock, write: Write
    ) -> None:
        ghost = running(store)
        store.cancel(JOB, reason="stop", force=True)
        before = seen(store)
        clock.advance(seconds=5)

        answer = write(store, ghost)

        assert answer == Fenced(State.CANCELLED)
        assert seen(store) == before

    @every_write
    def test_the_right_fence_with_another_holder_changes_nothing(
        self, store: Store, clock: FakeClock, write: Write
    ) -> None:
        lease = running(store)
        before = seen(store)
        clock.advance(seconds=5)

        answer = write(store, replace(lease, holder="second"))

        assert answer == Fenced(State.RUNNING)
        assert seen(store) == before

    @every_write
    def test_the_right_holder_with_another_fence_changes_nothing(
        self, store: Store, clock: FakeClock, write: Write
    ) -> None:
        lease = running(store)
        before = seen(store)
        clock.advance(seconds=5)

        answer = write(store, replace(lease, fence=lease.fence - 1))

        assert answer == Fenced(State.RUNNING)
        assert seen(store) == before

    @every_write
    @pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN.keys())
    def test_a_run_whose_grant_was_undone_is_not_taken_for_superseded(
        self, store: Store, clock: FakeClock, write: Write, given: Callable[[Store, FakeClock], Lease]
    ) -> None:
        earlier = given(store, clock)
        before = seen(store)
        clock.advance(seconds=5)

        # By the primary before this one: what it wrote last is lost, and the clock has gone on since.
        answer = write(store, replace(earlier, holder="second", fence=earlier.fence + 1))

        assert answer == Absent()
        assert seen(store) == before

    @every_write
    def test_a_run_of_a_job_that_is_not_known_changes_nothing(self, store: Store, write: Write) -> None:
        lease = running(store)

        answer = write(store, replace(lease, job_id="unheard of"))

        assert answer == Absent()
        assert store.get("unheard of") is None

    @every_write
    def test_a_run_of_a_pruned_job_finds_nothing_of_its_own(self, store: Store, clock: FakeClock, write: Write) -> None:
        ghost = lapsed(store, clock, work(history=LEASE, retention=LEASE))
        complete(store, running(store, work(), holder="second"))
        clock.now += LEASE
        store.prune(limit=10)
        # A server's clock set back lets the same fence be given again; the holder still tells the runs apart.
        clock.now = ghost.until - LEASE
        again = running(store, work(), holder="third")
        before = seen(store)
        clock.advance(seconds=5)

        answer = write(store, replace(ghost, fence=again.fence))

        assert answer == Fenced(State.RUNNING)
        assert seen(store) == before

    def test_a_lapsed_lease_that_nobody_took_may_still_complete(self, store: Store, clock: FakeClock) -> None:
        lease = lapsed(store, clock)
        clock.advance(hours=3)

        assert complete(store, lease, result=b"slow but sure") == Settled(State.COMPLETED)
        assert seen(store).result == b"slow but sure"

    def test_a_lapsed_lease_that_nobody_took_may_still_renew_and_record(self, store: Store, clock: FakeClock) -> None:
        lease = lapsed(store, clock)

        assert store.record(lease, step=("paid", b"yes")) == Recorded(cancel_requested=False)
        assert store.renew([lease]) == [Renewed(clock.now + LEASE, cancel_requested=False)]
        assert isinstance(begin(store, holder="second"), Busy)


class Fencing(Fixtures):
    """A fence grows with every grant of a key, whatever the clock does."""

    def test_a_fence_is_the_stores_time_in_microseconds(self, store: Store, clock: FakeClock) -> None:
        assert running(store).fence == micros(clock.now)

    def test_a_fence_grows_within_one_instant(self, store: Store) -> None:
        first = running(store)
        release(store, first, Cause.RETRY)

        assert running(store, holder="second").fence == first.fence + 1

    def test_a_fence_follows_the_clock_when_that_is_ahead(self, store: Store, clock: FakeClock) -> None:
        release(store, running(store), Cause.RETRY)
        clock.now += INSTANT * 5

        assert running(store, holder="second").fence == micros(clock.now)

    def test_a_fence_grows_even_when_the_clock_is_set_back(self, store: Store, clock: FakeClock) -> None:
        first = running(store)
        release(store, first, Cause.RETRY)
        clock.advance(hours=-1)

        assert running(store, holder="second").fence == first.fence + 1

    @pytest.mark.parametrize("back", [timedelta(0), timedelta(hours=1)])
    def test_a_fence_grows_from_job_to_job_of_a_key(self, store: Store, clock: FakeClock, back: timedelta) -> None:
        first = buried(store)
        clock.now -= back

        assert running(store, work(OTHER), holder="second").fence == first.fence + 1

    @pytest.mark.parametrize("back", [timedelta(0), timedelta(hours=1)])
    def test_a_fence_grows_to_a_reserved_job_of_a_key(self, store: Store, clock: FakeClock, back: timedelta) -> None:
        first = buried(store)
        clock.now -= back
        accepted(store, OTHER)

        assert running(store, work(OTHER), holder="second").fence == first.fence + 1

    def test_a_fence_grows_from_a_job_to_the_one_that_trailed_it(self, store: Store, clock: FakeClock) -> None:
        first = running(store)
        accepted(store, OTHER, on_duplicate=OnDuplicate.TRAIL)
        clock.advance(hours=-1)
        complete(store, first)

        assert running(store, work(OTHER), holder="second").fence == first.fence + 1

    def test_a_fence_grows_over_a_revival(self, store: Store, clock: FakeClock) -> None:
        first = buried(store)
        clock.advance(hours=-1)

        store.revive(JOB)

        assert seen(store).fence == first.fence
        assert running(store, holder="second").fence == first.fence + 1

    def test_each_key_has_fences_of_its_own(self, store: Store, clock: FakeClock) -> None:
        running(store)
        clock.advance(hours=-1)

        assert running(store, work(OTHER, "another key")).fence == micros(clock.now)


class Renewing(Fixtures):
    """A lease is extended from the store's now, for as long as it is ours."""

    def test_a_renewed_lease_lasts_its_duration_from_now(self, store: Store, clock: FakeClock) -> None:
        lease = running(store)
        clock.advance(seconds=20)

        answers = store.renew([lease])

        assert answers == [Renewed(clock.now + LEASE, cancel_requested=False)]
        assert seen(store).lease_until == clock.now + LEASE

    def test_a_renewed_lease_keeps_others_out(self, store: Store, clock: FakeClock) -> None:
        lease = running(store)
        clock.advance(seconds=20)
        store.renew([lease])

        clock.now = lease.until

        assert isinstance(begin(store, holder="second"), Busy)

    def test_a_renewal_lasts_its_duration_from_a_clock_that_was_set_back(self, store: Store, clock: FakeClock) -> None:
        lease = running(store)
        clock.advance(seconds=-20)

        assert store.renew([lease]) == [Renewed(clock.now + LEASE, cancel_requested=False)]
        assert seen(store).lease_until == clock.now + LEASE

    def test_a_renewal_is_no_transition(self, store: Store, clock: FakeClock) -> None:
        lease = running(store)
        before = seen(store)
        clock.advance(seconds=20)

        store.renew([lease])

        assert seen(store) == replace(before, lease_until=clock.now + LEASE)

    def test_many_leases_are_renewed_at_once_and_answered_in_order(self, store: Store, clock: FakeClock) -> None:
        ours = running(store, work("a", "key of a"))
        lost = lapsed(store, clock, work("b", "key of b"))
        running(store, work("b", "key of b"), holder="second")
        longer = running(store, work("c", "key of c"), lease=LEASE * 2)
        unknown = replace(ours, job_id="unheard of")
        store.cancel("c", reason="not wanted")

        answers = store.renew([longer, unknown, lost, ours])

        assert list(answers) == [
            Renewed(clock.now + LEASE * 2, cancel_requested=True),
            Absent(),
            Fenced(State.RUNNING),
            Renewed(clock.now + LEASE, cancel_requested=False),
        ]

    def test_no_lease_needs_no_answer(self, store: Store) -> None:
        assert list(store.renew([])) == []

    def test_a_renewal_tells_of_a_cancellation_that_was_asked_for(self, store: Store, clock: FakeClock) -> None:
        lease = running(store)
        store.cancel(JOB, reason="not wanted")

        assert store.renew([lease]) == [Renewed(clock.now + LEASE, cancel_requested=True)]


class Recording(Fixtures):
    """Progress and finished steps, under our lease."""

    def test_progress_is_what_was_said_last(self, store: Store) -> None:
        lease = running(store)
        store.record(lease, progress=Progress(done=1, total=3, stage="fetch", message="one"))

        answer = store.record(lease, progress=Progress(done=2.5, stage="send"))

        assert answer == Recorded(cancel_requested=False)
        assert seen(store).progress == Progress(done=2.5, total=None, stage="send", message=None)

    def test_a_step_keeps_its_first_value(self, store: Store) -> None:
        lease = running(store)
        store.record(lease, step=("paid", b"first"))

        answer = store.record(lease, step=("paid", b"second"))

        assert answer == Recorded(cancel_requested=False)
        assert dict(seen(store).steps) == {"paid": b"first"}

    def test_a_step_and_progress_may_be_written_at_once(self, store: Store) -> None:
        lease = running(store)

        store.record(lease, progress=Progress(done=1), step=("paid", b"yes"))

        assert seen(store).progress == Progress(done=1)
        assert dict(seen(store).steps) == {"paid": b"yes"}

    def test_a_step_leaves_progress_alone_and_progress_the_steps(self, store: Store) -> None:
        lease = running(store)
        store.record(lease, progress=Progress(done=1))
        store.record(lease, step=("paid", b"yes"))
        store.record(lease, progress=Progress(done=2))

        assert (seen(store).progress, dict(seen(store).steps)) == (Progress(done=2), {"paid": b"yes"})

    def test_to_record_is_no_transition(self, store: Store, clock: FakeClock) -> None:
        lease = running(store)
        before = seen(store)
        clock.advance(seconds=20)

        store.record(lease, progress=Progress(done=1))

        assert seen(store) == replace(before, progress=Progress(done=1))

    def test_finished_steps_reach_the_next_run(self, store: Store, clock: FakeClock) -> None:
        lease = lapsed(store, clock)
        store.record(lease, step=("paid", b"yes"))

        assert dict(granted(store, holder="second").steps) == {"paid": b"yes"}

    def test_finished_steps_are_told_to_the_same_holder_again(self, store: Store) -> None:
        lease = running(store)
        store.record(lease, step=("paid", b"yes"))

        assert dict(granted(store).steps) == {"paid": b"yes"}

    def test_a_record_tells_of_a_cancellation_that_was_asked_for(self, store: Store) -> None:
        lease = running(store)
        store.cancel(JOB, reason="not wanted")

        assert store.record(lease, step=("paid", b"yes")) == Recorded(cancel_requested=True)

    def test_a_queued_job_has_nobody_to_record_for_it(self, store: Store) -> None:
        lease = running(store)
        release(store, lease, Cause.RETRY)
        accepted(store, OTHER, "another key")

        assert store.record(lease, step=("paid", b"yes")) == Fenced(State.QUEUED)
        assert dict(seen(store).steps) == {}
