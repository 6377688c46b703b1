"""What is due because its message is lost: queued jobs, each in its time."""

from __future__ import annotations

from datetime import timedelta

from oncelery.job import Cause, OnDuplicate
from oncelery.stores.base import PUBLISH_GRACE, SLOW_CHECK, Store
from oncelery.testing.clock import FakeClock
from oncelery.testing.conformance.acts import (
    INSTANT,
    JOB,
    OTHER,
    accepted,
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

EMPTY = frozenset({"celery"})


def swept(
    store: Store, *, limit: int = 100, empty: frozenset[str] = frozenset(), formats: frozenset[str] | None = None
) -> list[str]:
    """Give the ids of the jobs that are due now."""
    return [job.id for job in store.due(limit=limit, empty_queues=empty, formats=formats) if job.state.live]


class LostMessages(Fixtures):
    """A queued job is published again by a sign that its message is missing, and not for its age."""

    def test_a_backlog_is_not_published_again(self, store: Store, clock: FakeClock) -> None:
        for number in range(100):
            accepted(store, f"job {number}", f"key {number}")
        clock.now += SLOW_CHECK - INSTANT

        assert swept(store) == []

    def test_by_an_empty_queue_a_job_is_due_when_its_grace_is_over(self, store: Store, clock: FakeClock) -> None:
        accepted(store)

        clock.now += PUBLISH_GRACE - INSTANT
        assert swept(store, empty=EMPTY) == []
        clock.now += INSTANT
        assert swept(store, empty=EMPTY) == [JOB]

    def test_an_empty_queue_says_nothing_of_another(self, store: Store, clock: FakeClock) -> None:
        accepted(store, queue="slow")
        clock.now += PUBLISH_GRACE

        assert swept(store, empty=EMPTY) == []
        assert swept(store, empty=EMPTY | {"slow"}) == [JOB]

    def test_a_job_that_a_sweeper_cannot_read_is_left_to_one_that_can_and_at_once(
        self, store: Store, clock: FakeClock
    ) -> None:
        accepted(store, "plain", "key 1")
        accepted(store, "packed", "key 2", body=b"\0x/packed\nutf-8\n...")
        accepted(store, "pickled", "key 3", body=b"\0x/pickled\nutf-8\n...")
        clock.now += PUBLISH_GRACE

        assert swept(store, empty=EMPTY, formats=frozenset()) == []
        assert swept(store, empty=EMPTY, formats=frozenset({"", "x/pick"})) == ["plain"]
        assert swept(store, empty=EMPTY, formats=frozenset({"x/packed"})) == ["packed"]
        assert swept(store, empty=EMPTY) == ["pickled"]

    def test_a_lapsed_run_that_a_sweeper_cannot_read_is_left_to_one_that_can(
        self, store: Store, clock: FakeClock
    ) -> None:
        running(store, work(body=b"\0x/packed\nutf-8\n..."))
        clock.now += SLOW_CHECK

        assert swept(store, formats=frozenset({""})) == []
        assert swept(store, formats=frozenset({"x/packed"})) == [JOB]

    def test_jobs_that_a_sweeper_cannot_read_do_not_keep_it_from_others(self, store: Store, clock: FakeClock) -> None:
        for number in range(5):
            accepted(store, f"packed {number}", f"key {number}", body=b"\0x/packed\nutf-8\n...")
        clock.now += PUBLISH_GRACE
        # Published before, and due for the second time.
        assert len(swept(store, empty=EMPTY)) == 5
        accepted(store, "plain", "another key")
        clock.now += PUBLISH_GRACE
        assert swept(store, empty=EMPTY, formats=frozenset({""})) == ["plain"]
        clock.now += SLOW_CHECK

        looks = [job for _ in range(4) for job in swept(store, limit=2, formats=frozenset({""}))]

        assert looks == ["plain"]
        assert len(swept(store, formats=frozenset({"x/packed"}))) == 5

    def test_by_the_watermark_a_job_is_due_when_one_that_was_sent_later_has_begun(
        self, store: Store, clock: FakeClock
    ) -> None:
        accepted(store, "lost", "key 1")
        clock.now += INSTANT
        accepted(store, "overtook", "key 2")
        clock.now += INSTANT
        accepted(store, "behind the mark", "key 3")
        running(store, work("overtook", "key 2"))

        clock.now += PUBLISH_GRACE

        assert swept(store) == ["lost"]

    def test_by_the_watermark_no_job_is_due_within_its_grace(self, store: Store, clock: FakeClock) -> None:
        accepted(store, "lost", "key 1")
        clock.now += PUBLISH_GRACE - INSTANT
        accepted(store, "overtook", "key 2")
        running(store, work("overtook", "key 2"))

        assert swept(store) == []
        clock.now += INSTANT
        assert swept(store) == ["lost"]

    def test_the_watermark_of_a_queue_says_nothing_of_another(self, store: Store, clock: FakeClock) -> None:
        accepted(store, queue="slow")
        clock.now += INSTANT
        completed(store, work(OTHER, "another key"))
        clock.now += PUBLISH_GRACE

        assert swept(store) == []

    def test_only_the_first_grant_of_a_job_moves_the_watermark(self, store: Store, clock: FakeClock) -> None:
        lease = running(store, work("old hand", "key 1"))
        clock.now += INSTANT
        accepted(store, "newcomer", "key 2")
        clock.now += INSTANT
        release(store, lease, Cause.RETRY)
        running(store, work("old hand", "key 1"), holder="second")

        clock.now += PUBLISH_GRACE

        assert "newcomer" not in swept(store)

    def test_a_delayed_job_that_begins_in_time_has_not_overtaken_the_backlog(
        self, store: Store, clock: FakeClock
    ) -> None:
        accepted(store, "delayed", "key 1", delay=timedelta(minutes=1))
        clock.now += INSTANT
        accepted(store, "in the backlog", "key 2")
        clock.advance(seconds=60)

        # A worker has held its message all the while, and begins when its time has come.
        running(store, work("delayed", "key 1"))

        assert swept(store) == []

    def test_a_job_that_nobody_reserved_has_not_overtaken_the_backlog(self, store: Store, clock: FakeClock) -> None:
        accepted(store, "in the backlog", "key 1")
        clock.advance(seconds=60)

        # Nobody knows when it was sent: perhaps before the others.
        granted(store, work("a stranger", "key 2"))

        assert swept(store) == []

    def test_without_a_sign_a_job_is_due_at_the_slow_check(self, store: Store, clock: FakeClock) -> None:
        accepted(store)

        clock.now += SLOW_CHECK - INSTANT
        assert swept(store) == []
        clock.now += INSTANT
        assert swept(store) == [JOB]

    def test_a_delayed_job_counts_as_sent_when_its_time_has_come(self, store: Store, clock: FakeClock) -> None:
        accepted(store, delay=SLOW_CHECK * 2)

        clock.now += SLOW_CHECK * 2 + PUBLISH_GRACE - INSTANT
        assert swept(store, empty=EMPTY) == []
        clock.now += INSTANT
        assert swept(store, empty=EMPTY) == [JOB]

    def test_a_released_job_counts_as_sent_when_its_delay_is_over(self, store: Store, clock: FakeClock) -> None:
        release(store, running(store), Cause.RETRY, delay=SLOW_CHECK * 2)

        clock.now += SLOW_CHECK * 2 + PUBLISH_GRACE - INSTANT
        assert swept(store, empty=EMPTY) == []
        clock.now += INSTANT
        assert swept(store, empty=EMPTY) == [JOB]

    def test_a_revived_job_counts_as_sent_when_it_was_revived(self, store: Store, clock: FakeClock) -> None:
        buried(store)
        clock.advance(hours=5)
        store.revive(JOB)

        clock.now += PUBLISH_GRACE - INSTANT
        assert swept(store, empty=EMPTY) == []
        clock.now += INSTANT
        assert swept(store, empty=EMPTY) == [JOB]

    def test_a_job_published_again_and_again_waits_longer_each_time(self, store: Store, clock: FakeClock) -> None:
        accepted(store)
        clock.now += PUBLISH_GRACE
        assert swept(store, empty=EMPTY) == [JOB]

        for times in range(1, 11):
            clock.now += min(PUBLISH_GRACE * 2**times, SLOW_CHECK) - INSTANT
            assert swept(store, empty=EMPTY) == []
            clock.now += INSTANT
            assert swept(store) == [JOB], times

    def test_a_job_that_is_lost_for_days_is_published_again_every_hour(self, store: Store, clock: FakeClock) -> None:
        accepted(store)

        for times in range(60):
            clock.now += SLOW_CHECK
            assert swept(store, empty=EMPTY) == [JOB], times

    def test_a_job_that_is_merely_old_is_published_again_every_hour_and_no_sooner(
        self, store: Store, clock: FakeClock
    ) -> None:
        accepted(store, "delayed", "key 1", delay=INSTANT)
        clock.now += INSTANT
        accepted(store, "at once", "key 2")

        for times in range(5):
            clock.now += SLOW_CHECK - INSTANT
            assert swept(store) == [], times
            clock.now += INSTANT
            assert sorted(swept(store)) == ["at once", "delayed"], times

    def test_a_job_published_for_its_age_is_due_by_an_empty_queue_as_before(
        self, store: Store, clock: FakeClock
    ) -> None:
        accepted(store)
        clock.now += SLOW_CHECK
        assert swept(store) == [JOB]

        clock.now += INSTANT

        assert swept(store, empty=EMPTY) == [JOB]
        clock.now += PUBLISH_GRACE * 2
        assert swept(store) == [JOB]

    def test_a_job_published_for_its_age_is_due_by_the_watermark_as_before(
        self, store: Store, clock: FakeClock
    ) -> None:
        accepted(store, "lost", "key 1")
        clock.now += INSTANT
        accepted(store, "overtook", "key 2")
        clock.now += SLOW_CHECK
        assert swept(store) == ["lost", "overtook"]

        running(store, work("overtook", "key 2"))

        assert swept(store) == ["lost"]

    def test_an_old_job_with_a_sign_is_due_again_soon(self, store: Store, clock: FakeClock) -> None:
        accepted(store)
        clock.now += SLOW_CHECK
        assert swept(store, empty=EMPTY) == [JOB]

        clock.now += PUBLISH_GRACE * 2 - INSTANT
        assert swept(store) == []
        clock.now += INSTANT
        assert swept(store) == [JOB]

    def test_a_grant_ends_the_waiting_between_publications(self, store: Store, clock: FakeClock) -> None:
        accepted(store)
        for wait in (1, 2, 4, 8):
            clock.now += PUBLISH_GRACE * wait
            assert swept(store, empty=EMPTY) == [JOB]
        release(store, running(store), Cause.RETRY)

        clock.now += PUBLISH_GRACE

        assert swept(store, empty=EMPTY) == [JOB]

    def test_the_reply_of_due_may_be_lost(self, store: Store, clock: FakeClock) -> None:
        accepted(store)
        clock.now += PUBLISH_GRACE
        store.due(limit=10, empty_queues=EMPTY)
        assert swept(store, empty=EMPTY) == []

        clock.now += PUBLISH_GRACE * 2

        assert swept(store) == [JOB]

    def test_what_is_over_the_limit_is_due_at_the_next_call(self, store: Store, clock: FakeClock) -> None:
        for number in range(5):
            accepted(store, f"job {number}", f"key {number}")
            clock.now += INSTANT
        clock.now += SLOW_CHECK

        first, second, third = swept(store, limit=2), swept(store, limit=2), swept(store, limit=2)

        assert (len(first), len(second), len(third)) == (2, 2, 1)
        assert sorted(first + second + third) == [f"job {number}" for number in range(5)]

    def test_the_limit_holds_for_signs_as_well(self, store: Store, clock: FakeClock) -> None:
        for number in range(5):
            accepted(store, f"job {number}", f"key {number}")
        clock.now += PUBLISH_GRACE

        first, second = swept(store, limit=3, empty=EMPTY), swept(store, limit=3, empty=EMPTY)

        assert (len(first), sorted(first + second)) == (3, [f"job {number}" for number in range(5)])

    def test_a_due_job_carries_its_newest_body(self, store: Store, clock: FakeClock) -> None:
        accepted(store, body=b"old")
        reserve(store, OTHER, on_duplicate=OnDuplicate.TRAIL, body=b"new")
        clock.now += PUBLISH_GRACE

        jobs = store.due(limit=10, empty_queues=EMPTY)

        assert list(jobs) == [seen(store)]
        assert jobs[0].body == b"new"

    def test_to_be_due_is_no_transition(self, store: Store, clock: FakeClock) -> None:
        job = accepted(store)
        clock.now += PUBLISH_GRACE

        assert list(store.due(limit=10, empty_queues=EMPTY)) == [job] == [seen(store)]

    def test_a_job_that_waits_behind_another_is_not_due(self, store: Store, clock: FakeClock) -> None:
        lease = running(store)
        accepted(store, OTHER, on_duplicate=OnDuplicate.TRAIL)
        clock.now += SLOW_CHECK * 3
        store.renew([lease])

        assert swept(store, empty=EMPTY) == []

    def test_a_job_that_waited_is_due_without_a_sign_soon_after_its_front_has_ended(
        self, store: Store, clock: FakeClock
    ) -> None:
        lease = running(store)
        accepted(store, OTHER, on_duplicate=OnDuplicate.TRAIL)
        complete(store, lease)

        clock.now += PUBLISH_GRACE - INSTANT
        assert swept(store) == []
        clock.now += INSTANT
        assert swept(store) == [OTHER]
        clock.now += PUBLISH_GRACE * 2
        assert swept(store) == [OTHER]

    def test_ended_jobs_are_never_due(self, store: Store, clock: FakeClock) -> None:
        completed(store, work("a", "key 1"))
        buried(store, work("b", "key 2"))
        accepted(store, "c", "key 3")
        store.cancel("c", reason="not wanted")
        clock.advance(days=2)

        assert swept(store, empty=EMPTY) == []
