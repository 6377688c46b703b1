"""Inside the caller's transaction: what the ledger does there is done if and when the caller commits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import pytest

from oncelery.answers import Existing, Fenced, Granted, Reserved, Settled
from oncelery.job import Cause, Query, State
from oncelery.settlement import Complete, Release
from oncelery.stores.base import PUBLISH_GRACE, Store
from oncelery.testing.clock import FakeClock
from oncelery.testing.conformance.acts import (
    JOB,
    OTHER,
    accepted,
    begin,
    complete,
    completed,
    lapsed,
    reserve,
    running,
    seen,
    work,
)
from oncelery.testing.conformance.fixtures import Fixtures

PATIENCE_SECONDS = 60


class Connection(Protocol):
    """A connection of the caller, in a transaction from its first statement on."""

    def commit(self) -> object:
        """Keep what was done since."""

    def rollback(self) -> object:
        """Undo what was done since."""

    def close(self) -> object:
        """Let go of it."""


Within = Callable[[Any], Store]


class Transactions(Fixtures):
    """The store inside the caller's transaction, if it offers `within(connection)`."""

    @pytest.fixture
    def connect(self) -> Callable[[], Connection]:
        """Give what opens a connection to the database of the store."""
        pytest.skip("the fixture `connect` is not filled: there is no connection of a caller to join")

    @pytest.fixture
    def within(self, store: Store) -> Within:
        """Give the door into the caller's transaction."""
        within: Within | None = getattr(store, "within", None)
        if within is None:
            pytest.skip("the store has no `within`: it cannot join a caller's transaction")
        return within

    @pytest.fixture
    def connection(self, within: Within, connect: Callable[[], Connection]) -> Iterator[Connection]:  # noqa: ARG002 - a store without it is told first
        """Give a connection of the caller."""
        connection = connect()
        yield connection
        connection.rollback()
        connection.close()

    def test_a_submission_is_there_for_others_when_the_caller_has_committed(
        self, store: Store, within: Within, connection: Connection
    ) -> None:
        job = accepted(within(connection))
        before = store.get(JOB)

        connection.commit()

        assert before is None
        assert store.get(JOB) == job

    def test_a_submission_of_a_caller_that_rolled_back_never_was(
        self, store: Store, within: Within, connection: Connection
    ) -> None:
        accepted(within(connection))

        connection.rollback()

        assert (store.get(JOB), store.find(Query()).items) == (None, ())
        assert accepted(store).state is State.QUEUED

    def test_what_was_done_inside_is_seen_inside(self, within: Within, connection: Connection) -> None:
        inside = within(connection)

        lease = running(inside)
        complete(inside, lease, result=b"paid")

        assert seen(inside).result == b"paid"
        assert isinstance(reserve(inside, OTHER), Existing)

    def test_a_completion_is_kept_with_what_the_caller_commits(
        self, store: Store, within: Within, connection: Connection
    ) -> None:
        lease = running(store)

        answer = within(connection).settle(lease, Complete(result=b"paid"))
        before = seen(store).state
        connection.commit()

        assert answer == Settled(State.COMPLETED)
        assert (before, seen(store).state, seen(store).result) == (State.RUNNING, State.COMPLETED, b"paid")

    def test_a_completion_that_was_rolled_back_leaves_the_run_its_lease(
        self, store: Store, within: Within, connection: Connection
    ) -> None:
        lease = running(store)
        within(connection).settle(lease, Complete(result=b"paid"))

        connection.rollback()

        assert seen(store).state is State.RUNNING
        assert store.settle(lease, Release(cause=Cause.RETRY)) == Settled(State.QUEUED)

    def test_a_superseded_run_is_told_inside_and_the_transaction_stays_usable(
        self, store: Store, clock: FakeClock, within: Within, connection: Connection
    ) -> None:
        ghost = lapsed(store, clock)
        running(store, holder="second")
        before = seen(store)
        inside = within(connection)

        assert inside.settle(ghost, Complete(result=b"late")) == Fenced(State.RUNNING)
        assert seen(inside) == before
        connection.commit()
        assert seen(store) == before

    def test_a_completion_inside_sent_again_after_a_lost_commit_reply_is_answered_the_same(
        self, store: Store, within: Within, connection: Connection
    ) -> None:
        lease = running(store)
        first = within(connection).settle(lease, Complete(result=b"paid"))
        connection.commit()

        again = within(connection).settle(lease, Complete(result=b"paid"))
        connection.commit()

        assert first == again == store.settle(lease, Complete(result=b"paid"))

    def test_the_store_outside_is_not_in_the_transaction(
        self, store: Store, within: Within, connection: Connection
    ) -> None:
        accepted(within(connection))

        accepted(store, OTHER, "another key")
        connection.rollback()

        assert [job.id for job in store.find(Query()).items] == [OTHER]

    def test_a_submission_made_inside_is_swept_like_any_other(
        self, store: Store, clock: FakeClock, within: Within, connection: Connection
    ) -> None:
        accepted(within(connection))
        connection.commit()
        clock.now += PUBLISH_GRACE

        assert [job.id for job in store.due(limit=10, empty_queues={"celery"})] == [JOB]

    @pytest.mark.parametrize("end", ["commit", "rollback"])
    def test_who_submits_the_same_key_meanwhile_waits_for_the_callers_end(
        self, store: Store, within: Within, connection: Connection, end: str
    ) -> None:
        accepted(within(connection))
        started = threading.Event()

        def submit() -> object:
            started.set()
            return reserve(store, OTHER)

        with ThreadPoolExecutor(1) as other:
            answer = other.submit(submit)
            started.wait(PATIENCE_SECONDS)
            getattr(connection, end)()

            assert type(answer.result(PATIENCE_SECONDS)) is (Existing if end == "commit" else Reserved)

    def test_a_completed_job_answers_inside_too(self, store: Store, within: Within, connection: Connection) -> None:
        completed(store, result=b"paid")

        answer = begin(within(connection), work(OTHER), holder="second")

        assert not isinstance(answer, Granted)
        connection.commit()
        assert seen(store).duplicates == 1
