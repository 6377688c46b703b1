from __future__ import annotations

from datetime import UTC, datetime

from oncelery.stores import open_store
from oncelery.stores.memory import MemoryStore
from oncelery.testing.conformance.acts import JOB, accepted, running, seen


def test_its_url_names_it() -> None:
    assert isinstance(open_store("memory://"), MemoryStore)


def test_each_is_a_ledger_of_its_own() -> None:
    one, other = open_store("memory://"), open_store("memory://")

    accepted(one)

    assert other.get(JOB) is None
    assert not one.shared


def test_without_a_clock_it_goes_by_that_of_its_process() -> None:
    before = datetime.now(UTC)

    job = accepted(MemoryStore())

    assert before <= job.created_at <= datetime.now(UTC)


def test_closing_it_forgets_nothing() -> None:
    store = MemoryStore()
    accepted(store)

    store.close()

    assert seen(store).id == JOB


def test_what_it_has_answered_does_not_change_with_the_job() -> None:
    store = MemoryStore()
    queued = accepted(store)

    store.record(running(store), step=("paid", b"yes"))

    assert queued.steps == {}
    assert queued.begun_at is None
