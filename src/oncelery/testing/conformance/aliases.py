"""A request is found again by what its caller calls it, beside the key of its work."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from oncelery.answers import Absent, Busy, Existing, Finished, Full, Mismatched, Reserved
from oncelery.job import ALIAS_RETENTION, ALIASES_KEPT, Answer, OnDuplicate, Query, Quota, State
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
    reserve,
    running,
    seen,
    work,
)
from oncelery.testing.conformance.fixtures import Fixtures

HOUR = timedelta(hours=1)
NO_TIME = timedelta(0)
OTHER_KEY = "another key"

every_way = pytest.mark.parametrize("on_duplicate", OnDuplicate)


class Aliases(Fixtures):
    """The same alias is the same job, for a day at least; another alias meets the key."""

    @every_way
    def test_a_request_sent_again_gets_its_live_job_whatever_is_done_about_duplicates(
        self, store: Store, on_duplicate: OnDuplicate
    ) -> None:
        accepted(store, alias="click", digest="d1")

        answer = reserve(store, OTHER, on_duplicate=on_duplicate, alias="click", digest="d1", body=b"again")

        assert answer == Existing(seen(store), repeated=True)
        assert (seen(store).state, seen(store).body, seen(store).duplicates) == (State.QUEUED, b"message", 1)
        assert [duplicate.answer for duplicate in store.duplicates().items] == [Answer.JOINED]

    @every_way
    def test_another_payload_under_a_known_alias_is_refused(self, store: Store, on_duplicate: OnDuplicate) -> None:
        accepted(store, alias="click", digest="d1")

        same_work = reserve(store, OTHER, on_duplicate=on_duplicate, alias="click", digest="d2")
        other_work = reserve(store, OTHER, OTHER_KEY, on_duplicate=on_duplicate, alias="click", digest="d2")

        assert isinstance(same_work, Mismatched)
        assert other_work == Mismatched(seen(store))
        assert [duplicate.answer for duplicate in store.duplicates().items] == [Answer.REFUSED] * 2
        assert (store.get(OTHER), store.last(OTHER_KEY)) == (None, None)

    def test_an_alias_is_found_whatever_the_key_if_the_payload_is_the_same(self, store: Store) -> None:
        accepted(store, alias="click", digest="d1")

        answer = reserve(store, OTHER, OTHER_KEY, alias="click", digest="d1")

        assert answer == Existing(seen(store), repeated=True)
        assert store.last(OTHER_KEY) is None

    def test_another_alias_meets_the_job_of_its_key_whatever_the_payload(self, store: Store) -> None:
        accepted(store, alias="click", digest="d1")

        answer = reserve(store, OTHER, alias="other click", digest="d2")

        assert answer == Existing(seen(store))
        assert seen(store).digest == ""

    def test_an_alias_that_was_answered_with_a_job_is_bound_to_it(self, store: Store) -> None:
        lease = running(store, work(retention=NO_TIME))
        reserve(store, OTHER, alias="click", digest="d1")
        complete(store, lease, result=b"paid")
        newer = accepted(store, "newer")

        again = reserve(store, "third", alias="click", digest="d1")
        refused = reserve(store, "third", alias="click", digest="d2")

        assert again == Existing(replace(seen(store), duplicates=2), repeated=True)
        assert isinstance(refused, Mismatched)
        assert (refused.job.id, refused.job.result) == (JOB, b"paid")
        assert store.last(KEY) == newer

    def test_an_alias_that_was_answered_with_a_result_is_bound_to_it(self, store: Store, clock: FakeClock) -> None:
        completed(store, work(retention=HOUR))
        reserve(store, OTHER, alias="click", digest="d1")
        clock.now += HOUR

        answer = reserve(store, OTHER, alias="click", digest="d1")

        assert answer == Existing(seen(store), repeated=True)

    def test_a_request_that_was_rejected_is_bound_to_nothing(self, store: Store) -> None:
        lease = running(store, work(retention=NO_TIME))
        assert reserve(store, OTHER, on_duplicate=OnDuplicate.REJECT, alias="click") == Existing(seen(store))
        complete(store, lease)

        job = accepted(store, OTHER, on_duplicate=OnDuplicate.REJECT, alias="click")

        assert reserve(store, "third", alias="click") == Existing(replace(job, duplicates=1), repeated=True)

    def test_a_request_whose_scope_is_full_is_bound_to_nothing(self, store: Store) -> None:
        quota = Quota(max_active=1)
        accepted(store, scope="s", quota=quota)
        assert reserve(store, OTHER, OTHER_KEY, scope="s", quota=quota, alias="click", digest="d1") == Full()

        assert accepted(store, OTHER, OTHER_KEY, alias="click", digest="d2").id == OTHER

    def test_a_completed_job_answers_its_alias_for_a_day_though_its_key_is_free(
        self, store: Store, clock: FakeClock
    ) -> None:
        completed(store, work(alias="click", digest="d1", retention=NO_TIME))

        clock.now += ALIAS_RETENTION - INSTANT
        within = reserve(store, OTHER, alias="click", digest="d1")
        clock.now += INSTANT
        after = reserve(store, OTHER, alias="click", digest="d2")

        assert within == Existing(seen(store), repeated=True)
        assert [duplicate.answer for duplicate in store.duplicates().items] == [Answer.REPLAYED]
        assert isinstance(after, Reserved)

    def test_a_completed_job_answers_its_alias_as_long_as_its_key(self, store: Store, clock: FakeClock) -> None:
        completed(store, work(alias="click", digest="d1", retention=ALIAS_RETENTION * 2))

        clock.now += ALIAS_RETENTION * 2 - INSTANT
        within = reserve(store, OTHER, alias="click", digest="d2")
        clock.now += INSTANT
        after = reserve(store, OTHER, alias="click", digest="d2")

        assert isinstance(within, Mismatched)
        assert isinstance(after, Reserved)

    def test_a_completed_job_answers_no_alias_past_its_history(self, store: Store, clock: FakeClock) -> None:
        completed(store, work(alias="click", digest="d1", retention=NO_TIME, history=HOUR))
        clock.now += HOUR

        assert accepted(store, OTHER, alias="click", digest="d2").id == OTHER

    @pytest.mark.parametrize("end", [State.BURIED, State.CANCELLED])
    def test_after_a_job_that_failed_the_alias_is_bound_to_the_next_one(self, store: Store, end: State) -> None:
        if end is State.BURIED:
            buried(store, work(alias="click", digest="d1"))
        else:
            accepted(store, alias="click", digest="d1")
            store.cancel(JOB, reason="not wanted")

        job = accepted(store, OTHER, alias="click", digest="d2")

        assert reserve(store, "third", alias="click", digest="d2") == Existing(
            replace(job, duplicates=1), repeated=True
        )
        # The dead letter has lost it for good.
        store.cancel(OTHER, reason="not wanted")
        store.revive(JOB)
        assert isinstance(reserve(store, "third", OTHER_KEY, alias="click", digest="d3"), Reserved)

    def test_a_submission_sent_again_is_accepted_again_under_its_alias(self, store: Store) -> None:
        job = accepted(store, alias="click", digest="d1")

        assert accepted(store, alias="click", digest="d1") == job
        assert store.duplicates().items == ()

    def test_the_alias_of_a_job_that_waits_leads_to_that_one(self, store: Store) -> None:
        running(store)
        waiting = accepted(store, OTHER, on_duplicate=OnDuplicate.TRAIL, alias="click")
        reserve(store, "third", on_duplicate=OnDuplicate.TRAIL, alias="other click", digest="d2", body=b"newest")

        answer = reserve(store, "fourth", on_duplicate=OnDuplicate.TRAIL, alias="click", body=b"older")

        assert isinstance(answer, Existing)
        assert (answer.job.id, answer.job.body, answer.job.digest) == (waiting.id, b"newest", "")
        again = reserve(store, "fourth", alias="other click", digest="d2")
        assert again == Existing(seen(store, OTHER), repeated=True)

    def test_a_job_has_so_many_aliases_and_no_more(self, store: Store) -> None:
        lease = running(store, work(retention=NO_TIME))
        for number in range(ALIASES_KEPT + 1):
            assert isinstance(reserve(store, OTHER, alias=f"click {number}"), Existing)
        complete(store, lease)

        kept = reserve(store, OTHER, alias=f"click {ALIASES_KEPT - 1}")
        beyond = reserve(store, OTHER, alias=f"click {ALIASES_KEPT}")

        assert kept == Existing(seen(store), repeated=True)
        assert isinstance(beyond, Reserved)

    def test_aliases_go_with_their_job(self, store: Store, clock: FakeClock) -> None:
        lease = running(store, work(alias="click", digest="d1", retention=NO_TIME, history=HOUR))
        reserve(store, OTHER, alias="other click", digest="d1")
        complete(store, lease)
        clock.now += HOUR
        assert store.prune(limit=10) == 1

        # The id is used again, by another job that has none of them.
        completed(store, work(retention=ALIAS_RETENTION))

        for alias in ("click", "other click"):
            assert isinstance(reserve(store, alias, OTHER_KEY, alias=alias, digest="d2"), Reserved | Existing)
        assert {job.id for job in store.find(Query()).items} == {JOB, "click"}

    # Workers

    def test_a_worker_meets_the_job_of_the_alias_though_its_key_is_free(self, store: Store) -> None:
        completed(store, work(alias="click", digest="d1", retention=NO_TIME), result=b"paid")

        replayed = begin(store, work(OTHER, alias="click", digest="d1"), holder="second")
        refused = begin(store, work(OTHER, alias="click", digest="d2"), holder="second")

        assert isinstance(replayed, Finished)
        assert (replayed.job.id, replayed.job.result) == (JOB, b"paid")
        assert isinstance(refused, Mismatched)
        assert [duplicate.answer for duplicate in store.duplicates().items] == [Answer.REFUSED, Answer.REPLAYED]
        assert store.get(OTHER) is None

    def test_a_worker_meets_the_live_job_of_the_alias_under_another_key(self, store: Store) -> None:
        running(store, work(alias="click", digest="d1"))

        answer = begin(store, work(OTHER, OTHER_KEY, alias="click", digest="d1"), holder="second")

        assert answer == Busy(seen(store))

    def test_a_worker_under_another_alias_meets_the_job_of_the_key_whatever_the_payload(self, store: Store) -> None:
        running(store, work(alias="click", digest="d1"))

        assert begin(store, work(OTHER, alias="other click", digest="d2"), holder="second") == Busy(seen(store))

    def test_what_a_worker_accepts_is_found_by_its_alias(self, store: Store) -> None:
        assert begin(store, work(body=None, alias="click", digest="d1")) == Absent()
        lease = granted(store, work(alias="click", digest="d1", retention=NO_TIME)).lease
        complete(store, lease)

        assert reserve(store, OTHER, alias="click", digest="d1") == Existing(seen(store), repeated=True)
        assert seen(store).digest == ""

    def test_the_run_of_an_aliased_job_is_like_any_other(self, store: Store, clock: FakeClock) -> None:
        accepted(store, alias="click", digest="d1")

        grant = granted(store, work(body=None, alias="click", digest="d1"))
        again = granted(store, work(body=None, alias="click", digest="d1"))

        assert grant == again
        assert (grant.recovered, grant.body, grant.lease.until) == (False, None, clock.now + grant.lease.duration)
