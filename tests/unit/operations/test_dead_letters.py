from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from oncelery import Oncelery
from oncelery import answers as a
from oncelery.celery.message import Message
from oncelery.errors import RevivalError, StoreUnavailableError
from oncelery.events import Event
from oncelery.job import DISCARDED, Cause, Reason, State
from oncelery.operations.dead_letters import Fate, Item
from oncelery.settlement import Bury, Release
from oncelery.testing.clock import FakeClock
from operations.conftest import charge
from operations.submissions import POLICY, begin, bury, job, submission


@pytest.fixture
def published(once: Oncelery, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, object]]:
    """Give what is published from now on: job id; arguments and options."""
    sent: list[tuple[str, object]] = []

    def send(
        _name: str, args: tuple[object], kwargs: dict[str, object], *, task_id: str, countdown: None, **options: object
    ) -> None:
        assert countdown is None
        sent.append((task_id, (list(args), kwargs, options)))

    monkeypatch.setattr(once, "send_unguarded", send)
    return sent


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

    once.dead_letters.revive("job-1")

    with once.app.connection_for_read() as connection:
        message = connection.SimpleQueue("orders").get(block=False)
    assert message.headers["id"] == "job-1"
    assert message.payload[:2] == [["o-1"], {}]


def test_corrected_arguments_reach_the_message_and_the_ledger(
    once: Oncelery, published: list[tuple[str, object]]
) -> None:
    pay = once.task(charge, name="shop.pay", key="order_id", shared=False)
    key = pay.identity.of(("o-1",), namespace=once.namespace).key
    bury(once, replace(submission(1, task="shop.pay"), key=key))

    once.dead_letters.revive("job-1", args=["o-1"], kwargs={"amount": 2})

    shown = {"argsrepr": "('o-1',)", "kwargsrepr": "{'amount': 2}"}
    assert published == [("job-1", (["o-1"], {"amount": 2}, shown))]
    granted = once.ledger.begin(submission(1), POLICY)
    assert isinstance(granted, a.Granted)
    message = Message.unpack(once.app, granted.body or b"")
    assert (message.args, message.kwargs) == (("o-1",), {"amount": 2})


def test_corrected_arguments_of_another_key_are_published_as_another_job(
    once: Oncelery, published: list[tuple[str, object]]
) -> None:
    bury(once, submission(1, task_id="root", replaced_task_nesting=1, expires="2020-01-01T00:00:00+00:00"))
    seen: list[Event] = []
    once.ledger.events.subscribe(seen.append)

    answer = once.dead_letters.revive("job-1", args=["o-9"])

    assert isinstance(answer, a.Resubmitted)
    options = {"argsrepr": "('o-9',)", "kwargsrepr": "{}", "headers": {"oncelery_key": answer.job.key}}
    assert published == [(answer.job.id, (["o-9"], {}, options))]
    assert [(event.decision, event.job_id) for event in seen] == [("revived", answer.job.id)]
    assert (job(once, 1).state, job(once, 1).reason) == (State.CANCELLED, f"revived as {answer.job.id}")
    task: Any = once.app.tasks["shop.charge"]
    assert answer.job.key == task.identity.of(("o-9",), namespace=once.namespace).key


def test_arguments_that_the_task_does_not_take_leave_the_dead_letter_as_it_is(
    once: Oncelery, published: list[tuple[str, object]]
) -> None:
    bury(once, submission(1))

    with pytest.raises(TypeError, match="colour"):
        once.dead_letters.revive("job-1", kwargs={"colour": "blue"})

    assert job(once, 1).state is State.BURIED
    assert published == []


def test_a_dead_letter_that_cannot_be_read_stays_one_and_the_log_says_where_it_failed(
    once: Oncelery, caplog: pytest.LogCaptureFixture
) -> None:
    bury(once, replace(submission(1), body=b"\xff"))

    with pytest.raises(RevivalError, match="DecodeError"):
        once.dead_letters.revive("job-1")

    assert job(once, 1).state is State.BURIED
    assert "Traceback" in caplog.text


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

    monkeypatch.setattr(once, "send_unguarded", send)
    bury(once, submission(1))

    assert isinstance(once.dead_letters.revive("job-1"), a.Revived)

    assert job(once, 1).state is State.QUEUED
    assert "the sweeper will: refused" in caplog.text


def test_a_release_with_another_body_survives_a_revival(once: Oncelery, published: list[tuple[str, object]]) -> None:
    retried = json.dumps(["shop.charge", ["o-2"], {}, {"retries": 1}]).encode()
    once.ledger.settle(begin(once, submission(1)), Release(cause=Cause.RETRY, body=retried))
    answer = once.ledger.begin(submission(1), POLICY)
    assert isinstance(answer, a.Granted)
    once.ledger.settle(answer.lease, Bury(reason=Reason.EXHAUSTED))

    once.dead_letters.revive("job-1")

    assert published == [("job-1", (["o-2"], {}, {}))]


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


def test_those_that_are_named_are_rehearsed_as_they_would_be_revived(
    once: Oncelery, clock: FakeClock, published: list[tuple[str, object]]
) -> None:
    bury(once, submission(1), replace(submission(1), id="job-2"), clock=clock)

    alone = once.dead_letters.rehearse("job-1")
    together = once.dead_letters.rehearse("job-1", "nobody", "job-2")

    assert {job_id: fate for job_id, (fate, _) in alone.items()} == {"job-1": Fate.REVIVED}
    assert [(job_id, fate) for job_id, (fate, _) in together.items()] == [
        ("job-1", Fate.REVIVED),
        ("nobody", Fate.FAILED),
        ("job-2", Fate.SUPERSEDED),
    ]
    assert published == []
    assert isinstance(once.dead_letters.revive("job-1"), a.Revived)
    assert isinstance(once.dead_letters.revive("job-2"), a.Existing)


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

    monkeypatch.setattr(once, "send_unguarded", run_at_once)
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


def test_many_are_discarded_each_for_itself_after_a_dry_run_that_changes_nothing(
    once: Oncelery, clock: FakeClock
) -> None:
    many(once, clock)
    bury(once, submission(7, task="shop.ship"))
    heard: list[Event] = []
    once.ledger.events.subscribe(heard.append)
    told: list[Item] = []

    rehearsed = once.dead_letters.discard_many(task="shop.charge", limit=2, dry_run=True)
    untouched, silence = len(once.dead_letters.find().items), list(heard)
    discarded = once.dead_letters.discard_many(task="shop.charge", limit=2, progress=told.append)

    assert (rehearsed.dry_run, discarded.dry_run) == (True, False)
    assert rehearsed.items == discarded.items == tuple(told)
    assert fates(told) == dict.fromkeys(FATES, Fate.DISCARDED)
    assert (untouched, silence) == (6, [])
    assert [found.id for found in once.dead_letters.find().items] == ["job-7"]
    assert job(once, 6).state is State.QUEUED


def test_a_dry_run_tells_what_cannot_be_discarded(once: Oncelery) -> None:
    once.ledger.reserve(submission(1))

    assert once.dead_letters.discard("job-1", dry_run=True) == a.NotBuried(job(once, 1))
    assert once.dead_letters.discard("nobody", dry_run=True) == a.Absent()
