"""What a submission is answered: accepted, joined, refused, made to trail, or put in another's place."""

from __future__ import annotations

from datetime import timedelta

import pytest

from oncelery.answers import Cancelled, Existing, Later, Mismatched, Reserved
from oncelery.job import Cause, Job, OnDuplicate, Reason, State
from oncelery.settlement import Bury
from oncelery.stores.base import Store
from oncelery.testing.clock import FakeClock
from oncelery.testing.conformance.acts import (
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
    release,
    reserve,
    running,
    seen,
    work,
)
from oncelery.testing.conformance.fixtures import Fixtures

DAY = timedelta(days=1)


class Reserving(Fixtures):
    """A new submission, and one whose key or id is known."""

    def test_a_new_submission_is_queued_as_it_was_given(self, store: Store, clock: FakeClock) -> None:
        job = accepted(store, body=b"body", digest="d1", follows="f1", scope="acme", queue="slow", caller="web")

        assert job == seen(store) == store.last(KEY)
        assert job == Job(
            id=JOB,
            key=KEY,
            task="shop.charge",
            state=State.QUEUED,
            scope="acme",
            queue="slow",
            caller="web",
            digest="d1",
            follows="f1",
            body=b"body",
            created_at=clock.now,
            changed_at=clock.now,
        )

    def test_a_delayed_submission_says_from_when_it_may_begin(self, store: Store, clock: FakeClock) -> None:
        assert accepted(store, delay=timedelta(seconds=90)).not_before == clock.now + timedelta(seconds=90)

    def test_the_same_submission_sent_again_is_accepted_again_and_is_no_duplicate(self, store: Store) -> None:
        first = accepted(store)

        assert accepted(store) == first
        assert store.duplicates().items == ()

    def test_the_answer_may_be_waited_for_later(self, store: Store) -> None:
        wait = store.reserving(work(), on_duplicate=OnDuplicate.JOIN)
        accepted(store, OTHER, "another key")

        assert wait() == Reserved(seen(store))

    def test_a_known_id_that_has_begun_is_not_accepted_again(self, store: Store) -> None:
        running(store)

        answer = reserve(store)

        assert answer == Existing(seen(store))
        assert seen(store).duplicates == 0

    def test_a_known_id_that_was_released_is_not_accepted_again(self, store: Store) -> None:
        release(store, running(store), Cause.RETRY)

        assert reserve(store) == Existing(seen(store))

    def test_a_known_id_under_another_key_is_refused(self, store: Store) -> None:
        first = accepted(store)

        answer = reserve(store, JOB, "another key")

        assert answer == Mismatched(first)
        assert store.last("another key") is None

    def test_a_live_job_is_joined_and_counts_the_duplicate(self, store: Store) -> None:
        accepted(store)

        answer = reserve(store, OTHER)

        assert answer == Existing(seen(store))
        assert seen(store).duplicates == 1
        assert store.get(OTHER) is None

    def test_keys_do_not_know_of_each_other(self, store: Store) -> None:
        accepted(store, "a", "key of a")
        running(store, work("b", "key of b"))

        assert accepted(store, "c", "key of c").state is State.QUEUED

    def test_a_completed_job_answers_with_its_result_until_its_retention_is_over(
        self, store: Store, clock: FakeClock
    ) -> None:
        completed(store, work(retention=DAY), result=b"paid")

        clock.now += DAY - INSTANT
        within = reserve(store, OTHER)
        clock.now += INSTANT
        after = reserve(store, OTHER)

        assert isinstance(within, Existing)
        assert (within.job.id, within.job.result) == (JOB, b"paid")
        assert isinstance(after, Reserved)
        assert after.job.id == OTHER

    def test_without_retention_the_next_submission_is_accepted_at_once(self, store: Store) -> None:
        completed(store, work(retention=timedelta(0)))

        assert accepted(store, OTHER).id == OTHER
        assert seen(store).state is State.COMPLETED

    def test_a_buried_job_does_not_keep_its_key(self, store: Store) -> None:
        buried(store)

        accepted(store, OTHER)

        assert [job.id for job in (store.last(KEY),) if job] == [OTHER]
        assert seen(store).state is State.BURIED

    def test_a_cancelled_job_does_not_keep_its_key(self, store: Store) -> None:
        accepted(store)
        store.cancel(JOB, reason="not wanted")

        assert accepted(store, OTHER).id == OTHER

    @pytest.mark.parametrize("on_duplicate", [OnDuplicate.JOIN, OnDuplicate.REJECT])
    def test_another_payload_under_a_live_key_is_refused(self, store: Store, on_duplicate: OnDuplicate) -> None:
        accepted(store, digest="d1")

        answer = reserve(store, OTHER, on_duplicate=on_duplicate, digest="d2")

        assert answer == Mismatched(seen(store))
        assert seen(store).duplicates == 1

    @pytest.mark.parametrize("on_duplicate", OnDuplicate)
    def test_another_payload_never_gets_a_completed_jobs_result(self, store: Store, on_duplicate: OnDuplicate) -> None:
        completed(store, work(digest="d1"))

        answer = reserve(store, OTHER, on_duplicate=on_duplicate, digest="d2")

        assert answer == Mismatched(seen(store))
        assert store.get(OTHER) is None

    @pytest.mark.parametrize(("first", "second"), [("d1", "d1"), ("", "d2"), ("d1", ""), ("", "")])
    def test_payloads_are_only_compared_where_both_have_a_digest(self, store: Store, first: str, second: str) -> None:
        accepted(store, digest=first)

        assert isinstance(reserve(store, OTHER, digest=second), Existing)

    def test_past_retention_the_key_is_free_for_another_payload(self, store: Store, clock: FakeClock) -> None:
        completed(store, work(digest="d1", retention=DAY))
        clock.now += DAY

        assert accepted(store, OTHER, digest="d2").digest == "d2"

    def test_an_id_past_its_history_may_be_accepted_again(self, store: Store, clock: FakeClock) -> None:
        first = completed(store, work(retention=DAY, history=DAY))
        clock.now += DAY

        job = accepted(store)

        assert (job.state, job.result, job.created_at) == (State.QUEUED, None, clock.now)
        assert running(store).fence > first.fence


