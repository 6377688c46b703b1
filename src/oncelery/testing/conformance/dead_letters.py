"""How a job is buried, and what revives or deletes a dead letter."""

from __future__ import annotations

from datetime import timedelta

from msgspec.structs import replace

from oncelery.answers import (
    Absent,
    Cancelled,
    Discarded,
    Existing,
    Fenced,
    NotBuried,
    Reserved,
    Resubmitted,
    Revived,
    Settled,
)
from oncelery.job import DISCARDED, Attempt, Cause, OnDuplicate, Query, Reason, State
from oncelery.settlement import Bury, Complete
from oncelery.stores.base import SLOW_CHECK, Store
from oncelery.testing.clock import FakeClock
from oncelery.testing.conformance.acts import (
    BOOM,
    INSTANT,
    JOB,
    KEY,
    OTHER,
    accepted,
    begin,
    buried,
    complete,
    completed,
    granted,
    lapsed,
    release,
    reserve,
    running,
    seen,
    work,
)
from oncelery.testing.conformance.fixtures import Fixtures

HOUR = timedelta(hours=1)
OTHER_KEY = "another key"


class Burying(Fixtures):
    """A dead letter waits for a person."""

    def test_a_buried_job_keeps_its_reason_its_error_and_its_body(self, store: Store, clock: FakeClock) -> None:
        lease = running(store)

        answer = store.settle(lease, Bury(reason=Reason.EXHAUSTED, error=BOOM))

        job = seen(store)
        assert answer == Settled(State.BURIED) == store.settle(lease, Bury(reason=Reason.EXHAUSTED, error=BOOM))
        assert (job.state, job.reason, job.error, job.body) == (State.BURIED, Reason.EXHAUSTED, BOOM, b"message")
        assert (job.settled_at, job.lease_until, job.result) == (clock.now, None, None)

    def test_a_buried_job_outlives_its_history(self, store: Store, clock: FakeClock) -> None:
        buried(store, work(retention=HOUR, history=HOUR))
        clock.advance(days=10_000)

        assert store.prune(limit=10) == 0
        assert seen(store).body == b"message"

    def test_a_burial_without_an_error_keeps_the_last_one(self, store: Store) -> None:
        release(store, running(store), Cause.RETRY, error=BOOM)

        store.settle(running(store, holder="second"), Bury(reason=Reason.EXHAUSTED))

        assert seen(store).error == BOOM

    def test_a_revived_job_is_queued_with_its_counters_cleared(self, store: Store, clock: FakeClock) -> None:
        lapsed(store, clock)
        lease = running(store, holder="second")
        store.record(lease, step=("paid", b"yes"))
        store.settle(lease, Bury(reason=Reason.FAILED, error=BOOM))
        clock.advance(hours=1)
        before = seen(store)

        answer = store.revive(JOB)

        assert answer == Revived(seen(store))
        assert seen(store) == replace(
            before,
            state=State.QUEUED,
            changed_at=clock.now,
            settled_at=None,
            attempt=0,
            crashes=0,
            reason="",
            error=None,
            past=(
                *before.past,
                Attempt(
                    number=2,
                    fence=lease.fence,
                    worker=before.worker,
                    begun_at=before.begun_at or clock.now,
                    ended_at=before.settled_at or clock.now,
                    cause=Cause.BURIAL,
                    error=BOOM,
                ),
            ),
        )

    def test_a_run_that_is_in_the_past_is_not_put_there_again_by_a_revival(
        self, store: Store, clock: FakeClock
    ) -> None:
        lapsed(store, clock)
        begin(store, holder="second", max_crashes=0)
        assert seen(store).state is State.BURIED

        for _ in range(2):
            store.revive(JOB)
            # Buried again, without another run.
            store.received(JOB, limit=0)

        assert [attempt.cause for attempt in seen(store).past] == [Cause.LAPSE]

    def test_a_job_that_was_buried_before_it_began_has_no_past(self, store: Store) -> None:
        accepted(store)
        store.received(JOB, limit=0)
        assert seen(store).state is State.BURIED

        store.revive(JOB)

        assert seen(store).past == ()

    def test_a_revived_job_begins_with_its_steps_and_a_clean_slate(self, store: Store, clock: FakeClock) -> None:
        store.record(lapsed(store, clock), step=("paid", b"yes"))
        begin(store, holder="second", hold=True)

        store.revive(JOB)
        grant = granted(store, holder="third", hold=True, max_crashes=0)

        assert (dict(grant.steps), grant.recovered, grant.body) == ({"paid": b"yes"}, False, None)
        assert (grant.lease.attempt, grant.lease.crashes) == (1, 0)

    def test_a_revival_with_another_body_hands_it_to_the_worker(self, store: Store) -> None:
        buried(store)

        store.revive(JOB, body=b"mended")

        assert seen(store).body == b"mended"
        assert granted(store, holder="second").body == b"mended"

    def test_a_revived_job_keeps_its_key_again(self, store: Store) -> None:
        buried(store)
        store.revive(JOB)

        assert reserve(store, OTHER) == Existing(seen(store))

    def test_a_revived_job_is_the_last_of_its_key(self, store: Store, clock: FakeClock) -> None:
        buried(store)
        completed(store, work(OTHER, retention=HOUR))
        clock.now += HOUR

        store.revive(JOB)

        assert store.last(KEY) == seen(store)

    def test_a_revival_gives_way_to_a_live_job_of_its_key(self, store: Store) -> None:
        buried(store)
        newer = accepted(store, OTHER)
        before = seen(store)

        assert store.revive(JOB, body=b"mended") == Existing(newer)
        assert seen(store) == before

    def test_a_revival_gives_way_to_a_result_until_its_retention_is_over(self, store: Store, clock: FakeClock) -> None:
        buried(store)
        completed(store, work(OTHER, retention=HOUR))

        clock.now += HOUR - INSTANT
        within = store.revive(JOB)
        clock.now += INSTANT

        assert within == Existing(seen(store, OTHER))
        assert isinstance(store.revive(JOB), Revived)

    def test_a_late_settlement_of_the_run_before_a_revival_changes_nothing(self, store: Store) -> None:
        lease = buried(store)
        store.revive(JOB)
        before = seen(store)

        assert store.settle(lease, Complete(result=b"late")) == Fenced(State.QUEUED)
        assert seen(store) == before

    def test_only_a_buried_job_is_revived_or_discarded(self, store: Store) -> None:
        accepted(store)

        assert store.revive(JOB) == NotBuried(seen(store)) == store.discard(JOB)

    def test_a_discarded_job_is_cancelled_and_told_for_its_history(self, store: Store, clock: FakeClock) -> None:
        lease = running(store, work(retention=HOUR, history=HOUR, scope="tenant"))
        store.settle(lease, Bury(reason=Reason.FAILED, error=BOOM))
        before = seen(store)
        clock.advance(days=100)

        answer = store.discard(JOB)

        job = seen(store)
        assert answer == Discarded(job)
        ended = {"settled_at": clock.now, "changed_at": clock.now, "body": None, "holder": ""}
        assert job == replace(before, state=State.CANCELLED, reason=DISCARDED, **ended)
        assert store.find(Query(scope="tenant")).items == (job.summary(),)
        assert store.find(Query(states=frozenset({State.BURIED}))).items == ()
        clock.now += HOUR
        assert store.get(JOB) is None
        assert store.prune(limit=10) == 1

    def test_nothing_of_a_discarded_job_runs(self, store: Store, clock: FakeClock) -> None:
        lease = buried(store)
        store.discard(JOB)
        clock.now += SLOW_CHECK

        assert begin(store, holder="second") == Cancelled(seen(store))
        assert store.due(limit=10, empty_queues={"celery"}) == []
        assert store.revive(JOB) == NotBuried(seen(store))
        assert store.settle(lease, Complete(result=b"late")) == Fenced(State.CANCELLED)

    def test_the_key_of_a_discarded_job_is_free(self, store: Store) -> None:
        buried(store)
        store.discard(JOB)

        assert isinstance(reserve(store, OTHER), Reserved)

    def test_a_discarded_job_takes_no_newer_one_with_it(self, store: Store) -> None:
        buried(store)
        newer = accepted(store, OTHER)

        store.discard(JOB)

        assert store.last(KEY) == newer

    def test_a_discarded_job_leaves_the_one_alone_that_trailed_it(self, store: Store, clock: FakeClock) -> None:
        lease = running(store)
        accepted(store, OTHER, on_duplicate=OnDuplicate.TRAIL)
        store.settle(lease, Bury(reason=Reason.FAILED))
        trailed = running(store, work(OTHER), holder="second")
        clock.advance(seconds=1)
        before = seen(store, OTHER)

        store.discard(JOB)

        assert seen(store, OTHER) == before
        assert store.last(KEY) == before
        assert complete(store, trailed) == Settled(State.COMPLETED)


