"""The audit of duplicates: who was answered what, one by one and by the hour."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from oncelery.job import (
    Answer,
    Duplicate,
    DuplicateCount,
    OnDuplicate,
)
from oncelery.stores.base import HOURS_KEPT, Store
from oncelery.testing.clock import FakeClock
from oncelery.testing.conformance.acts import (
    INSTANT,
    OTHER,
    accepted,
    begin,
    buried,
    completed,
    reserve,
    running,
    work,
)
from oncelery.testing.conformance.fixtures import Fixtures

HOUR = timedelta(hours=1)


class Auditing(Fixtures):
    """Who was answered what."""

    def test_every_answer_to_a_duplicate_is_noted(self, store: Store, clock: FakeClock) -> None:
        accepted(store, "live", "key 1", digest="d1", scope="acme")
        completed(store, work("ended", "key 2"))
        buried(store, work("dead", "key 3"))
        duplicates: list[Callable[[], object]] = [
            lambda: reserve(store, "1", "key 1", caller="web"),
            lambda: reserve(store, "2", "key 1", on_duplicate=OnDuplicate.REJECT),
            lambda: reserve(store, "3", "key 1", digest="d2"),
            lambda: reserve(store, "4", "key 1", on_duplicate=OnDuplicate.TRAIL),
            lambda: begin(store, work("5", "key 1", caller="worker")),
            lambda: reserve(store, "6", "key 2"),
            lambda: begin(store, work("ended", "key 2"), holder="second"),
            lambda: begin(store, work("dead", "key 3"), holder="second"),
        ]
        for say in duplicates:
            clock.now += INSTANT
            say()

        noted = store.duplicates().items

        assert [(duplicate.job_id, duplicate.answer) for duplicate in reversed(noted)] == [
            ("live", Answer.JOINED),
            ("live", Answer.REJECTED),
            ("live", Answer.REFUSED),
            ("live", Answer.AMENDED),
            ("live", Answer.BUSY),
            ("ended", Answer.REPLAYED),
            ("ended", Answer.REPLAYED),
            ("dead", Answer.BURIED),
        ]
        first = clock.now - INSTANT * 7
        assert noted[-1] == Duplicate(
            at=first, job_id="live", task="shop.charge", scope="acme", caller="web", answer=Answer.JOINED
        )
        assert noted[3].caller == "worker"

    def test_a_running_job_answers_busy_to_a_second_delivery_of_its_own_message(self, store: Store) -> None:
        running(store)
        begin(store, holder="second")

        assert [duplicate.answer for duplicate in store.duplicates().items] == [Answer.BUSY]

    def test_a_replacement_that_joins_a_running_job_is_noted_as_joined(self, store: Store) -> None:
        running(store)
        reserve(store, OTHER, on_duplicate=OnDuplicate.REPLACE)

        assert [duplicate.answer for duplicate in store.duplicates().items] == [Answer.JOINED]

    @pytest.mark.parametrize("limit", [1, 2, 7, 50])
    @pytest.mark.parametrize("apart", [timedelta(0), INSTANT], ids=["at one instant", "one by one"])
    def test_over_the_pages_every_duplicate_comes_exactly_once(
        self, store: Store, clock: FakeClock, limit: int, apart: timedelta
    ) -> None:
        accepted(store)
        for number in range(7):
            reserve(store, f"other {number}", caller=str(number))
            clock.now += apart

        pages = [store.duplicates(limit=limit)]
        while pages[-1].cursor:
            pages.append(store.duplicates(cursor=pages[-1].cursor, limit=limit))

        callers = [duplicate.caller for page in pages for duplicate in page.items]
        assert sorted(callers) == [str(number) for number in range(7)]
        assert apart == timedelta(0) or callers == sorted(callers, reverse=True)

    def test_duplicates_are_found_by_task_and_scope(self, store: Store) -> None:
        for number, (task, scope) in enumerate([("t1", "s1"), ("t1", "s2"), ("t2", "s1")]):
            accepted(store, f"job {number}", f"key {number}", task=task, scope=scope)
            reserve(store, f"other {number}", f"key {number}", task=task, scope=scope)

        assert {duplicate.job_id for duplicate in store.duplicates(task="t1").items} == {"job 0", "job 1"}
        assert {duplicate.job_id for duplicate in store.duplicates(scope="s1").items} == {"job 0", "job 2"}
        assert {duplicate.job_id for duplicate in store.duplicates(task="t1", scope="s1").items} == {"job 0"}

    def test_duplicates_are_counted_by_task_and_scope(self, store: Store, clock: FakeClock) -> None:
        for number, (task, scope) in enumerate([("t1", "s1"), ("t1", "s2"), ("t2", "s1"), ("t1", "")]):
            accepted(store, f"job {number}", f"key {number}", task=task, scope=scope)
            reserve(store, f"other {number}", f"key {number}", task=task, scope=scope)

        def counted(**asked: str) -> set[tuple[str, str, int]]:
            counts = store.duplicate_counts(since=clock.now, **asked)
            return {(count.task, count.scope, count.count) for count in counts}

        assert counted(task="t1") == {("t1", "s1", 1), ("t1", "s2", 1), ("t1", "", 1)}
        assert counted(scope="s1") == {("t1", "s1", 1), ("t2", "s1", 1)}
        assert counted(task="t1", scope="s1") == {("t1", "s1", 1)}
        assert counted(task="t") == counted(scope="s") == set()
        assert len(counted()) == 4

    def test_counts_are_kept_for_so_long_and_no_longer(self, store: Store, clock: FakeClock) -> None:
        start = clock.now
        accepted(store, scope="acme")
        reserve(store, OTHER)
        clock.now += HOURS_KEPT
        store.prune(limit=100)
        assert [count.count for count in store.duplicate_counts(since=start, scope="acme")] == [1]

        clock.now += HOUR
        store.prune(limit=100)

        assert not store.duplicate_counts(since=start)
        assert not store.duplicate_counts(since=start, scope="acme")

    def test_duplicates_are_counted_by_the_hour(self, store: Store, clock: FakeClock) -> None:
        noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
        clock.now = noon
        accepted(store, scope="acme")
        reserve(store, OTHER)
        clock.now = noon + HOUR - INSTANT
        reserve(store, OTHER)
        begin(store, work(OTHER))
        clock.now = noon + HOUR
        reserve(store, OTHER)

        def count(hour: datetime, answer: Answer, count: int) -> DuplicateCount:
            return DuplicateCount(hour=hour, task="shop.charge", scope="acme", answer=answer, count=count)

        counts = store.duplicate_counts(since=noon + HOUR / 2)
        assert [found.hour for found in counts] == sorted(found.hour for found in counts)
        assert set(counts) == {
            count(noon, Answer.JOINED, 2),
            count(noon, Answer.BUSY, 1),
            count(noon + HOUR, Answer.JOINED, 1),
        }
        assert len(counts) == 3
        assert list(store.duplicate_counts(since=noon + HOUR)) == [count(noon + HOUR, Answer.JOINED, 1)]
        assert list(store.duplicate_counts(since=noon + HOUR * 2)) == []
