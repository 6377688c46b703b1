from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from oncelery import Oncelery
from oncelery.job import Answer
from oncelery.testing.clock import FakeClock
from operations.submissions import submission


def test_duplicates_are_found_by_task_and_scope_over_all_pages(once: Oncelery) -> None:
    once.ledger.reserve(submission(1, scope="acme"))
    once.ledger.reserve(submission(2, task="shop.ship"))
    for number in range(60):
        once.ledger.reserve(replace(submission(1), id=f"double-{number}", caller="web"))
    once.ledger.reserve(replace(submission(2), id="double"))

    assert len(once.duplicates.find().items) == 50
    assert len(list(once.duplicates.each(scope="acme"))) == 60
    (shipped,) = once.duplicates.find(task="shop.ship").items
    assert (shipped.job_id, shipped.answer) == ("job-2", Answer.JOINED)


def test_duplicates_are_counted_from_an_instant_on_or_for_the_last_hours(once: Oncelery, clock: FakeClock) -> None:
    clock.now = datetime.now(UTC)
    once.ledger.reserve(submission(1))
    once.ledger.reserve(replace(submission(1), id="double"))

    (counted,) = once.duplicates.counts(since=timedelta(hours=1))
    assert (counted.task, counted.answer, counted.count) == ("shop.charge", Answer.JOINED, 1)
    assert once.duplicates.counts() == [counted]
    assert once.duplicates.counts(since=clock.now + timedelta(hours=2)) == []
    with pytest.raises(ValueError, match="time zone"):
        once.duplicates.counts(since=datetime(2030, 1, 1))  # noqa: DTZ001 - the mistake
