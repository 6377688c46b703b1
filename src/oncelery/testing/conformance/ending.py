"""How runs and jobs end: completed, released or cancelled; and how long they are remembered."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from oncelery.answers import (
    Cancelled,
    Existing,
    Fenced,
    Finished,
    Later,
    Requested,
    Settled,
)
from oncelery.job import PAST_KEPT, Attempt, Cause, OnDuplicate, Query, Reason, State
from oncelery.settlement import Bury, Cancel, Complete, Release
from oncelery.stores.base import Store
from oncelery.testing.clock import FakeClock
from oncelery.testing.conformance.acts import (
    BOOM,
    INSTANT,
    JOB,
    KEY,
    LEASE,
    OTHER,
    accepted,
    begin,
    buried,
    complete,
    completed,
    granted,
    release,
    reserve,
    running,
    seen,
    work,
)
from oncelery.testing.conformance.fixtures import Fixtures

HOUR = timedelta(hours=1)


class Completing(Fixtures):
    """A result is committed once."""

    def test_a_completed_job_keeps_its_result_and_drops_its_body(self, store: Store, clock: FakeClock) -> None:
        lease = running(store, work(retention=HOUR))
        clock.advance(seconds=5)

        answer = store.settle(lease, Complete(result=b"paid"))

        job = seen(store)
        assert answer == Settled(State.COMPLETED)
        assert (job.state, job.result, job.body) == (State.COMPLETED, b"paid", None)
        assert (job.settled_at, job.changed_at, job.retained_until) == (clock.now, clock.now, clock.now + HOUR)
        assert (job.lease_until, job.holder, job.fence) == (None, lease.holder, lease.fence)

    def test_an_error_of_an_earlier_run_does_not_outlive_success(self, store: Store) -> None:
        release(store, running(store), Cause.RETRY, error=BOOM)

        complete(store, running(store, holder="second"))

        assert seen(store).error is None
        assert seen(store).past[0].error == BOOM

    def test_a_completion_sent_again_is_answered_the_same_and_the_first_result_stays(
        self, store: Store, clock: FakeClock
    ) -> None:
        lease = running(store)
        first = complete(store, lease, result=b"first")
        before = seen(store)
        clock.advance(seconds=5)

        assert complete(store, lease, result=b"second") == first
        assert seen(store) == before

    @pytest.mark.parametrize(
        "other", [Release(cause=Cause.RETRY), Bury(reason=Reason.FAILED), Cancel(reason="no")], ids=repr
    )
    def test_a_completed_run_cannot_be_settled_otherwise(self, store: Store, other: Release | Bury | Cancel) -> None:
        lease = completed(store)
        before = seen(store)

        assert store.settle(lease, other) == Fenced(State.COMPLETED)
        assert seen(store) == before

    def test_a_run_that_was_asked_to_cancel_may_still_complete(self, store: Store) -> None:
        lease = running(store)
        store.cancel(JOB, reason="too late")

        assert complete(store, lease) == Settled(State.COMPLETED)
        assert not seen(store).cancel_requested


class Releasing(Fixtures):
    """A run that did not finish its job gives it back to the queue."""

    def test_a_released_job_is_queued_and_remembers_the_attempt(self, store: Store, clock: FakeClock) -> None:
        lease = running(store)
        clock.advance(seconds=5)

        answer = store.settle(lease, Release(cause=Cause.RETRY, error=BOOM))

        job = seen(store)
        assert answer == Settled(State.QUEUED)
        assert (job.state, job.attempt, job.crashes, job.error) == (State.QUEUED, 1, 0, BOOM)
        assert (job.lease_until, job.not_before, job.changed_at, job.body) == (None, None, clock.now, b"message")
        assert job.past == (
            Attempt(
                number=1,
                fence=lease.fence,
                worker="worker of first",
                begun_at=clock.now - timedelta(seconds=5),
                ended_at=clock.now,
                cause=Cause.RETRY,
                error=BOOM,
            ),
        )

    def test_a_released_job_begins_when_its_delay_is_over_and_not_before(self, store: Store, clock: FakeClock) -> None:
        release(store, running(store), Cause.RETRY, delay=HOUR)
        due = clock.now + HOUR

        clock.now = due - INSTANT
        before = begin(store, holder="second")
        clock.now = due

        assert before == Later(seen(store))
        assert seen(store).not_before == due
        assert running(store, holder="second").attempt == 2

    def test_a_handback_gives_its_attempt_back(self, store: Store) -> None:
        release(store, running(store), Cause.HANDBACK)

        assert seen(store).attempt == 0
        lease = running(store, holder="second")
        assert (lease.attempt, lease.crashes) == (1, 0)

    def test_a_crash_that_is_told_counts_as_one(self, store: Store) -> None:
        release(store, running(store), Cause.CRASH)

        lease = running(store, holder="second")

        assert (lease.attempt, lease.crashes) == (2, 1)

    def test_a_release_sent_again_is_answered_the_same_and_counts_once(self, store: Store, clock: FakeClock) -> None:
        lease = running(store)
        first = release(store, lease, Cause.CRASH, delay=HOUR)
        before = seen(store)
        clock.advance(seconds=5)

        assert release(store, lease, Cause.CRASH, delay=HOUR) == first
        assert seen(store) == before

    def test_a_release_sent_again_after_the_next_run_began_changes_nothing(self, store: Store) -> None:
        lease = running(store)
        release(store, lease, Cause.RETRY)
        running(store, holder="second")

        assert store.settle(lease, Release(cause=Cause.RETRY)) == Fenced(State.RUNNING)

    def test_a_job_remembers_its_newest_attempts(self, store: Store) -> None:
        for number in range(PAST_KEPT + 2):
            release(store, running(store, holder=str(number)), Cause.RETRY)

        assert [attempt.number for attempt in seen(store).past] == list(range(3, PAST_KEPT + 3))

    def test_the_release_of_a_run_that_was_asked_to_cancel_cancels_its_job(self, store: Store) -> None:
        lease = running(store)
        store.cancel(JOB, reason="not wanted")

        answer = store.settle(lease, Release(cause=Cause.RETRY, error=BOOM))

        assert answer == Settled(State.CANCELLED) == store.settle(lease, Release(cause=Cause.RETRY, error=BOOM))
        assert (seen(store).state, seen(store).reason, seen(store).body) == (State.CANCELLED, "not wanted", None)
        assert [attempt.cause for attempt in seen(store).past] == [Cause.RETRY]

    def test_a_released_job_keeps_its_key(self, store: Store) -> None:
        release(store, running(store), Cause.RETRY, delay=HOUR)

        assert isinstance(reserve(store, OTHER), Existing)


class Cancelling(Fixtures):
    """A queued job ends at once; a running one is asked, or made to."""

    def test_a_cancelled_job_keeps_the_reason_and_drops_its_body(self, store: Store, clock: FakeClock) -> None:
        accepted(store)
        clock.advance(seconds=5)

        answer = store.cancel(JOB, reason="not wanted")

        job = seen(store)
        assert answer == Cancelled(job)
        assert (job.state, job.reason, job.body) == (State.CANCELLED, "not wanted", None)
        assert (job.settled_at, job.changed_at) == (clock.now, clock.now)

    def test_a_running_job_is_asked_and_goes_on(self, store: Store) -> None:
        running(store)
        before = seen(store)

        answer = store.cancel(JOB, reason="not wanted")

        assert answer == Requested(seen(store))
        assert seen(store) == replace(before, cancel_requested=True)

    def test_a_run_that_heeds_the_request_ends_its_job(self, store: Store) -> None:
        lease = running(store)
        store.cancel(JOB, reason="not wanted")

        answer = store.settle(lease, Cancel(reason="heeded"))

        assert answer == Settled(State.CANCELLED) == store.settle(lease, Cancel(reason="heeded"))
        assert (seen(store).state, seen(store).reason) == (State.CANCELLED, "heeded")
        assert not seen(store).cancel_requested

    def test_a_job_that_others_have_joined_can_be_left_alone(self, store: Store) -> None:
        accepted(store)
        reserve(store, OTHER)
        before = seen(store)

        assert store.withdraw(JOB, reason="not wanted") == Existing(before)
        assert seen(store) == before

    def test_a_job_that_nobody_has_joined_is_cancelled_all_the_same(self, store: Store) -> None:
        accepted(store)

        answer = store.withdraw(JOB, reason="not wanted")

        assert answer == Cancelled(seen(store))

    def test_a_forced_cancel_after_a_completion_comes_too_late(self, store: Store) -> None:
        completed(store, result=b"paid")

        answer = store.cancel(JOB, reason="too late", force=True)

        assert answer == Finished(seen(store))
        assert (seen(store).state, seen(store).result) == (State.COMPLETED, b"paid")

    def test_a_completion_after_a_forced_cancel_comes_too_late(self, store: Store) -> None:
        lease = running(store)
        store.cancel(JOB, reason="stop", force=True)

        assert store.settle(lease, Complete(result=b"late")) == Fenced(State.CANCELLED)
        assert (seen(store).state, seen(store).reason, seen(store).result) == (State.CANCELLED, "stop", None)

    def test_a_forced_cancel_of_a_queued_job_leaves_its_last_run_no_claim(self, store: Store) -> None:
        lease = running(store)
        release(store, lease, Cause.RETRY)
        store.cancel(JOB, reason="stop")

        assert store.settle(lease, Cancel(reason="mine")) == Fenced(State.CANCELLED)
        assert seen(store).reason == "stop"

    def test_a_cancelled_job_stays_as_it_is(self, store: Store, clock: FakeClock) -> None:
        accepted(store)
        store.cancel(JOB, reason="first")
        before = seen(store)
        clock.advance(seconds=5)

        assert store.cancel(JOB, reason="second", force=True) == Cancelled(before)
        assert seen(store) == before

    def test_the_front_of_a_waiting_job_is_not_cancelled_with_it(self, store: Store) -> None:
        lease = running(store)
        accepted(store, OTHER, on_duplicate=OnDuplicate.TRAIL)

        store.cancel(OTHER, reason="not wanted")

        assert complete(store, lease) == Settled(State.COMPLETED, next_id="")

    def test_a_settlement_sent_again_names_the_next_job_again(self, store: Store) -> None:
        lease = running(store)
        accepted(store, OTHER, on_duplicate=OnDuplicate.TRAIL)

        assert complete(store, lease) == Settled(State.COMPLETED, next_id=OTHER) == complete(store, lease)


class Remembering(Fixtures):
    """A finished job stays readable for its history, and not longer."""

    def test_a_completed_job_is_readable_until_its_history_is_over(self, store: Store, clock: FakeClock) -> None:
        completed(store, work(retention=HOUR, history=HOUR * 2))
        ended = clock.now

        clock.now = ended + HOUR * 2 - INSTANT
        assert seen(store).result == b"done"
        clock.now = ended + HOUR * 2
        assert (store.get(JOB), store.last(KEY), store.find(Query()).items) == (None, None, ())

    def test_a_cancelled_job_is_readable_until_its_history_is_over(self, store: Store, clock: FakeClock) -> None:
        accepted(store, retention=HOUR, history=HOUR)
        clock.advance(days=30)
        store.cancel(JOB, reason="not wanted")
        ended = clock.now

        clock.now = ended + HOUR - INSTANT
        assert seen(store).state is State.CANCELLED
        clock.now = ended + HOUR
        assert store.get(JOB) is None

    def test_an_ended_job_still_says_what_it_follows(self, store: Store) -> None:
        completed(store, work(JOB, "key 1", follows="f1"))
        buried(store, work("letter", "key 2", follows="f2"))
        accepted(store, "cancelled", "key 3", follows="f3")
        store.cancel("cancelled", reason="not wanted")
        granted(store, work("unseen", "key 4", follows="f4", body=b"body"))

        jobs = [seen(store, each) for each in (JOB, "letter", "cancelled", "unseen")]
        assert [job.follows for job in jobs] == ["f1", "f2", "f3", "f4"]

    def test_a_job_is_readable_for_its_retention_at_least(self, store: Store, clock: FakeClock) -> None:
        completed(store, work(retention=HOUR * 2, history=HOUR))
        clock.now += HOUR * 2 - INSTANT

        assert reserve(store, OTHER) == Existing(seen(store))

    def test_live_jobs_never_expire(self, store: Store, clock: FakeClock) -> None:
        accepted(store, "queued", "key 1", retention=HOUR, history=HOUR)
        running(store, work("running", "key 2", retention=HOUR, history=HOUR), lease=LEASE)
        clock.advance(days=10_000)

        assert store.prune(limit=10) == 0
        assert seen(store, "queued").body == seen(store, "running").body == b"message"
        assert isinstance(reserve(store, OTHER, "key 1"), Existing)
