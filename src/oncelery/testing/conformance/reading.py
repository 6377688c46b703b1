"""What can be read: jobs by page, and the tally; and what pruning takes away."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from oncelery.codec import encode
from oncelery.job import (
    Cause,
    Failure,
    JobSummary,
    Lease,
    OnDuplicate,
    Page,
    Progress,
    Query,
    Reason,
    State,
)
from oncelery.settlement import Bury, Cancel, Complete, Release
from oncelery.stores.base import PUBLISH_GRACE, SLOW_CHECK, Store
from oncelery.testing.clock import FakeClock
from oncelery.testing.conformance.acts import (
    INSTANT,
    JOB,
    KEY,
    LEASE,
    OTHER,
    accepted,
    buried,
    complete,
    completed,
    lapsed,
    release,
    running,
    seen,
    work,
)
from oncelery.testing.conformance.fixtures import Fixtures, Opener

HOUR = timedelta(hours=1)

#: More than a list may read.
LARGE = b"x" * 200_000

LONG_ERROR = Failure(type="ValueError", message="boom\\" + "\x1b" * 5_000 + "\nmore", traceback="line\n" * 10_000)

#: What becomes of a job that has much to tell.
ENDINGS: dict[str, Callable[[Store, Lease], object]] = {
    "runs on": lambda store, lease: store.record(lease),
    "queued again": lambda store, lease: store.settle(lease, Release(cause=Cause.RETRY, error=LONG_ERROR)),
    "completed": lambda store, lease: store.settle(lease, Complete(result=LARGE)),
    "buried": lambda store, lease: store.settle(lease, Bury(reason=Reason.FAILED, error=LONG_ERROR)),
    "cancelled": lambda store, lease: store.settle(lease, Cancel(reason="r" * 10_000)),
}


def found(store: Store, **asked: object) -> list[str]:
    """Give the ids of the jobs that a query finds, in order."""
    return [job.id for job in store.find(Query(**asked)).items]  # type: ignore[arg-type]


def read_all(read: Callable[[str], Page[JobSummary]]) -> list[Page[JobSummary]]:
    """Read page after page to the end."""
    pages = [read("")]
    while pages[-1].cursor:
        pages.append(read(pages[-1].cursor))
    return pages


class Finding(Fixtures):
    """Jobs by page, newest change first."""

    def test_an_empty_ledger_has_nothing_to_show(self, store: Store) -> None:
        assert (store.get(JOB), store.last(KEY)) == (None, None)
        assert store.find(Query()) == Page(items=(), cursor="")

    def test_jobs_are_found_newest_change_first(self, store: Store, clock: FakeClock) -> None:
        accepted(store, "a", "key 1")
        clock.now += INSTANT
        lease = running(store, work("b", "key 2"))
        store.record(lease, step=("paid", b"yes"))
        clock.now += INSTANT
        completed(store, work("c", "key 3"), result=b"result")
        clock.now += INSTANT
        running(store, work("a", "key 1"))

        page = store.find(Query())

        assert page == Page(items=tuple(seen(store, name).summary() for name in "acb"), cursor="")

    @pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
    def test_a_list_has_of_a_job_what_is_small(self, store: Store, ending: Callable[[Store, Lease], object]) -> None:
        lease = running(store, work(body=LARGE, scope="acme"))
        store.record(lease, step=("paid", LARGE), progress=Progress(done=1, stage="fetch", message='é"' * 9_000))
        release(store, lease, Cause.RETRY, error=LONG_ERROR)
        ending(store, running(store, holder="second"))

        job = seen(store)
        (item,) = store.find(Query()).items
        (of_scope,) = store.find(Query(scope="acme")).items

        assert item == of_scope == job.summary()
        assert len(encode(item)) < 10_000
        assert dict(job.steps) == {"paid": LARGE}
        assert job.past[0].error == LONG_ERROR
        assert (job.body or job.result or LARGE) == LARGE
        if item.error:
            assert item.error == Failure(type="ValueError", message="boom\\" + "\x1b" * 495)

    def test_jobs_are_found_by_state(self, store: Store, clock: FakeClock) -> None:
        accepted(store, "queued", "key 1")
        lapsed(store, clock, work("running", "key 2"))
        completed(store, work("completed", "key 3"))
        buried(store, work("buried", "key 4"))
        accepted(store, "cancelled", "key 5")
        store.cancel("cancelled", reason="not wanted")

        for state in State:
            assert found(store, states=frozenset({state})) == [state.value]
        assert set(found(store, states=frozenset({State.QUEUED, State.BURIED}))) == {"queued", "buried"}
        assert len(found(store)) == len(State)

    def test_jobs_are_found_by_task_and_scope(self, store: Store, clock: FakeClock) -> None:
        for number, (task, scope) in enumerate([("t1", "s1"), ("t1", "s2"), ("t2", "s1"), ("t1", "")]):
            accepted(store, f"{task}/{scope}", f"key {number}", task=task, scope=scope)
            clock.now += INSTANT

        assert found(store, task="t1") == ["t1/", "t1/s2", "t1/s1"]
        assert found(store, scope="s1") == ["t2/s1", "t1/s1"]
        assert found(store, task="t1", scope="s1", states=frozenset({State.QUEUED})) == ["t1/s1"]
        assert found(store, task="t1", scope="s1", states=frozenset({State.RUNNING})) == []
        assert found(store, task="unheard of") == []

    def test_dead_letters_of_a_scope_are_found_for_as_long_as_they_are_some(
        self, store: Store, clock: FakeClock
    ) -> None:
        def letters(scope: str) -> list[str]:
            return found(store, scope=scope, states=frozenset({State.BURIED}))

        for number, scope in enumerate(["s1", "s1", "s1", "s2"]):
            buried(store, work(f"{scope}/{number}", f"key {number}", scope=scope))
            clock.now += INSTANT
        accepted(store, "queued", "key 5", scope="s1")

        assert letters("s1") == ["s1/2", "s1/1", "s1/0"]
        store.revive("s1/0")
        store.discard("s1/1")
        assert letters("s1") == ["s1/2"]
        assert letters("s2") == ["s2/3"]

    def test_jobs_are_found_from_a_moment_on_and_before_another(self, store: Store, clock: FakeClock) -> None:
        start = clock.now
        for number in range(4):
            accepted(store, str(number), f"key {number}")
            clock.now += INSTANT

        assert found(store, since=start + INSTANT, until=start + INSTANT * 3) == ["2", "1"]
        assert found(store, since=start + INSTANT * 2) == ["3", "2"]
        assert found(store, until=start + INSTANT) == ["0"]

    @pytest.mark.parametrize("limit", [1, 2, 3, 7, 50])
    @pytest.mark.parametrize("apart", [timedelta(0), INSTANT], ids=["at one instant", "one by one"])
    def test_over_the_pages_every_job_comes_exactly_once(
        self, store: Store, clock: FakeClock, limit: int, apart: timedelta
    ) -> None:
        for number in range(7):
            accepted(store, f"job {number}", f"key {number}")
            clock.now += apart

        pages = read_all(lambda cursor: store.find(Query(cursor=cursor, limit=limit)))

        ids = [job.id for page in pages for job in page.items]
        assert sorted(ids) == [f"job {number}" for number in range(7)]
        assert apart == timedelta(0) or ids == sorted(ids, reverse=True)
        assert all(len(page.items) == limit for page in pages[:-1])
        assert len(pages) == -(-7 // limit)

    def test_pages_of_a_filtered_search_are_complete_too(self, store: Store, clock: FakeClock) -> None:
        for number in range(12):
            accepted(store, f"job {number:02}", f"key {number}", task=f"task {number % 3}")
            clock.now += INSTANT

        pages = read_all(lambda cursor: store.find(Query(task="task 1", cursor=cursor, limit=3)))

        assert [[job.id for job in page.items] for page in pages] == [["job 10", "job 07", "job 04"], ["job 01"]]

    def test_a_waiting_job_is_found_but_is_not_the_last_of_its_key(self, store: Store) -> None:
        running(store)
        accepted(store, OTHER, on_duplicate=OnDuplicate.TRAIL)

        assert store.last(KEY) == seen(store)
        assert sorted(found(store)) == [JOB, OTHER]

    def test_the_last_job_of_a_key_is_the_newest(self, store: Store) -> None:
        buried(store)
        newer = accepted(store, OTHER)

        assert store.last(KEY) == newer


class Tallying(Fixtures):
    """The ledger as a whole."""

    def test_an_empty_ledger_tallies_to_nothing(self, store: Store) -> None:
        tally = store.tally()

        assert dict(tally.states) == dict.fromkeys(State, 0)
        assert (tally.lapsed, tally.overdue, dict(tally.decisions)) == (0, timedelta(0), {})

    def test_jobs_are_tallied_by_state(self, store: Store, clock: FakeClock) -> None:
        lapsed(store, clock, work("lapsed", "key 0"))
        accepted(store, "queued", "key 1")
        accepted(store, "queued too", "key 2")
        running(store, work("running", "key 3"))
        completed(store, work("completed", "key 4"))
        buried(store, work("buried", "key 5"))
        accepted(store, "cancelled", "key 6")
        store.cancel("cancelled", reason="not wanted")

        tally = store.tally()

        assert dict(tally.states) == {
            State.QUEUED: 2,
            State.RUNNING: 2,
            State.COMPLETED: 1,
            State.BURIED: 1,
            State.CANCELLED: 1,
        }
        assert tally.lapsed == 1

    def test_a_tally_follows_a_job_through_its_life(self, store: Store) -> None:
        def states() -> list[State]:
            return [state for state, count in store.tally().states.items() for _ in range(count)]

        accepted(store)
        assert states() == [State.QUEUED]
        release(store, running(store), Cause.RETRY)
        assert states() == [State.QUEUED]
        lease = running(store, holder="second")
        assert states() == [State.RUNNING]
        complete(store, lease)
        complete(store, lease)
        assert states() == [State.COMPLETED]

    def test_the_most_overdue_check_is_told(self, store: Store, clock: FakeClock) -> None:
        accepted(store)
        running(store, work(OTHER, "another key"), lease=LEASE)

        clock.now += LEASE
        assert store.tally().overdue == timedelta(0)
        clock.advance(seconds=5)
        assert store.tally().overdue == timedelta(seconds=5)
        store.due(limit=10)
        assert store.tally().overdue == timedelta(0)
        clock.now += SLOW_CHECK
        assert store.tally().overdue == SLOW_CHECK - PUBLISH_GRACE * 2

    def test_decisions_add_up(self, store: Store) -> None:
        store.count({("t1", "run"): 2, ("t1", "replay"): 1})
        store.count({("t1", "run"): 3, ("t2", "run"): 1})
        store.count({})

        assert dict(store.tally().decisions) == {("t1", "run"): 5, ("t1", "replay"): 1, ("t2", "run"): 1}


class Pruning(Fixtures):
    """Deleting what is past its history, and nothing else."""

    def test_pruning_takes_finished_jobs_past_their_history(self, store: Store, clock: FakeClock) -> None:
        completed(store, work("old", "key 1", retention=HOUR, history=HOUR))
        accepted(store, "dropped", "key 2", retention=HOUR, history=HOUR)
        store.cancel("dropped", reason="not wanted")
        completed(store, work("kept", "key 3", retention=HOUR, history=HOUR * 2))
        clock.now += HOUR

        assert store.prune(limit=10) == 2
        assert store.prune(limit=10) == 0
        assert found(store) == ["kept"]
        assert store.tally().states[State.COMPLETED] == 1

    def test_pruning_stops_at_its_limit(self, store: Store, clock: FakeClock) -> None:
        for number in range(5):
            completed(store, work(f"job {number}", f"key {number}", retention=HOUR, history=HOUR))
        clock.now += HOUR

        assert [store.prune(limit=2) for _ in range(4)] == [2, 2, 1, 0]

    def test_pruning_never_takes_live_buried_or_readable_jobs(self, store: Store, clock: FakeClock) -> None:
        accepted(store, "queued", "key 1", retention=HOUR, history=HOUR)
        running(store, work("running", "key 2", retention=HOUR, history=HOUR))
        buried(store, work("buried", "key 3", retention=HOUR, history=HOUR))
        clock.advance(days=30)
        completed(store, work("completed", "key 4", retention=HOUR, history=HOUR))
        clock.now += HOUR - INSTANT

        assert store.prune(limit=10) == 0
        assert sorted(found(store)) == ["buried", "completed", "queued", "running"]

    def test_pruning_an_old_job_leaves_the_newer_one_of_its_key(self, store: Store, clock: FakeClock) -> None:
        completed(store, work(retention=HOUR, history=HOUR))
        clock.now += HOUR
        newer = accepted(store, OTHER)

        assert store.prune(limit=10) == 1
        assert store.last(KEY) == newer

    def test_a_revived_job_is_not_pruned(self, store: Store, clock: FakeClock) -> None:
        buried(store, work(retention=HOUR, history=HOUR))
        clock.advance(days=30)
        store.revive(JOB)
        clock.advance(days=30)

        assert store.prune(limit=10) == 0
        assert seen(store).state is State.QUEUED


class Opening(Fixtures):
    """The store's own clock, and opening it again."""

    def test_without_a_clock_the_store_goes_by_its_servers(self, opener: Opener) -> None:
        store = opener()
        before = datetime.now(UTC)

        job = accepted(store)
        lease = running(store, lease=LEASE)

        # Generous: a server's clock may differ, but not by hours.
        assert abs(job.created_at - before) < timedelta(hours=1)
        assert job.created_at.tzinfo is not None
        assert lease.until - LEASE >= job.created_at
        store.close()

    def test_on_its_own_clock_a_lease_lapses_as_well(self, opener: Opener) -> None:
        store = opener()
        lease = running(store, lease=INSTANT)

        grant = running(store, holder="second", lease=LEASE)

        assert grant.fence > lease.fence
        assert seen(store).crashes == 1
        store.close()

    def test_a_closed_store_may_be_used_again(self, store: Store) -> None:
        job = accepted(store)

        store.close()

        assert seen(store) == job

    def test_what_one_opens_another_sees_if_the_store_is_shared(
        self, opener: Opener, store: Store, clock: FakeClock
    ) -> None:
        other = opener(clock=clock)
        job = accepted(store)

        assert other.get(JOB) == (job if store.shared else None)
        other.close()
