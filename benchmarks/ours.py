"""Oncelery, from the ledger down: what a publisher and a worker do for one call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self
from uuid import uuid4

from benchmarks.calls import BODY, RESULT, TASK, Call, calls, charge
from oncelery.answers import Existing, Granted, Reserved, Settled
from oncelery.fingerprint import Identity
from oncelery.job import Lease, Submission
from oncelery.ledger import Ledger
from oncelery.policy import Policy
from oncelery.settlement import Complete, Settlement
from oncelery.stores import open_store

POLICY = Policy()
IDENTITY = Identity(TASK, charge)

#: As Celery names them: who submits, and who runs.
CALLER = "shop@web-7c9f8d6b5-x2x4z"
WORKER = "celery@shop-worker-5d8c7b9f6-q8k2m:17"


class Oncelery:
    """A publisher, which makes the key, and a worker, which finds it in the message; on one store."""

    def __init__(self, url: str) -> None:
        self.ledger = Ledger(open_store(url))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.ledger.store.close()

    def reserve(self, call: Call) -> Submission:
        """Accept a job for a call that is new."""
        submission = submit(call)
        answer = self.ledger.reserve(submission)
        assert isinstance(answer, Reserved), answer
        return submission

    def reserved(self, number: int) -> Iterator[Submission]:
        """Accept so many jobs."""
        return map(self.reserve, calls(number))

    def begin(self, job: Submission) -> Lease:
        """Begin to run a job, of which the message has the id and the key."""
        message = Submission(id=job.id, key=job.key, task=TASK, caller=CALLER)
        answer = self.ledger.begin(message, POLICY, worker=WORKER)
        assert isinstance(answer, Granted), answer
        return answer.lease

    def settle(self, lease: Lease, settlement: Settlement) -> Settled:
        """End a run that is ours."""
        answer = self.ledger.settle(lease, settlement)
        assert isinstance(answer, Settled), answer
        return answer

    def complete(self, lease: Lease) -> None:
        """Record that a run returned nothing."""
        self.settle(lease, Complete(result=RESULT))

    def run(self, job: Submission) -> None:
        """Guard one run: begin, (run,) complete."""
        self.complete(self.begin(job))

    def guard(self, call: Call) -> None:
        """Do all of it: reserve, begin, (run,) complete."""
        self.run(self.reserve(call))

    def answer(self, call: Call) -> None:
        """Reserve a call again; the key's job is the answer."""
        answer = self.ledger.reserve(submit(call))
        assert isinstance(answer, Existing), answer


def submit(call: Call) -> Submission:
    """Make what a publisher submits for a call."""
    return Submission(id=str(uuid4()), key=IDENTITY.of((), call).key, task=TASK, caller=CALLER, body=BODY)
