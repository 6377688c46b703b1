from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from msgspec.structs import replace

from oncelery import Oncelery
from oncelery import answers as a
from oncelery.celery.message import Message
from oncelery.errors import StoreUnavailableError
from oncelery.events import Event
from oncelery.job import DISCARDED, Answer, Cause, Job, Lease, Query, Reason, State, Submission
from oncelery.ledger import Ledger
from oncelery.operations.dead_letters import Fate, Item
from oncelery.policy import Policy
from oncelery.settlement import Bury, Complete, Release
from oncelery.stores.memory import MemoryStore
from oncelery.testing.clock import FakeClock

POLICY = Policy()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def app() -> Celery:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.task_default_queue = "orders"
    return app


@pytest.fixture
def once(app: Celery, clock: FakeClock) -> Oncelery:
    once = Oncelery(app, store="memory://")
    once.ledger = Ledger(MemoryStore(clock=clock))

    once.task(charge, name="shop.charge", shared=False)
    app.finalize()
    return once


@pytest.fixture
def published(once: Oncelery, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, object]]:
    """Give what is published from now on: job id; arguments and options."""
    sent: list[tuple[str, object]] = []

    def send(
        _name: str, args: tuple[object], kwargs: dict[str, object], *, task_id: str, countdown: None, **options: object
    ) -> None:
        assert countdown is None
        sent.append((task_id, (list(args), kwargs, options)))

    monkeypatch.setattr(once, "send_task", send)
    return sent


def charge(order_id: str, amount: int = 1) -> str:
    return f"{order_id}: {amount}"


def submission(number: int, *, task: str = "shop.charge", scope: str = "", **options: object) -> Submission:
    body = json.dumps([task, [f"o-{number}"], {}, options]).encode()
    return Submission(id=f"job-{number}", key=f"{number:064x}", task=task, scope=scope, body=body)


def begin(once: Oncelery, offered: Submission) -> Lease:
    once.ledger.reserve(offered)
    answer = once.ledger.begin(offered, POLICY)
    assert isinstance(answer, a.Granted)
    return answer.lease


def bury(once: Oncelery, *offered: Submission, clock: FakeClock | None = None) -> None:
    for each in offered:
        once.ledger.settle(begin(once, each), Bury(reason=Reason.FAILED))
        if clock:
            clock.advance(seconds=1)


def job(once: Oncelery, number: int) -> Job:
    found = once.jobs.get(f"job-{number}")
    assert found is not None
    return found


# Jobs


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


# Dead letters


def test_only_dead_letters_are_found_among_dead_letters(once: Oncelery) -> None:
    bury(once, submission(1, scope="acme"), submission(2, task="shop.ship"))
    once.ledger.reserve(submission(3))

    assert {found.id for found in once.dead_letters.find().items} == {"job-1", "job-2"}
    assert [found.id for found in once.dead_letters.each(scope="acme")] == ["job-1"]
    assert [found.id for found in once.dead_letters.find(states="queued", task="shop.ship").items] == ["job-2"]
    assert once.dead_letters.get("job-3") is None
    assert once.dead_letters.get("job-1") == job(once, 1)


def test_a_revived_dead_letter_is_published_at_once(once: Oncelery, published: list[tuple[str, object]]) -> None:
    bury(once, submission(1))

    assert isinstance(once.dead_letters.revive("job-1"), a.Revived)

    assert published == [("job-1", (["o-1"], {}, {}))]
    assert job(once, 1).state is State.QUEUED


def test_a_revived_dead_letter_really_reaches_the_broker(once: Oncelery) -> None:
    bury(once, submission(1))

    once.dead_letters.revive("job-1", kwargs={"amount": 7})

    with once.app.connection_for_read() as connection:
        message = connection.SimpleQueue("orders").get(block=False)
    assert message.headers["id"] == "job-1"
    assert message.payload[:2] == [["o-1"], {"amount": 7}]


def test_corrected_arguments_reach_the_message_and_the_ledger(
    once: Oncelery, published: list[tuple[str, object]]
) -> None:
    bury(once, submission(1))

    once.dead_letters.revive("job-1", args=["o-9"], kwargs={"amount": 2})

    assert published == [("job-1", (["o-9"], {"amount": 2}, {}))]
    granted = once.ledger.begin(submission(1), POLICY)
    assert isinstance(granted, a.Granted)
    message = Message.unpack(once.app, granted.body or b"")
    assert (message.args, message.kwargs) == (("o-9",), {"amount": 2})


def test_arguments_that_the_task_does_not_take_leave_the_dead_letter_as_it_is(
    once: Oncelery, published: list[tuple[str, object]]
) -> None:
    bury(once, submission(1))

    with pytest.raises(TypeError, match="colour"):
        once.dead_letters.revive("job-1", kwargs={"colour": "blue"})

    assert job(once, 1).state is State.BURIED
    assert published == []


def test_a_revived_job_has_not_expired_and_has_all_its_retries(
    once: Oncelery, published: list[tuple[str, object]]
) -> None:
    bury(once, submission(1, expires="2020-01-01T00:00:00+00:00", retries=3, priority=5))

    once.dead_letters.revive("job-1")

    assert published == [("job-1", (["o-1"], {}, {"priority": 5}))]