class Resubmitting(Fixtures):
    """A dead letter whose corrected arguments make another key: other work takes its place."""

    def test_the_dead_letter_is_cancelled_and_the_other_work_accepted_in_one_step(
        self, store: Store, clock: FakeClock
    ) -> None:
        lease = running(store, work(scope="tenant"))
        store.record(lease, step=("paid", b"yes"))
        store.settle(lease, Bury(reason=Reason.FAILED, error=BOOM))
        before = seen(store)
        clock.advance(days=100)
        offer = work(OTHER, OTHER_KEY, body=b"mended", scope="tenant", queue="slow", caller="web", history=HOUR * 30)

        answer = store.revive(JOB, submission=offer)

        assert answer == Resubmitted(seen(store, OTHER)) == Resubmitted(offer.accepted(clock.now))
        ended = {"settled_at": clock.now, "changed_at": clock.now, "body": None, "holder": ""}
        assert seen(store) == replace(before, state=State.CANCELLED, reason=f"revived as {OTHER}", **ended)
        assert store.last(OTHER_KEY) == seen(store, OTHER)
        assert store.find(Query(states=frozenset({State.BURIED}))).items == ()
        grant = granted(store, work(OTHER, OTHER_KEY, body=None), holder="second")
        assert (dict(grant.steps), grant.body, grant.recovered, grant.lease.attempt) == ({}, None, False, 1)

    def test_the_other_work_keeps_its_key_and_both_keys_go_their_own_ways(self, store: Store) -> None:
        buried(store)
        store.revive(JOB, submission=work(OTHER, OTHER_KEY))

        assert isinstance(reserve(store, "third", OTHER_KEY), Existing)
        assert accepted(store, "fourth").id == "fourth"

    def test_the_other_work_is_due_like_any_other(self, store: Store, clock: FakeClock) -> None:
        buried(store)
        store.revive(JOB, submission=work(OTHER, OTHER_KEY))
        clock.now += SLOW_CHECK

        assert [job.id for job in store.due(limit=10)] == [OTHER]

    def test_the_other_work_is_granted_under_a_higher_fence_than_its_key_had(
        self, store: Store, clock: FakeClock
    ) -> None:
        buried(store)
        clock.advance(days=1)
        other = buried(store, work("earlier", OTHER_KEY))
        clock.advance(days=-1)

        store.revive(JOB, submission=work(OTHER, OTHER_KEY))

        assert running(store, work(OTHER, OTHER_KEY), holder="second").fence > other.fence

    def test_a_live_job_of_that_key_is_the_answer_and_the_dead_letter_stays(self, store: Store) -> None:
        buried(store)
        other = accepted(store, "earlier", OTHER_KEY)
        before = seen(store)

        assert store.revive(JOB, submission=work(OTHER, OTHER_KEY)) == Existing(other)
        assert (seen(store), store.get(OTHER)) == (before, None)

    def test_a_result_of_that_key_is_the_answer_until_its_retention_is_over(
        self, store: Store, clock: FakeClock
    ) -> None:
        buried(store)
        completed(store, work("earlier", OTHER_KEY, retention=HOUR))

        clock.now += HOUR - INSTANT
        within = store.revive(JOB, submission=work(OTHER, OTHER_KEY))
        clock.now += INSTANT
        after = store.revive(JOB, submission=work(OTHER, OTHER_KEY))

        assert within == Existing(seen(store, "earlier"))
        assert isinstance(after, Resubmitted)

    def test_an_id_that_is_known_is_not_taken_by_the_other_work(self, store: Store) -> None:
        buried(store)
        known = accepted(store, OTHER, "a third key")
        before = seen(store)

        assert store.revive(JOB, submission=work(OTHER, OTHER_KEY)) == Existing(known)
        assert (seen(store), store.last(OTHER_KEY)) == (before, None)

    def test_only_a_dead_letter_gives_its_place_to_other_work(self, store: Store) -> None:
        assert store.revive(JOB, submission=work(OTHER, OTHER_KEY)) == Absent()
        accepted(store)
        assert store.revive(JOB, submission=work(OTHER, OTHER_KEY)) == NotBuried(seen(store))
        assert store.get(OTHER) is None

    def test_a_revival_sent_again_makes_no_second_job(self, store: Store) -> None:
        buried(store)
        store.revive(JOB, submission=work(OTHER, OTHER_KEY))

        assert store.revive(JOB, submission=work("third", OTHER_KEY)) == NotBuried(seen(store))
        assert store.get("third") is None

    def test_the_job_in_its_place_waits_behind_no_other_and_leaves_those_alone_that_trailed(self, store: Store) -> None:
        lease = running(store)
        accepted(store, "trail", on_duplicate=OnDuplicate.TRAIL)
        store.settle(lease, Bury(reason=Reason.FAILED))
        trailed = running(store, work("trail"), holder="second")
        before = seen(store, "trail")

        store.revive(JOB, submission=work(OTHER, OTHER_KEY))

        assert (seen(store, "trail"), store.last(KEY)) == (before, before)
        assert complete(store, trailed) == Settled(State.COMPLETED)
