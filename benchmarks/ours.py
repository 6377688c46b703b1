"""Oncelery, from the ledger down: what a publisher and a worker do for one call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self
from uuid import uuid4

from oncelery.fingerprint import fingerprint

from benchmarks.calls import BODY, RESULT, TASK, Call, calls
from oncelery.answers import Existing, Granted, Reserved, Settled
from oncelery.job import Lease, Submission
from oncelery.ledger import Ledger
from oncelery.policy import Policy
from oncelery.settlement import Complete, Settlement
from oncelery.stores import open_store

POLICY = Policy()


class Oncelery:
    """A publisher and a worker on one store. Keys are made inside what is timed, as the recipe makes its own."""

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

    def reserved(self, number: int) -> Iterator[tuple[str, Call]]:
        """Accept so many jobs, and give what their messages carry: the id and the call."""
        for call in calls(number):
            yield self.reserve(call).id, call

    def begin(self, delivery: tuple[str, Call]) -> Lease:
        """Begin to run a message that the broker delivered."""
        job_id, call = delivery
        answer = self.ledger.begin(Submission(id=job_id, key=fingerprint(TASK, call), task=TASK), POLICY)
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

    def run(self, delivery: tuple[str, Call]) -> None:
        """Guard one run: begin, (run,) complete."""
        self.complete(self.begin(delivery))

    def guard(self, call: Call) -> None:
        """Do all of it: reserve, begin, (run,) complete."""
        self.run((self.reserve(call).id, call))

    def answer(self, call: Call) -> None:
        """Reserve a call again; the key's job is the answer."""
        answer = self.ledger.reserve(submit(call))
        assert isinstance(answer, Existing), answer


def submit(call: Call) -> Submission:
    """Make what a publisher submits for a call."""
    return Submission(id=str(uuid4()), key=fingerprint(TASK, call), task=TASK, body=BODY)
