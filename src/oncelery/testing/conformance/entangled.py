"""Where two rules meet: revivals and trails, ids used again, payloads taken over."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from oncelery.answers import Existing, Reserved
from oncelery.job import Cause, OnDuplicate, Reason, State
from oncelery.settlement import Bury, Cancel, Complete, Release, Settlement
from oncelery.stores.base import SLOW_CHECK, Store
from oncelery.testing.clock import FakeClock
from oncelery.testing.conformance.acts import (
    BOOM,
    JOB,
    KEY,
    OTHER,
    accepted,
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


SETTLEMENTS: list[Settlement] = [
    Complete(result=b"done"),
    Release(cause=Cause.RETRY, error=BOOM),
    Release(cause=Cause.HANDBACK),
    Release(cause=Cause.CRASH, delay=HOUR, body=b"page 2"),
    Bury(reason=Reason.FAILED, error=BOOM),
    Cancel(reason="heeded"),
]


class Entangled(Fixtures):
    """Sentences that each need two rules."""

    @pytest.mark.parametrize("settlement", SETTLEMENTS, ids=repr)
    def test_a_run_that_nobody_reserved_ends_as_one_that_was_reserved(
        self, store: Store, settlement: Settlement
    ) -> None:
        reserved = running(store, work("reserved", "key 1"))
        stranger = granted(store, work("stranger", "key 2")).lease

        answers = [store.settle(lease, settlement) for lease in (reserved, stranger)]

        assert answers[0] == answers[1]
        assert replace(seen(store, "reserved"), id="", key="") == replace(seen(store, "stranger"), id="", key="")

    @pytest.mark.parametrize("settlement", SETTLEMENTS, ids=repr)
    def test_a_second_run_ends_as_the_first_would_have(
        self, store: Store, clock: FakeClock, settlement: Settlement
    ) -> None:
        release(store, running(store, work("second", "key 1")), Cause.RETRY)
        clock.now += HOUR
        second = running(store, work("second", "key 1"))
        first = running(store, work("first", "key 2"))

        answers = [store.settle(lease, settlement) for lease in (first, second)]

        assert answers[0] == answers[1]
        ends = [seen(store, name) for name in ("first", "second")]
        assert len({(job.state, job.result, job.reason, job.body, job.settled_at, job.not_before) for job in ends}) == 1

    def test_a_job_buried_while_it_waited_can_be_revived_and_begin(self, store: Store, clock: FakeClock) -> None:
        lease = running(store, work(retention=HOUR))
        accepted(store, OTHER, on_duplicate=OnDuplicate.TRAIL)
        store.received(OTHER, limit=0)
        complete(store, lease)
        clock.now += HOUR

        store.revive(OTHER)

        assert seen(store, OTHER).behind == ""
        clock.now += SLOW_CHECK
        assert [job.id for job in store.due(limit=10)] == [OTHER]
        assert running(store, work(OTHER), holder="second").attempt == 1

    def test_a_revived_job_does_not_know_of_the_one_that_trailed_it_once(self, store: Store, clock: FakeClock) -> None:
        lease = running(store)
        accepted(store, OTHER, on_duplicate=OnDuplicate.TRAIL, retention=HOUR)
        store.settle(lease, Bury(reason=Reason.FAILED))
        complete(store, running(store, work(OTHER), holder="second"))
        clock.now += HOUR
        store.revive(JOB)
        lease = running(store, holder="third")

        third = accepted(store, "third", on_duplicate=OnDuplicate.TRAIL)

        assert third.behind == JOB
        assert complete(store, lease).next_id == "third"
        assert store.last(KEY) == seen(store, "third")

    def test_a_revived_job_that_was_trailed_once_can_be_replaced(self, store: Store, clock: FakeClock) -> None:
        lease = running(store)
        accepted(store, OTHER, on_duplicate=OnDuplicate.TRAIL, retention=HOUR)
        store.settle(lease, Bury(reason=Reason.FAILED))
        complete(store, running(store, work(OTHER), holder="second"))
        clock.now += HOUR
        store.revive(JOB)

        accepted(store, "third", on_duplicate=OnDuplicate.REPLACE)

        assert (seen(store).state, seen(store).reason) == (State.CANCELLED, "replaced")

    def test_a_fence_grows_over_a_revival_past_a_newer_job_of_the_key(self, store: Store, clock: FakeClock) -> None:
        buried(store)
        clock.now += HOUR
        newer = completed(store, work(OTHER, retention=timedelta(minutes=1)))
        clock.advance(seconds=60)
        store.revive(JOB)
        clock.now -= HOUR / 2

        assert running(store, holder="second").fence > newer.fence

    def test_an_id_used_again_under_another_key_leaves_its_old_key_free(self, store: Store, clock: FakeClock) -> None:
        completed(store, work(JOB, "old key"))
        clock.advance(days=7)
        accepted(store, JOB, "new key")

        assert store.last("old key") is None
        assert accepted(store, OTHER, "old key").state is State.QUEUED

    def test_a_publisher_whose_payload_was_taken_over_may_still_ask_again(self, store: Store) -> None:
        accepted(store, digest="d1")
        reserve(store, OTHER, on_duplicate=OnDuplicate.TRAIL, digest="d2")

        assert reserve(store, digest="d1") == Reserved(seen(store))

    def test_a_job_with_an_empty_body_ends_where_another_would_be_published(
        self, store: Store, clock: FakeClock
    ) -> None:
        release(store, running(store, work(body=b"")), Cause.HANDBACK)
        clock.now += SLOW_CHECK

        assert list(store.due(limit=10)) == [seen(store)]
        assert (seen(store).state, seen(store).reason) == (State.CANCELLED, "lapsed")
        assert [attempt.cause for attempt in seen(store).past] == [Cause.HANDBACK]

    def test_the_end_of_a_job_with_an_empty_body_lets_the_one_behind_it_begin(
        self, store: Store, clock: FakeClock
    ) -> None:
        lease = lapsed(store, clock, work(body=b""))
        accepted(store, OTHER, on_duplicate=OnDuplicate.TRAIL)

        store.due(limit=10)

        assert running(store, work(OTHER), holder="second").fence > lease.fence

    def test_a_release_while_another_waits_is_not_replaced_under_it(self, store: Store) -> None:
        release(store, running(store), Cause.RETRY)
        accepted(store, OTHER, on_duplicate=OnDuplicate.TRAIL)

        answer = reserve(store, "third", on_duplicate=OnDuplicate.REPLACE)

        assert answer == Existing(seen(store))
        assert seen(store, OTHER).behind == JOB

    def test_a_request_to_cancel_ends_with_the_run_it_was_for(self, store: Store) -> None:
        lease = running(store)
        store.cancel(JOB, reason="first")
        store.settle(lease, Bury(reason=Reason.FAILED))
        store.revive(JOB)

        lease = running(store, holder="second")
        store.cancel(JOB, reason="second")
        release(store, lease, Cause.RETRY)

        assert (seen(store).state, seen(store).reason) == (State.CANCELLED, "second")

    def test_a_revived_job_that_has_begun_once_is_trailed_and_not_amended(self, store: Store) -> None:
        buried(store)
        store.revive(JOB)

        assert accepted(store, OTHER, on_duplicate=OnDuplicate.TRAIL).behind == JOB

    def test_a_revival_gives_way_to_the_job_that_trailed_it(self, store: Store) -> None:
        lease = running(store)
        accepted(store, OTHER, on_duplicate=OnDuplicate.TRAIL)
        store.settle(lease, Bury(reason=Reason.FAILED))

        assert store.revive(JOB) == Existing(seen(store, OTHER))
