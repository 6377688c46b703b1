from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from oncelery import answers as a
from oncelery import events as e
from oncelery.errors import PayloadMismatchError, TooLargeError
from oncelery.job import OWN_REASONS, Answer, Cause, Lease, Lost, OnDuplicate, Reason, State, Submission
from oncelery.ledger import Ledger, Limits
from oncelery.policy import Policy
from oncelery.settlement import Bury, Cancel, Complete, Release
from oncelery.stores.memory import MemoryStore
from oncelery.testing.clock import FakeClock

KEY = "a" * 64
CHARGE = Submission(id="job-1", key=KEY, task="shop.charge", body=b"{}", scope="acme")
POLICY = Policy()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def ledger(clock: FakeClock) -> Ledger:
    return Ledger(MemoryStore(clock=clock), limits=Limits(body=100, result=100, step=100))


@pytest.fixture
def heard(ledger: Ledger) -> Iterator[list[e.Event]]:
    events: list[e.Event] = []
    ledger.events.subscribe(events.append)
    yield events
    assert all(event.task == "shop.charge" and event.seconds >= 0 for event in events)


def words(heard: list[e.Event]) -> list[str]:
    return [event.decision for event in heard]


def begin(ledger: Ledger, submission: Submission = CHARGE, policy: Policy = POLICY) -> Lease:
    answer = ledger.begin(submission, policy, worker="w")
    assert isinstance(answer, a.Granted)
    return answer.lease


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"key": "short"}, "64 hex"),
        ({"key": KEY.upper()}, "64 hex"),
        ({"id": ""}, "id"),
        ({"task": ""}, "task"),
        ({"queue": ""}, "queue"),
        ({"body": None}, "body"),
        ({"delay": timedelta(seconds=-1)}, "delay"),
        ({"delay": timedelta(seconds=1.8e12)}, "delay"),
    ],
)
def test_a_submission_that_cannot_be_is_refused_by_name(ledger: Ledger, change: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        ledger.reserve(replace(CHARGE, **change))

    assert ledger.get("job-1") is None


@pytest.mark.parametrize("change", [{"body": b"x" * 101}, {"id": "x" * 256}, {"scope": "x" * 256}])
def test_what_is_over_its_limit_is_refused_before_it_is_stored(ledger: Ledger, change: dict[str, Any]) -> None:
    with pytest.raises(TooLargeError, match="limit"):
        ledger.reserve(replace(CHARGE, **change))

    assert ledger.last(KEY) is None


def test_a_retry_that_would_never_come_is_put_off_for_as_long_as_can_be_told(ledger: Ledger) -> None:
    ledger.reserve(CHARGE)
    ledger.settle(begin(ledger), Release(cause=Cause.RETRY, delay=timedelta(seconds=1.8e12)))

    job = ledger.get("job-1")
    assert job
    assert job.not_before
    assert job.not_before > job.changed_at + timedelta(days=360_000)


def test_a_step_over_its_limit_leaves_the_run_ours(ledger: Ledger) -> None:
    ledger.reserve(CHARGE)
    lease = begin(ledger)

    with pytest.raises(TooLargeError, match="step"):
        ledger.record(lease, step=("charge", b"x" * 101))

    assert ledger.settle(lease, Complete(result=b"ok")) == a.Settled(State.COMPLETED)


def test_a_run_that_finished_is_completed_without_a_result_over_its_limit(ledger: Ledger) -> None:
    ledger.reserve(CHARGE)

    answer = ledger.settle(begin(ledger), Complete(result=b"x" * 101))

    job = ledger.get("job-1")
    assert answer == a.Settled(State.COMPLETED)
    assert job
    assert job.result == b""
    assert job.result_omitted.startswith("the result has 101 bytes, the limit is 100")


@pytest.mark.parametrize("reason", sorted(OWN_REASONS))
def test_a_reason_of_somebody_else_is_not_taken_for_the_ledgers_own(ledger: Ledger, reason: str) -> None:
    ledger.reserve(CHARGE)
    ledger.cancel("job-1", reason=reason)
    ledger.reserve(replace(CHARGE, id="job-2"))
    ledger.settle(begin(ledger, replace(CHARGE, id="job-2")), Cancel(reason=reason))

    jobs = [ledger.get("job-1"), ledger.get("job-2")]

    assert [job and job.reason for job in jobs] == [f'"{reason}"'] * 2


def test_another_payload_under_the_key_is_an_error_that_names_the_job(ledger: Ledger, heard: list[e.Event]) -> None:
    ledger.reserve(replace(CHARGE, digest="1"))

    with pytest.raises(PayloadMismatchError) as caught:
        ledger.reserve(replace(CHARGE, id="job-2", digest="2"))
    with pytest.raises(PayloadMismatchError):
        ledger.begin(replace(CHARGE, id="job-2", digest="2"), POLICY)

    assert (caught.value.job_id, caught.value.key, caught.value.state) == ("job-1", KEY, State.QUEUED)
    assert words(heard) == ["accepted", "duplicate", "duplicate"]


@pytest.mark.parametrize(
    ("on_duplicate", "answer"),
    [
        (OnDuplicate.JOIN, Answer.JOINED),
        (OnDuplicate.REJECT, Answer.REJECTED),
        (OnDuplicate.TRAIL, Answer.AMENDED),
    ],
)
def test_the_event_of_a_duplicate_says_what_the_audit_says(
    ledger: Ledger, heard: list[e.Event], on_duplicate: OnDuplicate, answer: Answer
) -> None:
    ledger.reserve(CHARGE)

    ledger.reserve(replace(CHARGE, id="job-2"), on_duplicate=on_duplicate)

    assert [event.answer for event in heard if isinstance(event, e.DuplicateAnswered)] == [answer]
    assert [duplicate.answer for duplicate in ledger.duplicates().items] == [answer]


def test_the_life_of_a_job_is_told_in_events(ledger: Ledger, heard: list[e.Event]) -> None:
    ledger.reserve(CHARGE)
    ledger.settle(begin(ledger), Release(cause=Cause.RETRY, delay=timedelta(0)))
    ledger.settle(begin(ledger), Bury(reason=Reason.FAILED))
    ledger.revive("job-1")
    ledger.settle(begin(ledger), Complete(result=b"ok"))
    ledger.begin(CHARGE, POLICY)

    assert words(heard) == [
        "accepted",
        "began",
        "released",
        "began",
        "buried",
        "revived",
        "began",
        "completed",
        "duplicate",
    ]


def test_a_cancelled_run_is_told_in_events(ledger: Ledger, heard: list[e.Event]) -> None:
    ledger.reserve(CHARGE)
    lease = begin(ledger)
    ledger.cancel("job-1", reason="by ops")
    ledger.settle(lease, Cancel(reason="by ops"))
    ledger.begin(CHARGE, POLICY)

    assert words(heard) == ["accepted", "began", "cancel requested", "cancelled", "declined"]


def test_a_job_that_is_withdrawn_while_it_runs_is_asked_to_end(ledger: Ledger, heard: list[e.Event]) -> None:
    ledger.reserve(CHARGE)
    begin(ledger)

    ledger.withdraw("job-1", reason="not wanted after all")

    assert words(heard) == ["accepted", "began", "cancel requested"]


def test_every_verb_of_a_superseded_run_is_fenced(ledger: Ledger, clock: FakeClock) -> None:
    ledger.reserve(CHARGE)
    late = begin(ledger)
    clock.advance(seconds=31)
    begin(ledger)

    assert ledger.renew([late]) == [a.Fenced(State.RUNNING)]
    assert ledger.record(late, step=("charge", b"1")) == a.Fenced(State.RUNNING)
    assert ledger.settle(late, Complete(result=b"late")) == a.Fenced(State.RUNNING)


def test_a_run_that_records_its_job_again_is_told_in_events(ledger: Ledger, heard: list[e.Event]) -> None:
    ledger.begin(CHARGE, POLICY, restores=True)

    assert words(heard) == ["restored"]


def test_a_burial_by_the_crash_limit_is_told_once(ledger: Ledger, heard: list[e.Event], clock: FakeClock) -> None:
    policy = Policy(max_crashes=0)
    ledger.reserve(CHARGE)
    begin(ledger, policy=policy)
    clock.advance(seconds=31)

    assert isinstance(ledger.begin(CHARGE, policy), a.Buried)
    assert isinstance(ledger.begin(CHARGE, policy), a.Finished)
    assert words(heard) == ["accepted", "began", "buried", "duplicate"]


def test_a_job_that_never_starts_is_buried_and_told_so(ledger: Ledger, heard: list[e.Event]) -> None:
    ledger.reserve(CHARGE)

    assert ledger.received("job-1", limit=1) == a.Counted(1)
    assert isinstance(ledger.received("job-1", limit=1), a.Buried)
    assert isinstance(ledger.discard("job-1"), a.Discarded)
    assert words(heard) == ["accepted", "buried", "discarded"]


def test_what_the_sweeper_takes_is_told_for_each_job(ledger: Ledger, heard: list[e.Event], clock: FakeClock) -> None:
    ledger.reserve(CHARGE)
    clock.advance(seconds=11)

    assert [job.id for job in ledger.due(empty_queues=["celery"])] == ["job-1"]
    assert words(heard) == ["accepted", "swept"]


def test_a_lost_worker_is_told_from_a_lost_message(ledger: Ledger, heard: list[e.Event], clock: FakeClock) -> None:
    ledger.reserve(replace(CHARGE, id="job-2", key="b" * 64))
    begin(ledger)
    clock.advance(hours=1)

    ledger.due()

    swept = {event.job_id: event.lost for event in heard if isinstance(event, e.JobSwept)}
    assert swept == {"job-1": Lost.WORKER, "job-2": Lost.MESSAGE}


def test_what_the_sweeper_finds_to_be_cancelled_is_told(ledger: Ledger, heard: list[e.Event], clock: FakeClock) -> None:
    begin(ledger)
    ledger.cancel("job-1", reason="not wanted")
    clock.advance(seconds=31)

    (job,) = ledger.due()

    assert (job.state, job.reason) == (State.CANCELLED, "not wanted")
    assert words(heard)[-1] == "cancelled"


def test_each_run_has_a_holder_of_its_own(ledger: Ledger, clock: FakeClock) -> None:
    ledger.reserve(CHARGE)
    first = begin(ledger)
    clock.advance(seconds=31)
    second = begin(ledger)

    assert first.holder != second.holder
    assert len(first.holder) == 32
