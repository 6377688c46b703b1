"""What a worker that asks to begin is answered, and what a crash does."""

from __future__ import annotations

from datetime import timedelta

import pytest

from oncelery.answers import (
    Absent,
    Buried,
    Busy,
    Cancelled,
    Counted,
    Existing,
    Finished,
    Later,
    Mismatched,
)
from oncelery.errors import ConfigurationError
from oncelery.job import Attempt, Cause, Durability, Lease, Reason, State
from oncelery.settlement import Bury, Complete, Release
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
    lapsed,
    micros,
    release,
    reserve,
    running,
    seen,
    work,
)
from oncelery.testing.conformance.fixtures import Fixtures


class Beginning(Fixtures):
    """Asking to run a job, by its id or by its key."""

    def test_a_queued_job_is_granted(self, store: Store, clock: FakeClock) -> None:
        accepted(store, scope="acme")

        grant = granted(store, holder="me", worker="w1", lease=LEASE)

        assert grant.lease == Lease(
            job_id=JOB,
            key=KEY,
            task="shop.charge",
            scope="acme",
            holder="me",
            fence=micros(clock.now),
            attempt=1,
            crashes=0,
            until=clock.now + LEASE,
            duration=LEASE,
            durability=Durability.FAST,
        )
        assert (grant.recovered, dict(grant.steps), grant.body) == (False, {}, None)

    def test_a_lease_carries_the_durability_asked_for_or_the_store_says_that_it_has_none(self, store: Store) -> None:
        try:
            lease = running(store, work(durability=Durability.SAFE))
        except ConfigurationError as refusal:
            assert "safe" in str(refusal)  # noqa: PT017 - a store may refuse, and then says what it refuses
        else:
            assert lease.durability is Durability.SAFE
            assert complete(store, lease).state is State.COMPLETED

    def test_a_granted_job_tells_who_runs_it_and_until_when(self, store: Store, clock: FakeClock) -> None:
        accepted(store)
        clock.advance(seconds=5)

        lease = running(store, holder="me", worker="w1")

        job = seen(store)
        assert (job.state, job.holder, job.worker, job.fence) == (State.RUNNING, "me", "w1", lease.fence)
        assert (job.begun_at, job.changed_at, job.lease_until) == (clock.now, clock.now, lease.until)
        assert (job.attempt, job.created_at) == (1, clock.now - timedelta(seconds=5))

    def test_the_same_holder_asking_again_gets_the_same_grant(self, store: Store, clock: FakeClock) -> None:
        first = granted(store)
        clock.advance(seconds=1)

        assert granted(store) == first
        assert seen(store).attempt == 1

    def test_the_same_holder_asking_again_after_the_lapse_gets_the_same_grant(
        self, store: Store, clock: FakeClock
    ) -> None:
        lease = lapsed(store, clock)

        assert granted(store).lease == lease

    def test_another_holder_finds_a_live_lease_busy(self, store: Store) -> None:
        running(store)

        answer = begin(store, holder="second")

        assert answer == Busy(seen(store))
        assert (seen(store).holder, seen(store).duplicates) == ("first", 1)

    def test_a_job_that_is_unknown_is_accepted_and_granted_with_its_body(self, store: Store) -> None:
        grant = granted(store, work(body=b"body", delay=timedelta(hours=1)))

        assert grant.lease.job_id == JOB
        assert (seen(store).body, seen(store).not_before) == (b"body", None)
        assert store.last(KEY) == seen(store)

    def test_a_job_that_is_unknown_and_has_no_body_at_hand_is_absent(self, store: Store) -> None:
        assert begin(store, work(body=None)) == Absent()
        assert store.get(JOB) is None

    def test_a_known_job_needs_no_body(self, store: Store) -> None:
        accepted(store, body=b"body")

        running(store, work(body=None))

        assert seen(store).body == b"body"

    def test_the_stored_key_holds_whatever_key_the_worker_computed(self, store: Store) -> None:
        accepted(store, JOB, "key of the publisher")

        lease = running(store, work(JOB, "key of the worker"))

        assert lease.key == "key of the publisher"
        assert store.last("key of the worker") is None

    def test_a_delayed_job_begins_when_its_time_has_come_and_not_before(self, store: Store, clock: FakeClock) -> None:
        job = accepted(store, delay=timedelta(minutes=1))
        assert job.not_before is not None

        clock.now = job.not_before - INSTANT
        before = begin(store)
        clock.now = job.not_before
        lease = running(store)

        assert before == Later(job)
        assert lease.attempt == 1
        assert seen(store).not_before is None

    def test_a_completed_job_is_finished_and_answers_with_its_result(self, store: Store, clock: FakeClock) -> None:
        completed(store, work(retention=timedelta(hours=1)), result=b"paid")
        clock.advance(hours=2)

        answer = begin(store, holder="second")

        assert answer == Finished(seen(store))
        assert (seen(store).result, seen(store).duplicates) == (b"paid", 1)

    def test_a_buried_job_never_begins_again(self, store: Store) -> None:
        buried(store)

        answer = begin(store, holder="second")

        assert answer == Finished(seen(store))
        assert (seen(store).state, seen(store).duplicates) == (State.BURIED, 1)

    def test_a_cancelled_job_never_begins(self, store: Store) -> None:
        accepted(store)
        store.cancel(JOB, reason="not wanted")

        assert begin(store) == Cancelled(seen(store))
        assert seen(store).duplicates == 0

    def test_another_id_finds_the_live_job_of_its_key_busy(self, store: Store) -> None:
        accepted(store)

        answer = begin(store, work(OTHER))

        assert answer == Busy(seen(store))
        assert (seen(store).state, seen(store).duplicates) == (State.QUEUED, 1)

    def test_another_id_does_not_take_over_a_lapsed_run(self, store: Store, clock: FakeClock) -> None:
        lapsed(store, clock)

        assert isinstance(begin(store, work(OTHER), holder="second"), Busy)
        assert seen(store).crashes == 0

    def test_another_id_is_answered_with_the_result_until_retention_is_over(
        self, store: Store, clock: FakeClock
    ) -> None:
        completed(store, work(retention=timedelta(hours=1)), result=b"paid")

        clock.now += timedelta(hours=1) - INSTANT
        within = begin(store, work(OTHER), holder="second")
        clock.now += INSTANT
        after = granted(store, work(OTHER), holder="second")

        assert within == Finished(seen(store))
        assert after.lease.job_id == OTHER

    def test_another_id_with_another_payload_is_refused(self, store: Store) -> None:
        accepted(store, "queued", "key 1", digest="d1")
        completed(store, work("completed", "key 2", digest="d1"))

        assert begin(store, work(OTHER, "key 1", digest="d2")) == Mismatched(seen(store, "queued"))
        assert begin(store, work(OTHER, "key 2", digest="d2")) == Mismatched(seen(store, "completed"))
        assert seen(store, "queued").duplicates == seen(store, "completed").duplicates == 1

    def test_the_same_id_is_not_asked_for_its_payload(self, store: Store) -> None:
        accepted(store, digest="d1")

        assert running(store, work(digest="d2")).attempt == 1


