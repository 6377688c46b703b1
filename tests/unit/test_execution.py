"""One run, against a store that answers late or has lost the job; without Celery."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta

import pytest
from msgspec.structs import replace

from oncelery.answers import Busy, Finished, RenewAnswer, SettleAnswer, Settled
from oncelery.errors import StoreUnavailableError
from oncelery.events import Event
from oncelery.execution import Ended, execute
from oncelery.heartbeat import Heartbeat
from oncelery.job import Cause, Lease, State, Submission
from oncelery.ledger import Ledger
from oncelery.policy import Policy
from oncelery.run import Run
from oncelery.settlement import Complete, Outcome, Postponed, Release, Returned, Settlement
from oncelery.stores.memory import MemoryStore

#: As long as a machine that is busy may take.
LONG = 30

LEASE = timedelta(seconds=1)
SUBMISSION = Submission(id="job-1", key="a" * 64, task="charge")


class Errand:
    """A call that does what a test says, and returns or is tried again."""

    worker = "here"

    def __init__(
        self, does: Callable[[Run], object] = lambda _: None, *, outcome: Outcome | None = None, **policy: timedelta
    ) -> None:
        self.policy = Policy(lease=LEASE, retention=timedelta(0), history=policy.get("history", timedelta(hours=1)))
        self.submission = replace(SUBMISSION, retention=self.policy.retention, history=self.policy.history)
        self.outcome = outcome or Returned(b"done")
        self.does = does
        self.held: list[Lease] = []

    def body(self) -> bytes:
        return b"message"

    def holding(self, lease: Lease) -> AbstractContextManager[None]:
        self.held.append(lease)
        return nullcontext()

    def hold_instead(self, lease: Lease) -> None:
        self.held.append(lease)

    def written(self, _: object) -> bytes:
        return b"written"

    def run(self, run: Run, body: bytes | None) -> Outcome:  # noqa: ARG002 - the protocol's
        self.does(run)
        return self.outcome


class Ending(MemoryStore):
    """A store at which a renewal waits until the run has settled, and the settlement's reply until that is answered."""

    def __init__(self) -> None:
        super().__init__()
        self.renewing, self.settled, self.noted = threading.Event(), threading.Event(), threading.Event()

    def renew(self, leases: Sequence[Lease]) -> Sequence[RenewAnswer]:
        self.renewing.set()
        assert self.settled.wait(LONG)
        return super().renew(leases)

    def settle(self, lease: Lease, settlement: Settlement) -> SettleAnswer:
        answer = super().settle(lease, settlement)
        self.settled.set()
        assert self.noted.wait(LONG)
        return answer


@pytest.mark.parametrize(
    ("outcome", "history"),
    [(Returned(b"done"), 3600), (Returned(b"done"), 0), (Postponed(timedelta(0)), 3600)],
    ids=["completed", "completed and forgotten at once", "released"],
)
def test_a_renewal_that_waits_at_the_store_while_its_run_ends_is_no_lost_lease(
    outcome: Outcome, history: float
) -> None:
    store = Ending()
    ledger, heard = Ledger(store), list[str]()
    ledger.events.subscribe(lambda event: heard.append(event.decision))
    errand = Errand(lambda _: store.renewing.wait(LONG), outcome=outcome, history=timedelta(seconds=history))

    ended = execute(ledger, Heartbeat(ledger, renewed=store.noted.set), errand)

    assert isinstance(ended, Ended)
    assert heard == ["began", "completed" if outcome == Returned(b"done") else "released"]


# A ledger that has lost the job of a run


class Fleeting:
    """A ledger that forgets all it knows when a test says so, as by a fail-over."""

    def __init__(self) -> None:
        self.ledger = Ledger(MemoryStore())
        self.heard: list[Event] = []
        self.ledger.events.subscribe(self.heard.append)

    def forget(self, *_: object) -> None:
        self.ledger.store = MemoryStore()

    def execute(self, errand: Errand) -> object:
        return execute(self.ledger, Heartbeat(self.ledger), errand)

    @property
    def words(self) -> list[str]:
        return [event.decision for event in self.heard]


@pytest.fixture
def fleeting() -> Fleeting:
    return Fleeting()


def test_a_run_whose_job_the_ledger_has_lost_is_recorded_and_completed(fleeting: Fleeting) -> None:
    errand = Errand(fleeting.forget)

    ended = fleeting.execute(errand)

    assert isinstance(ended, Ended)
    assert ended.answer == Settled(State.COMPLETED)
    assert fleeting.words == ["began", "restored", "completed"]
    job = fleeting.ledger.get("job-1")
    assert job
    assert job.result == b"done"
    assert [lease.fence for lease in errand.held] == sorted({lease.fence for lease in errand.held})
    assert errand.held[-1].fence == job.fence


def test_a_run_whose_job_the_ledger_has_lost_leaves_it_to_its_next_run(fleeting: Fleeting) -> None:
    fleeting.execute(Errand(fleeting.forget, outcome=Postponed(timedelta(0))))

    job = fleeting.ledger.get("job-1")
    assert job
    assert (job.state, job.body) == (State.QUEUED, b"message")


def test_the_heartbeat_records_a_job_again_that_the_ledger_has_lost(fleeting: Fleeting) -> None:
    restored = threading.Event()
    fleeting.ledger.events.subscribe(lambda event: restored.set() if event.decision == "restored" else None)

    def work(run: Run) -> None:
        run.step("first", lambda: 1)
        fleeting.forget()
        assert restored.wait(LONG)

    ended = fleeting.execute(Errand(work))

    assert isinstance(ended, Ended)
    assert fleeting.words == ["began", "restored", "completed"]
    job = fleeting.ledger.get("job-1")
    assert job
    assert job.steps == {"first": b"1"}


@pytest.mark.parametrize("settlement", [None, Complete(result=b"theirs"), Release(cause=Cause.RETRY)])
def test_a_run_whose_job_was_lost_and_then_given_to_another_is_answered_as_any_duplicate(
    fleeting: Fleeting, settlement: Settlement | None
) -> None:
    def lose_to_another(_: Run) -> None:
        fleeting.forget()
        other = replace(SUBMISSION, id="job-2", body=b"message", retention=timedelta(hours=1))
        granted = fleeting.ledger.begin(other, Policy())
        if settlement:
            fleeting.ledger.settle(granted.lease, settlement)  # type: ignore[union-attr] # nobody else has the key

    answer = fleeting.execute(Errand(lose_to_another))

    assert isinstance(answer, Finished if isinstance(settlement, Complete) else Busy)
    assert answer.job.id == "job-2"
    assert fleeting.ledger.get("job-1") is None
    assert fleeting.words[-1] == "fenced"


def test_an_outcome_that_the_store_cannot_keep_is_not_taken_for_recorded(
    fleeting: Fleeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncelery.run.PATIENCE", 0.0)

    def go_away(_: Run) -> None:
        fleeting.forget()
        monkeypatch.setattr(fleeting.ledger, "begin", away)

    with pytest.raises(StoreUnavailableError):
        fleeting.execute(Errand(go_away))


def away(*_: object, **__: object) -> None:
    raise StoreUnavailableError
