"""Jobs by number, and what becomes of them."""

from __future__ import annotations

import json

from oncelery import Oncelery
from oncelery import answers as a
from oncelery.job import Job, Lease, Reason, Submission
from oncelery.policy import Policy
from oncelery.settlement import Bury
from oncelery.testing.clock import FakeClock

POLICY = Policy()


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