class Crashing(Fixtures):
    """A run that ended without a word, and the limits to trying again."""

    def test_a_lease_lapses_to_the_instant(self, store: Store, clock: FakeClock) -> None:
        lease = running(store)

        clock.now = lease.until - INSTANT
        before = begin(store, holder="second")
        clock.now = lease.until

        assert isinstance(before, Busy)
        assert running(store, holder="second").attempt == 2

    def test_a_takeover_counts_the_crash_and_keeps_the_lost_run(self, store: Store, clock: FakeClock) -> None:
        first = lapsed(store, clock)

        grant = granted(store, holder="second", worker="w2")

        assert grant.recovered
        assert grant.lease.fence > first.fence
        assert (grant.lease.attempt, grant.lease.crashes) == (2, 1)
        assert seen(store).past == (
            Attempt(
                number=1,
                fence=first.fence,
                worker="worker of first",
                begun_at=first.until - LEASE,
                ended_at=clock.now,
                cause=Cause.LAPSE,
            ),
        )
        assert (seen(store).holder, seen(store).worker, seen(store).crashes) == ("second", "w2", 1)

    def test_a_job_that_crashes_too_often_is_buried(self, store: Store, clock: FakeClock) -> None:
        lapsed(store, clock, holder="1", max_crashes=1)
        lapsed(store, clock, holder="2", max_crashes=1)

        answer = begin(store, holder="3", max_crashes=1)

        assert answer == Buried(seen(store))
        assert (seen(store).state, seen(store).reason) == (State.BURIED, Reason.CRASHED)
        assert (seen(store).crashes, len(seen(store).past)) == (2, 2)
        assert seen(store).body == b"message"
        assert isinstance(begin(store, holder="4", max_crashes=9), Finished)

    def test_crashes_told_and_untold_add_up_over_retries_and_handbacks(self, store: Store, clock: FakeClock) -> None:
        release(store, running(store, holder="1"), Cause.CRASH)
        release(store, running(store, holder="2"), Cause.RETRY)
        lapsed(store, clock, holder="3")
        release(store, running(store, holder="4"), Cause.HANDBACK)
        release(store, running(store, holder="5"), Cause.CRASH)

        answer = begin(store, holder="6", max_crashes=2)

        assert answer == Buried(seen(store))
        assert (seen(store).reason, seen(store).crashes) == (Reason.CRASHED, 3)

    def test_a_retry_after_as_many_crashes_as_allowed_may_begin(self, store: Store) -> None:
        release(store, running(store, holder="1"), Cause.CRASH)
        release(store, running(store, holder="2", max_crashes=1), Cause.RETRY)

        assert running(store, holder="3", max_crashes=1).attempt == 3

    def test_a_job_on_hold_is_buried_after_a_lapse(self, store: Store, clock: FakeClock) -> None:
        lapsed(store, clock, hold=True)

        answer = begin(store, holder="second", hold=True)

        assert answer == Buried(seen(store))
        assert seen(store).reason == Reason.OUTCOME_UNKNOWN

    @pytest.mark.parametrize("cause", [Cause.CRASH, Cause.HANDBACK])
    def test_a_job_on_hold_is_buried_after_a_run_that_was_cut_short(self, store: Store, cause: Cause) -> None:
        release(store, running(store, hold=True), cause)

        answer = begin(store, holder="second", hold=True)

        assert answer == Buried(seen(store))
        assert seen(store).reason == Reason.OUTCOME_UNKNOWN

    def test_a_job_on_hold_may_go_on_after_a_run_that_ended_in_order(self, store: Store) -> None:
        release(store, running(store, hold=True), Cause.RETRY)

        assert running(store, holder="second", hold=True).crashes == 0

    def test_too_many_crashes_go_before_the_hold(self, store: Store, clock: FakeClock) -> None:
        lapsed(store, clock)

        begin(store, holder="second", max_crashes=0, hold=True)

        assert seen(store).reason == Reason.CRASHED

    @pytest.mark.parametrize("cause", [Cause.CRASH, Cause.HANDBACK])
    def test_a_run_is_recovered_once_any_run_of_its_job_was_cut_short(self, store: Store, cause: Cause) -> None:
        release(store, running(store, holder="1"), cause)
        release(store, running(store, holder="2"), Cause.RETRY)

        assert granted(store, holder="3").recovered

    def test_a_revived_job_is_not_recovered(self, store: Store) -> None:
        release(store, running(store, holder="1"), Cause.HANDBACK)
        store.settle(running(store, holder="2"), Bury(reason=Reason.FAILED))
        store.revive(JOB)

        assert not granted(store, holder="3").recovered

    def test_a_release_may_change_the_body_to_go_on_with(self, store: Store) -> None:
        store.settle(running(store), Release(cause=Cause.RETRY, body=b"page 2"))

        assert seen(store).body == b"page 2"
        assert granted(store, holder="second").body == b"page 2"

    def test_a_run_after_one_that_ended_in_order_is_not_recovered(self, store: Store) -> None:
        release(store, running(store), Cause.RETRY)

        assert not granted(store, holder="second").recovered

    def test_a_takeover_of_a_run_that_was_asked_to_cancel_cancels_it(self, store: Store, clock: FakeClock) -> None:
        lapsed(store, clock)
        store.cancel(JOB, reason="not wanted")

        answer = begin(store, holder="second")

        assert answer == Cancelled(seen(store))
        assert (seen(store).state, seen(store).reason) == (State.CANCELLED, "not wanted")
        assert [attempt.cause for attempt in seen(store).past] == [Cause.LAPSE]

    def test_a_buried_runs_holder_is_told_that_it_lost(self, store: Store, clock: FakeClock) -> None:
        lease = lapsed(store, clock)
        begin(store, holder="second", max_crashes=0)
        before = seen(store)

        store.settle(lease, Complete(result=b"late"))

        assert seen(store) == before

    def test_an_error_told_before_a_crash_stays_with_its_attempt(self, store: Store, clock: FakeClock) -> None:
        release(store, running(store, holder="1"), Cause.RETRY, error=BOOM)
        lapsed(store, clock, holder="2")

        running(store, holder="3")

        assert [attempt.error for attempt in seen(store).past] == [BOOM, None]

    def test_a_grant_starts_the_count_of_deliveries_anew(self, store: Store) -> None:
        accepted(store)
        store.received(JOB, limit=5)
        store.received(JOB, limit=5)
        release(store, running(store), Cause.RETRY)

        assert store.received(JOB, limit=5) == Counted(1)


class Ephemeral(Fixtures):
    """A job with an empty body is never published: nobody could run it again."""

    def test_it_runs_and_completes_as_any_other(self, store: Store) -> None:
        completed(store, work(body=b""), result=b"done")

        assert reserve(store, OTHER) == Existing(seen(store))

    def test_while_its_lease_is_live_another_finds_it_busy(self, store: Store) -> None:
        running(store, work(body=b""))

        assert isinstance(begin(store, work(OTHER, body=b""), holder="second"), Busy)

    def test_its_lapsed_run_does_not_keep_the_key(self, store: Store, clock: FakeClock) -> None:
        first = lapsed(store, clock, work(body=b""))

        second = running(store, work(OTHER, body=b""), holder="second")

        assert second.fence > first.fence
        assert (seen(store).state, seen(store).reason) == (State.CANCELLED, "lapsed")
        assert [attempt.cause for attempt in seen(store).past] == [Cause.LAPSE]

    def test_its_lapsed_run_may_still_complete_when_nobody_took_the_key(self, store: Store, clock: FakeClock) -> None:
        lease = lapsed(store, clock, work(body=b""))

        store.settle(lease, Complete(result=b"late"))

        assert seen(store).state is State.COMPLETED
