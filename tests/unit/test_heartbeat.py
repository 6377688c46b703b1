from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from time import monotonic

import pytest

from oncelery.answers import Granted, RenewAnswer
from oncelery.heartbeat import Heartbeat
from oncelery.job import Lease, Submission
from oncelery.ledger import Ledger
from oncelery.policy import Policy
from oncelery.run import Run
from oncelery.stores.memory import MemoryStore

#: As long as a machine that is busy may take.
LONG = 30


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(MemoryStore())


@pytest.fixture
def run(ledger: Ledger) -> Run:
    submission = Submission(id="job-1", key="a" * 64, task="charge", body=b"{}")
    granted = ledger.begin(submission, Policy(lease=timedelta(seconds=1)))
    assert isinstance(granted, Granted)
    return Run(ledger, granted.lease, recovered=False, steps={})


def test_whatever_goes_wrong_with_a_renewal_the_next_one_is_made(
    ledger: Ledger, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    renew, wrong, renewed = ledger.renew, [RuntimeError("can't start new thread")], threading.Event()

    def fail_once(leases: Sequence[Lease]) -> Sequence[RenewAnswer]:
        if wrong:
            raise wrong.pop()
        renewed.set()
        return renew(leases)

    monkeypatch.setattr(ledger, "renew", fail_once)

    with Heartbeat(ledger).renewing(run):
        assert renewed.wait(LONG)


def test_where_no_thread_can_be_started_the_run_is_not_watched_and_the_next_one_tries_again(
    ledger: Ledger, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed = threading.Event()
    heartbeat = Heartbeat(ledger, renewed=renewed.set)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as exhausted:
        exhausted.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            heartbeat.add(heartbeat.renewing(run))
    assert heartbeat.due(monotonic() + 1) == []

    with heartbeat.renewing(run):
        assert renewed.wait(LONG)
