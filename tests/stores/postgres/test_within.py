from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from oncelery.answers import Fenced, Renewed
from oncelery.errors import ConfigurationError, StoreUnavailableError
from oncelery.job import Cause, State
from oncelery.settlement import Complete, Release
from oncelery.stores.postgres import PostgresStore
from oncelery.testing import FakeClock
from oncelery.testing.conformance.acts import JOB, LEASE, OTHER, accepted, complete, lapsed, running, seen, work
from stores.postgres.stores import Connection, namespace_of, one, opened, url_of


def test_a_connection_without_a_transaction_is_refused(store: PostgresStore, connection: Connection) -> None:
    connection.commit()
    connection.autocommit = True

    with pytest.raises(ConfigurationError, match="transaction"):
        store.within(connection)

    with connection.transaction():
        accepted(store.within(connection))
    assert seen(store).id == JOB


def test_closing_the_store_within_leaves_the_callers_connection_open(
    store: PostgresStore, connection: Connection
) -> None:
    inside = store.within(connection)
    accepted(inside)

    inside.close()

    connection.commit()
    assert seen(store).id == JOB


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_run_superseded_after_a_strict_transaction_began_cannot_commit_in_it(
    url: str, namespace: str, clock: FakeClock, connection: Connection, level: str
) -> None:
    with opened(url, namespace, clock=clock) as store:
        ghost = lapsed(store, clock)
        connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        inside = store.within(connection)
        assert seen(inside).state is State.RUNNING
        running(store, holder="second")

        with pytest.raises(StoreUnavailableError):
            inside.settle(ghost, Complete(result=b"late"))

        connection.rollback()
        assert inside.settle(ghost, Complete(result=b"late")) == Fenced(State.RUNNING)


def test_a_transaction_that_holds_one_job_does_not_let_the_other_leases_lapse(
    url: str, namespace: str, clock: FakeClock, connection: Connection
) -> None:
    with opened(url, namespace, clock=clock) as store:
        leases = [running(store, work(job_id, f"key of {job_id}")) for job_id in ("a", "b", "c")]
        store.within(connection).settle(leases[1], Complete(result=b"paid"))
        clock.advance(seconds=10)

        answers = store.renew(leases)

        later = Renewed(clock.now + LEASE, cancel_requested=False)
        as_it_was = Renewed(leases[1].until, cancel_requested=False)
        assert answers == [later, as_it_was, later]
        connection.commit()
        assert store.renew(leases)[1] == Fenced(State.COMPLETED)


def test_the_time_is_that_of_the_verb_not_of_the_transaction(store: PostgresStore, connection: Connection) -> None:
    began_at = one(connection, "SELECT now()")
    inside = store.within(connection)

    first = accepted(inside)
    second = accepted(inside, OTHER, "another key")

    assert began_at < first.created_at < second.created_at
    assert one(connection, "SELECT now()") == began_at


def test_a_day_has_24_hours_in_every_time_zone(store: PostgresStore, connection: Connection) -> None:
    # The night in which the clocks of Berlin are set forward.
    before = datetime(2030, 3, 30, 12, tzinfo=UTC)
    connection.execute("SET TIME ZONE 'Europe/Berlin'")
    clocked = PostgresStore(url_of(connection), namespace=namespace_of(connection), clock=lambda: before)
    store.migrate()

    inside = clocked.within(connection)
    lease = running(inside, work(retention=timedelta(days=1)))
    inside.settle(lease, Release(cause=Cause.RETRY))
    complete(inside, running(inside, holder="second"))

    job = seen(inside)
    assert job.retained_until == before + timedelta(hours=24)
    assert {job.created_at.tzinfo, job.past[0].begun_at.tzinfo} == {UTC}