def test_a_broker_that_is_down_does_not_undo_a_revival(
    once: Oncelery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def send(*_args: object, **_options: object) -> None:
        raise ConnectionError("refused")

    monkeypatch.setattr(once, "send_task", send)
    bury(once, submission(1))

    assert isinstance(once.dead_letters.revive("job-1"), a.Revived)

    assert job(once, 1).state is State.QUEUED
    assert "the sweeper will: refused" in caplog.text


def test_what_is_no_dead_letter_is_not_revived(once: Oncelery, published: list[tuple[str, object]]) -> None:
    once.ledger.reserve(submission(1))

    assert once.dead_letters.revive("job-1") == a.NotBuried(job(once, 1))
    assert once.dead_letters.revive("nobody", args=["o-9"]) == a.Absent()
    assert published == []


def many(once: Oncelery, clock: FakeClock) -> None:
    """Bury four jobs: one whose work another job does, one that cannot be read, two that are fine."""
    bury(once, *(submission(number) for number in range(1, 5)), clock=clock)
    broken = replace(submission(3), id="job-5", key="5" * 64, body=b"\xff")
    bury(once, broken)
    once.ledger.reserve(replace(submission(2), id="job-6"))


def fates(items: tuple[Item, ...] | list[Item]) -> dict[str, Fate]:
    return {item.job_id: item.fate for item in items}


FATES = {
    "job-1": Fate.REVIVED,
    "job-2": Fate.SUPERSEDED,
    "job-3": Fate.REVIVED,
    "job-4": Fate.REVIVED,
    "job-5": Fate.FAILED,
}


def test_many_are_revived_each_for_itself(
    once: Oncelery, clock: FakeClock, published: list[tuple[str, object]]
) -> None:
    many(once, clock)
    told: list[Item] = []

    revival = once.dead_letters.revive_many(limit=2, progress=told.append)

    assert fates(revival.items) == FATES
    assert list(revival.items) == told
    assert sorted(job_id for job_id, _ in published) == ["job-1", "job-3", "job-4"]
    assert [item.why for item in revival["superseded"]] == ["by job job-6, which is queued"]
    assert "DecodeError" in revival["failed"][0].why
    assert fates(once.dead_letters.revive_many().items) == {"job-2": Fate.SUPERSEDED, "job-5": Fate.FAILED}


def test_a_dry_run_tells_the_same_and_changes_nothing(
    once: Oncelery, clock: FakeClock, published: list[tuple[str, object]]
) -> None:
    many(once, clock)
    heard: list[Event] = []
    once.ledger.events.subscribe(heard.append)

    revival = once.dead_letters.revive_many(dry_run=True)

    assert revival.dry_run
    assert fates(revival.items) == FATES
    assert (published, heard) == ([], [])
    assert len(once.dead_letters.find().items) == 5


def test_of_two_dead_letters_of_one_key_only_the_newer_is_revived(
    once: Oncelery, clock: FakeClock, published: list[tuple[str, object]]
) -> None:
    bury(once, submission(1), replace(submission(1), id="job-2"), clock=clock)

    rehearsed = once.dead_letters.revive_many(dry_run=True)
    revived = once.dead_letters.revive_many()

    assert fates(rehearsed.items) == fates(revived.items) == {"job-2": Fate.REVIVED, "job-1": Fate.SUPERSEDED}
    assert [job_id for job_id, _ in published] == ["job-2"]


def test_a_job_that_is_buried_again_meanwhile_is_revived_but_once(
    once: Oncelery, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_at_once(*_args: object, task_id: str, **_options: object) -> None:
        clock.advance(seconds=1)
        revived = once.jobs.get(task_id)
        assert revived
        answer = once.ledger.begin(replace(submission(0), id=task_id, key=revived.key), POLICY)
        assert isinstance(answer, a.Granted)
        once.ledger.settle(answer.lease, Bury(reason=Reason.FAILED))

    monkeypatch.setattr(once, "send_task", run_at_once)
    bury(once, *(submission(number) for number in range(3)), clock=clock)

    assert len(once.dead_letters.revive_many(limit=1).items) == 3


def test_a_store_that_goes_away_half_way_is_told_and_the_same_call_goes_on(
    once: Oncelery, clock: FakeClock, published: list[tuple[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(once, *(submission(number) for number in range(3)), clock=clock)
    revive = once.ledger.revive
    away = {"job-1"}

    def away_at_last(job_id: str, *, body: bytes | None = None) -> a.ReviveAnswer:
        if job_id in away:
            raise StoreUnavailableError
        return revive(job_id, body=body)

    monkeypatch.setattr(once.ledger, "revive", away_at_last)
    with pytest.raises(StoreUnavailableError):
        once.dead_letters.revive_many()
    away.clear()
    again = once.dead_letters.revive_many()

    assert fates(again.items) == {"job-1": Fate.REVIVED, "job-0": Fate.REVIVED}
    assert [job_id for job_id, _ in published] == ["job-2", "job-1", "job-0"]


def test_a_discarded_dead_letter_is_one_no_more(once: Oncelery) -> None:
    bury(once, submission(1))

    assert isinstance(once.dead_letters.discard("job-1"), a.Discarded)
    assert isinstance(once.dead_letters.discard("job-1"), a.NotBuried)
    assert once.dead_letters.find().items == ()
    job = once.jobs.get("job-1")
    assert job
    assert (job.state, job.reason) == (State.CANCELLED, DISCARDED)


# Duplicates


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


def test_a_release_with_another_body_survives_a_revival(once: Oncelery, published: list[tuple[str, object]]) -> None:
    retried = json.dumps(["shop.charge", ["o-2"], {}, {"retries": 1}]).encode()
    once.ledger.settle(begin(once, submission(1)), Release(cause=Cause.RETRY, body=retried))
    answer = once.ledger.begin(submission(1), POLICY)
    assert isinstance(answer, a.Granted)
    once.ledger.settle(answer.lease, Bury(reason=Reason.EXHAUSTED))

    once.dead_letters.revive("job-1")

    assert published == [("job-1", (["o-2"], {}, {}))]
