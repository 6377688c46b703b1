from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from oncelery.answers import Granted
from oncelery.codec import decode, encode
from oncelery.errors import JobCancelledError
from oncelery.job import Progress, Submission
from oncelery.ledger import Ledger
from oncelery.policy import Policy
from oncelery.run import Run
from oncelery.stores.memory import MemoryStore


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
    run.renewed(ledger.renew([run.lease])[0])

    with pytest.raises(JobCancelledError):
        run.progress(2, 3)


def test_a_key_may_be_named_after_a_file_whose_name_is_not_utf_8() -> None:
    run = begun(Ledger(MemoryStore()))

    keys = {run.idempotency_key(name) for name in ("caf\udce9", "caf\\udce9", "caf")}

    assert len(keys) == 3


def begun(ledger: Ledger) -> Run:
    granted = ledger.begin(Submission(id="job-1", key="a" * 64, task="count", body=b"{}"), Policy())
    assert isinstance(granted, Granted)
    return Run(ledger, granted.lease, recovered=False, steps={})
