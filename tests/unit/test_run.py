from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest
from msgspec.structs import replace

from oncelery.answers import Absent, Busy, Declined, Granted, Settled
from oncelery.codec import decode, encode
from oncelery.errors import JobCancelledError, LeaseLostError, StoreUnavailableError
from oncelery.events import Event
from oncelery.job import Cause, Progress, State, Submission
from oncelery.ledger import Ledger
from oncelery.policy import Policy
from oncelery.run import Run
from oncelery.settlement import Complete, Release
from oncelery.stores.memory import MemoryStore
from oncelery.testing.clock import FakeClock


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ((1, 3, "first", "one"), Progress(done=1, total=3, stage="first", message="one")),
        ((nan, 3), Progress(done=0, total=3)),
        ((2, inf), Progress(done=2)),
        ((-inf, nan), Progress(done=0)),
        ((10**400, None), Progress(done=0)),
        ((True, 1), Progress(done=1, total=1)),
        ((1, 3, 1, 2), Progress(done=1, total=3, stage="1", message="2")),
    ],
)
def test_whatever_progress_is_said_can_be_read_again(said: tuple[Any, ...], told: Progress) -> None:
    ledger = Ledger(MemoryStore())

    begun(ledger).progress(*said)

    job = ledger.get("job-1")
    assert job
    assert job.progress == told == decode(encode(job.progress), Progress)


def test_progress_said_too_soon_to_be_written_stops_a_run_that_is_cancelled() -> None:
    ledger = Ledger(MemoryStore())
    run = begun(ledger)
    run.progress(1, 3)
    ledger.cancel("job-1", reason="enough")
    run.renewed(run.lease, ledger.renew([run.lease])[0])

    with pytest.raises(JobCancelledError):
        run.progress(2, 3)


def test_a_key_may_be_named_after_a_file_whose_name_is_not_utf_8() -> None:
    run = begun(Ledger(MemoryStore()))

    keys = {run.idempotency_key(name) for name in ("caf\udce9", "caf\\udce9", "caf")}

    assert len(keys) == 3


def test_a_superseded_run_is_told_once_however_often_it_asks() -> None:
    clock = FakeClock()
    ledger, heard = Ledger(MemoryStore(clock=clock)), list[Event]()
    ledger.events.subscribe(heard.append)
    run = begun(ledger)
    clock.advance(seconds=31)
    begun(ledger)

    run.renewed(run.lease, ledger.renew([run.lease])[0])
    with pytest.raises(LeaseLostError):
        run.progress(1, 2)
    with pytest.raises(LeaseLostError):
        run.step("pay", int)

    assert [event.decision for event in heard] == ["began", "began", "fenced"]


# A ledger that has lost the job of a run


@pytest.fixture
def forgetful() -> Ledger:
    return Ledger(MemoryStore())


def forget_everything(ledger: Ledger) -> None:
    ledger.store = MemoryStore()


@pytest.mark.parametrize("undone", ["the job", "its beginning"])
@pytest.mark.parametrize("verb", ["renewal", "progress", "step", "settlement"])
def test_a_run_whose_job_the_ledger_has_lost_records_it_again_and_goes_on(
    forgetful: Ledger, undone: str, verb: str
) -> None:
    run = begun(forgetful)
    run.step("first", lambda: 1)
    lost = run.lease
    forget_everything(forgetful)
    if undone == "its beginning":
        forgetful.reserve(SUBMISSION)

    match verb:
        case "renewal":
            run.renewed(lost, forgetful.renew([lost])[0])
        case "progress":
            run.progress(1, 2)
        case "step":
            run.step("second", lambda: 2)
        case "settlement":
            assert run.settle(Complete(result=b"done")) == Settled(State.COMPLETED)

    job = forgetful.get("job-1")
    assert job
    assert (job.holder, job.fence) == (lost.holder, run.fence)
    assert (job.state, job.body) == ((State.COMPLETED, None) if verb == "settlement" else (State.RUNNING, b"{}"))
    assert job.steps == ({"first": b"1", "second": b"2"} if verb == "step" else {"first": b"1"})
    assert run.fence > lost.fence
    assert not run.lost


def test_a_run_is_recorded_again_as_the_attempt_it_is_and_with_the_cancel_that_it_knows_of(forgetful: Ledger) -> None:
    first = begun(forgetful)
    first.settle(Release(cause=Cause.RETRY))
    run = begun(forgetful)
    forgetful.cancel("job-1")
    run.renewed(run.lease, forgetful.renew([run.lease])[0])
    forget_everything(forgetful)

    assert run.settle(Release(cause=Cause.RETRY)) == Settled(State.CANCELLED)
    assert run.attempt == 2


@pytest.mark.parametrize("verb", ["begin", "record", "cancel"])
def test_a_run_that_was_half_recorded_again_goes_on_when_the_store_is_back(
    forgetful: Ledger, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    run = begun(forgetful)
    run.step("first", lambda: 1)
    forgetful.cancel("job-1")
    run.renewed(run.lease, forgetful.renew([run.lease])[0])
    forget_everything(forgetful)

    ask = getattr(forgetful, verb)

    def lose_the_reply(*args: Any, **options: Any) -> None:  # noqa: ANN401 - whatever the verb takes
        ask(*args, **options)
        raise StoreUnavailableError

    with monkeypatch.context() as patch:
        patch.setattr(forgetful, verb, lose_the_reply)
        with pytest.raises(StoreUnavailableError):
            run.settle(Release(cause=Cause.RETRY))

    assert run.settle(Release(cause=Cause.RETRY)) == Settled(State.CANCELLED)
    job = forgetful.get("job-1")
    assert job
    assert job.steps == {"first": b"1"}


def test_a_run_whose_job_was_lost_and_is_another_s_by_now_ends(forgetful: Ledger) -> None:
    run = begun(forgetful)
    forget_everything(forgetful)
    other = begun(forgetful, job_id="job-2")

    with pytest.raises(LeaseLostError):
        run.progress(1, 2)

    assert isinstance(run.declined, Busy)
    assert run.declined.job.id == "job-2"
    assert not other.lost
    assert forgetful.get("job-1") is None


def test_task_and_heartbeat_that_both_find_the_job_lost_record_it_once(forgetful: Ledger) -> None:
    run = begun(forgetful)
    lost = run.lease
    forget_everything(forgetful)
    heard: list[Event] = []
    forgetful.events.subscribe(heard.append)
    answer = forgetful.renew([lost])[0]

    run.progress(1, 2)
    run.renewed(lost, answer)
    # A renewal that was under way when the job was recorded again is fenced by that.
    run.renewed(lost, forgetful.renew([lost])[0])

    assert not run.lost
    assert [event.decision for event in heard] == ["restored"]


def test_a_store_that_keeps_nothing_is_as_good_as_away(forgetful: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    run = begun(forgetful)
    monkeypatch.setattr(forgetful, "settle", lambda *_: Absent())

    with pytest.raises(StoreUnavailableError):
        run.settle(Complete(result=b"done"))


SUBMISSION = Submission(id="job-1", key="a" * 64, task="count", body=b"{}")


def begun(ledger: Ledger, job_id: str = "job-1") -> Run:
    submission, policy = replace(SUBMISSION, id=job_id), Policy()
    granted = ledger.begin(submission, policy)
    assert isinstance(granted, Granted)

    def begin(ledger: Ledger) -> Granted | Declined | Absent:
        return ledger.begin(submission, policy, holder=granted.lease.holder, restores=True)

    return Run(ledger, granted.lease, recovered=False, steps=granted.steps, begin=begin)
