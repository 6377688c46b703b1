from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from celery import Celery

from oncelery import Oncelery
from oncelery import answers as a
from oncelery.job import Query, State
from oncelery.settlement import Complete
from oncelery.testing.clock import FakeClock
from operations.submissions import POLICY, begin, job, submission


def test_jobs_are_found_by_keywords_or_by_a_query_and_keywords_count(once: Oncelery) -> None:
    once.ledger.reserve(submission(1, scope="acme"))
    once.ledger.reserve(submission(2, task="shop.ship"))
    begin(once, submission(3, scope="acme"))

    assert [found.id for found in once.jobs.find(task="shop.ship").items] == ["job-2"]
    assert {found.id for found in once.jobs.find(Query(scope="acme")).items} == {"job-1", "job-3"}
    assert [found.id for found in once.jobs.find(Query(scope="acme"), states="running").items] == ["job-3"]
    assert {found.id for found in once.jobs.find(states=["queued", State.RUNNING]).items} == {"job-1", "job-2", "job-3"}


def test_each_goes_through_all_pages_newest_change_first(once: Oncelery, clock: FakeClock) -> None:
    for number in range(7):
        once.ledger.reserve(submission(number))
        clock.advance(seconds=1)

    assert [found.id for found in once.jobs.each(limit=3)] == [f"job-{number}" for number in reversed(range(7))]
    assert len(once.jobs.find(limit=3).items) == 3


def test_each_goes_on_from_the_cursor_of_a_page(once: Oncelery, clock: FakeClock) -> None:
    for number in range(5):
        once.ledger.reserve(submission(number))
        clock.advance(seconds=1)
    page = once.jobs.find(limit=2)

    assert [found.id for found in once.jobs.each(cursor=page.cursor)] == ["job-2", "job-1", "job-0"]


@pytest.mark.parametrize(
    ("filters", "named"),
    [
        ({"states": "dead"}, "the states are queued"),
        ({"since": datetime(2030, 1, 1)}, "since must have a time zone"),  # noqa: DTZ001 - the mistake
        ({"limit": 0}, "at least one"),
    ],
)
def test_a_filter_that_cannot_be_is_refused_with_its_remedy(
    once: Oncelery, filters: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        once.jobs.find(**filters)


def test_an_unknown_filter_is_refused_by_name(once: Oncelery) -> None:
    with pytest.raises(TypeError, match="colour"):
        once.jobs.find(colour="blue")  # type: ignore[call-arg]


def test_a_cancelled_job_stays_cancelled_while_no_worker_is_up(once: Oncelery) -> None:
    once.ledger.reserve(submission(1))

    assert isinstance(once.jobs.cancel("job-1", reason="by ops"), a.Cancelled)

    assert isinstance(once.ledger.begin(submission(1), POLICY), a.Cancelled)
    assert job(once, 1).reason == "by ops"


def test_a_running_job_is_asked_to_end(once: Oncelery) -> None:
    lease = begin(once, submission(1))

    assert isinstance(once.jobs.cancel("job-1"), a.Requested)

    (renewed,) = once.ledger.renew([lease])
    assert isinstance(renewed, a.Renewed)
    assert renewed.cancel_requested


def test_terminate_supersedes_the_run_and_then_ends_its_process(
    once: Oncelery, app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    revoked: list[tuple[str, bool, State]] = []

    def revoke(task_id: str, *, terminate: bool) -> None:
        revoked.append((task_id, terminate, job(once, 1).state))

    monkeypatch.setattr(app.control, "revoke", revoke)
    lease = begin(once, submission(1))

    assert isinstance(once.jobs.cancel("job-1", terminate=True), a.Cancelled)

    assert revoked == [("job-1", True, State.CANCELLED)]
    assert isinstance(once.ledger.settle(lease, Complete(result=b"late")), a.Fenced)


def test_nothing_is_terminated_for_a_job_that_is_over_or_unknown(
    once: Oncelery, app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.control, "revoke", lambda *_args, **_options: pytest.fail("a process was ended"))
    once.ledger.settle(begin(once, submission(1)), Complete(result=b"1"))

    assert isinstance(once.jobs.cancel("job-1", terminate=True), a.Finished)
    assert isinstance(once.jobs.cancel("nobody", terminate=True), a.Absent)