class Trailing(Fixtures):
    """`on_duplicate="trail"`: one runs, one waits with the newest payload."""

    def test_a_job_that_has_never_begun_takes_over_the_newer_payload(self, store: Store) -> None:
        accepted(store, body=b"old", digest="d1")

        answer = reserve(store, OTHER, on_duplicate=OnDuplicate.TRAIL, body=b"new", digest="d2")

        assert answer == Existing(seen(store))
        assert (seen(store).body, seen(store).digest, seen(store).duplicates) == (b"new", "d2", 1)
        assert store.get(OTHER) is None

    def test_a_body_that_was_taken_over_reaches_the_worker(self, store: Store) -> None:
        accepted(store, body=b"old")
        reserve(store, OTHER, on_duplicate=OnDuplicate.TRAIL, body=b"new")

        assert granted(store, work(body=b"old")).body == b"new"

    def test_a_body_that_was_not_taken_over_is_not_sent_to_the_worker(self, store: Store) -> None:
        accepted(store)

        assert granted(store).body is None

    def test_behind_a_job_that_has_begun_the_newer_one_waits(self, store: Store) -> None:
        running(store)

        job = accepted(store, OTHER, on_duplicate=OnDuplicate.TRAIL)

        assert (job.state, job.behind) == (State.QUEUED, JOB)
        assert begin(store, work(OTHER), holder="second") == Later(job)
        assert store.last(KEY) == seen(store)

    def test_behind_a_job_that_was_released_the_newer_one_waits(self, store: Store) -> None:
        release(store, running(store), Cause.RETRY)

        assert accepted(store, OTHER, on_duplicate=OnDuplicate.TRAIL).behind == JOB

    def test_the_submission_of_a_waiting_job_sent_again_is_accepted_again(self, store: Store) -> None:
        running(store)
        job = accepted(store, OTHER, on_duplicate=OnDuplicate.TRAIL)

        assert accepted(store, OTHER, on_duplicate=OnDuplicate.TRAIL) == job

    def test_one_waits_and_takes_over_every_newer_payload(self, store: Store) -> None:
        lease = running(store)
        accepted(store, OTHER, on_duplicate=OnDuplicate.TRAIL, body=b"older", digest="d2")

        answer = reserve(store, "third", on_duplicate=OnDuplicate.TRAIL, body=b"newest", digest="d3")
        complete(store, lease)

        assert isinstance(answer, Existing)
        assert (answer.job.id, answer.job.body, answer.job.duplicates) == (OTHER, b"newest", 1)
        assert store.get("third") is None
        assert granted(store, work(OTHER), holder="second").body == b"newest"

    def test_other_submissions_meet_the_job_that_runs_and_not_the_one_that_waits(self, store: Store) -> None:
        running(store)
        accepted(store, OTHER, on_duplicate=OnDuplicate.TRAIL)

        answer = reserve(store, "third")

        assert isinstance(answer, Existing)
        assert answer.job.id == JOB

    def test_the_waiting_job_may_begin_when_the_first_has_completed(self, store: Store) -> None:
        lease = running(store)
        accepted(store, OTHER, on_duplicate=OnDuplicate.TRAIL)

        answer = complete(store, lease)

        assert answer.next_id == OTHER
        assert (seen(store, OTHER).behind, store.last(KEY)) == ("", seen(store, OTHER))
        assert running(store, work(OTHER), holder="second").fence > lease.fence

    def test_the_waiting_job_may_begin_when_the_first_is_buried(self, store: Store) -> None:
        lease = running(store)
        accepted(store, OTHER, on_duplicate=OnDuplicate.TRAIL)

        store.settle(lease, Bury(reason=Reason.FAILED))

        assert running(store, work(OTHER), holder="second").fence > lease.fence

    def test_the_waiting_job_may_begin_when_the_first_is_cancelled_by_force(self, store: Store) -> None:
        lease = running(store)
        accepted(store, OTHER, on_duplicate=OnDuplicate.TRAIL)

        store.cancel(JOB, reason="stop", force=True)

        assert running(store, work(OTHER), holder="second").fence > lease.fence

    def test_the_waiting_job_may_begin_when_the_first_has_crashed_too_often(
        self, store: Store, clock: FakeClock
    ) -> None:
        lease = running(store)
        accepted(store, OTHER, on_duplicate=OnDuplicate.TRAIL)
        clock.now = lease.until

        begin(store, holder="second", max_crashes=0)

        assert seen(store).state is State.BURIED
        assert running(store, work(OTHER), holder="third").fence > lease.fence

    def test_the_waiting_job_still_waits_when_the_first_is_released(self, store: Store) -> None:
        lease = running(store)
        accepted(store, OTHER, on_duplicate=OnDuplicate.TRAIL)

        answer = release(store, lease, Cause.RETRY)

        assert answer.next_id == ""
        assert isinstance(begin(store, work(OTHER), holder="second"), Later)
        assert running(store, holder="second").job_id == JOB

    def test_a_waiting_job_with_a_delay_begins_when_both_are_over(self, store: Store, clock: FakeClock) -> None:
        lease = running(store)
        accepted(store, OTHER, on_duplicate=OnDuplicate.TRAIL, delay=timedelta(minutes=1))

        complete(store, lease)

        assert isinstance(begin(store, work(OTHER), holder="second"), Later)
        clock.advance(seconds=60)
        assert running(store, work(OTHER), holder="second").job_id == OTHER

    def test_a_cancelled_waiting_job_leaves_its_place_to_another(self, store: Store) -> None:
        lease = running(store)
        accepted(store, OTHER, on_duplicate=OnDuplicate.TRAIL)
        store.cancel(OTHER, reason="not wanted")

        third = accepted(store, "third", on_duplicate=OnDuplicate.TRAIL)

        assert third.behind == JOB
        assert complete(store, lease).next_id == "third"

    def test_behind_a_completed_job_nothing_waits(self, store: Store) -> None:
        completed(store)

        assert isinstance(reserve(store, OTHER, on_duplicate=OnDuplicate.TRAIL), Existing)


class Replacing(Fixtures):
    """`on_duplicate="replace"`: the newer submission takes a queued one's place."""

    def test_a_queued_job_is_cancelled_for_the_newer_one(self, store: Store) -> None:
        accepted(store, digest="d1")

        job = accepted(store, OTHER, on_duplicate=OnDuplicate.REPLACE, digest="d2")

        assert (job.id, job.state) == (OTHER, State.QUEUED)
        assert (seen(store).state, seen(store).reason) == (State.CANCELLED, "replaced")
        assert isinstance(begin(store), Cancelled)
        assert store.last(KEY) == job

    def test_the_newer_submission_sent_again_is_accepted_again(self, store: Store) -> None:
        accepted(store)
        job = accepted(store, OTHER, on_duplicate=OnDuplicate.REPLACE)

        assert accepted(store, OTHER, on_duplicate=OnDuplicate.REPLACE) == job

    def test_a_running_job_is_joined_whatever_its_payload(self, store: Store) -> None:
        running(store, work(digest="d1"))

        answer = reserve(store, OTHER, on_duplicate=OnDuplicate.REPLACE, digest="d2")

        assert answer == Existing(seen(store))
        assert seen(store).state is State.RUNNING
