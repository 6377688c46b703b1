"""What a tenant may have: so many jobs at a time, so many in a minute; counted in the very step that accepts one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from oncelery.answers import Existing, Full, Reserved
from oncelery.job import Cause, OnDuplicate, Quota, State
from oncelery.stores.base import Store
from oncelery.testing.clock import FakeClock
from oncelery.testing.conformance.acts import accepted, buried, completed, release, reserve, running, work
from oncelery.testing.conformance.fixtures import Fixtures

TWO = Quota(max_active=2)
SIX_A_MINUTE = Quota(per_minute=6)


def submit(store: Store, name: str, *, quota: Quota | None = TWO, scope: str = "acme") -> object:
    """Submit one more job of a tenant."""
    return reserve(store, name, name, scope=scope, quota=quota)


class Quotas(Fixtures):
    """Limits of a scope."""

    def test_a_scope_has_no_more_live_jobs_than_it_may(self, store: Store) -> None:
        answers = [submit(store, name) for name in "abc"]

        assert [type(answer) for answer in answers] == [Reserved, Reserved, Full]
        assert store.get("c") is None

    def test_other_scopes_and_those_without_a_quota_are_not_counted_against_it(self, store: Store) -> None:
        for name in "abc":
            accepted(store, f"other-{name}", f"other-{name}", scope="other", quota=TWO if name < "c" else None)
            accepted(store, f"none-{name}", f"none-{name}", quota=TWO)

        assert isinstance(submit(store, "a"), Reserved)

    @pytest.mark.parametrize("how", ["complete", "bury", "cancel", "discard"])
    def test_a_job_that_has_ended_makes_room(self, store: Store, how: str) -> None:
        for name in "ab":
            submit(store, name)
        if how == "cancel":
            store.cancel("a", reason="no more")
        else:
            offer = work("a", "a", scope="acme")
            (completed if how == "complete" else buried)(store, offer)
        if how == "discard":
            store.discard("a")

        assert isinstance(submit(store, "c"), Reserved)
        assert isinstance(submit(store, "d"), Full)

    def test_a_job_that_runs_is_retried_or_revived_takes_its_room(self, store: Store) -> None:
        for name in "ab":
            submit(store, name)
        lease = running(store, work("a", "a", scope="acme"))
        assert isinstance(submit(store, "c"), Full)
        release(store, lease, Cause.RETRY)
        assert isinstance(submit(store, "c"), Full)
        buried(store, work("a", "a", scope="acme"))
        store.revive("a")

        assert isinstance(submit(store, "c"), Full)

    def test_a_duplicate_is_answered_though_there_is_no_room(self, store: Store) -> None:
        for name in "ab":
            submit(store, name)

        assert isinstance(submit(store, "a"), Reserved)
        again = reserve(store, "again", "a", scope="acme", quota=TWO)
        assert isinstance(again, Existing)
        assert again.job.id == "a"

    def test_one_that_takes_the_place_of_another_needs_no_room_and_one_that_trails_does(self, store: Store) -> None:
        for name in "ab":
            submit(store, name)
        instead = reserve(store, "c", "a", scope="acme", quota=TWO, on_duplicate=OnDuplicate.REPLACE)
        running(store, work("b", "b", scope="acme"))
        behind = reserve(store, "d", "b", scope="acme", quota=TWO, on_duplicate=OnDuplicate.TRAIL)

        assert isinstance(instead, Reserved)
        assert isinstance(behind, Full)
        last = store.last("b")
        assert last
        assert last.state is State.RUNNING

    def test_so_many_are_accepted_at_once_and_then_evenly(self, store: Store, clock: FakeClock) -> None:
        answers = [submit(store, f"job-{n}", quota=SIX_A_MINUTE) for n in range(8)]

        assert answers[6] == answers[7] == Full(timedelta(seconds=10))
        assert [type(answer) for answer in answers[:6]] == [Reserved] * 6

        clock.advance(seconds=9)
        assert submit(store, "early", quota=SIX_A_MINUTE) == Full(timedelta(seconds=1))
        clock.advance(seconds=1)
        assert isinstance(submit(store, "in time", quota=SIX_A_MINUTE), Reserved)
        assert isinstance(submit(store, "one more", quota=SIX_A_MINUTE), Full)

    def test_after_a_quiet_while_a_scope_has_a_minute_s_worth_and_not_more(
        self, store: Store, clock: FakeClock
    ) -> None:
        submit(store, "first", quota=SIX_A_MINUTE)
        clock.advance(hours=5)

        answers = [submit(store, f"job-{n}", quota=SIX_A_MINUTE) for n in range(7)]

        assert [type(answer) for answer in answers] == [Reserved] * 6 + [Full]

    def test_a_clock_that_is_set_back_shuts_no_scope_out(self, store: Store, clock: FakeClock) -> None:
        for n in range(6):
            submit(store, f"job-{n}", quota=SIX_A_MINUTE)
        clock.advance(hours=-5)

        assert submit(store, "at once", quota=SIX_A_MINUTE) == Full(timedelta(seconds=10))
        clock.advance(seconds=10)
        assert isinstance(submit(store, "in time", quota=SIX_A_MINUTE), Reserved)
        assert isinstance(submit(store, "one more", quota=SIX_A_MINUTE), Full)

    def test_duplicates_and_refusals_take_nothing_of_the_minute(self, store: Store, clock: FakeClock) -> None:
        both = Quota(max_active=1, per_minute=2)
        submit(store, "a", quota=both)
        for n in range(10):
            submit(store, "a", quota=both)
            submit(store, f"full-{n}", quota=both)
        completed(store, work("a", "a", scope="acme"))
        clock.advance(seconds=1)

        assert isinstance(submit(store, "b", quota=both), Reserved)

    def test_of_many_that_come_at_once_as_many_are_accepted_as_there_is_room(self, store: Store) -> None:
        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(lambda n: submit(store, f"job-{n}", quota=Quota(max_active=5)), range(24)))

        assert sum(isinstance(answer, Reserved) for answer in answers) == 5
        assert sum(isinstance(answer, Full) for answer in answers) == 19
