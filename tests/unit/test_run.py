from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from oncelery.answers import Granted
from oncelery.codec import decode, encode
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
    granted = ledger.begin(Submission(id="job-1", key="a" * 64, task="count", body=b"{}"), Policy())
    assert isinstance(granted, Granted)

    Run(ledger, granted.lease, recovered=False, steps={}).progress(*said)

    job = ledger.get("job-1")
    assert job
    assert job.progress == told == decode(encode(job.progress), Progress)
