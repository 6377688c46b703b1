"""One run, top to bottom: begin, run, settle. A reader of this file alone knows the product."""

from __future__ import annotations

import os
import random
from contextlib import AbstractContextManager
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from oncelery.answers import Absent, Buried, Busy, Cancelled, Fenced, Finished, Granted, Later, Settled
from oncelery.errors import OnceleryError
from oncelery.failpoints import failpoint
from oncelery.heartbeat import Heartbeat
from oncelery.job import Job, Lease, State, Submission
from oncelery.ledger import Ledger
from oncelery.policy import Policy
from oncelery.run import Run, insist, running
from oncelery.settlement import Outcome, Settlement, decide


class Call(Protocol):
    """What is to be run, as the caller of `execute` knows it."""

    submission: Submission
    policy: Policy
    worker: str

    def body(self) -> bytes:
        """Write the message that would start this job again; asked only if the ledger knows nothing of it."""

    def holding(self, lease: Lease) -> AbstractContextManager[None]:
        """Show the lease, from begin to settle, to whoever lets go of it if this process dies."""

    def written(self, value: object) -> bytes:
        """Write a value as the job's result."""

    def run(self, run: Run, body: bytes | None) -> Outcome:
        """Run the task, with the payload of `body` where one is given; never raises an Exception."""


class Ended(Struct, frozen=True):
    """The run ended and its settlement is recorded."""

    run: Run
    outcome: Outcome
    settlement: Settlement
    answer: Settled


class Committed(Struct, frozen=True):
    """The run's own transaction has completed the job, though the reply to its commit was lost."""

    job: Job


class Superseded(Struct, frozen=True):
    """The run ended, but the job was no longer its own: nothing of it is recorded."""


def execute(
    ledger: Ledger, heartbeat: Heartbeat, call: Call
) -> Ended | Committed | Superseded | Finished | Buried | Busy | Later | Cancelled:
    """Run a job if it is ours to run, and record what became of it; else say why not."""
    failpoint("before-begin")
    granted = _begin(ledger, call)
    if not isinstance(granted, Granted):
        return granted
    run = Run(
        ledger,
        granted.lease,
        recovered=granted.recovered,
        steps=granted.steps,
        write=call.written,
        keep=call.policy.history,
    )
    with call.holding(granted.lease), heartbeat.renewing(run):
        failpoint("after-begin")
        with running(run):
            outcome = call.run(run, granted.body)
        failpoint("before-settle")
        settlement = decide(outcome, call.policy, granted.lease, jitter=random.random())  # noqa: S311 - no secret
        # Settle before the ack: a crash between the two redelivers, and begin() then answers Finished.
        settled = run.effect.settled if run.effect else None
        answer = settled or _settle(ledger, granted.lease, settlement)
    failpoint("after-settle")
    if isinstance(answer, Fenced):
        return _committed(run) or Superseded()
    return Ended(run, outcome, settlement, answer)


def _committed(run: Run) -> Committed | None:
    """Look whether a commit in doubt has taken effect; `settle`, which comes before, waits for the end of one."""
    job = insist(run.ledger.get, run.job_id) if run.in_doubt else None
    return Committed(job) if job and job.state is State.COMPLETED and job.holder == run.lease.holder else None


def _settle(ledger: Ledger, lease: Lease, settlement: Settlement) -> Settled | Fenced:
    try:
        return insist(ledger.settle, lease, settlement)
    except OnceleryError:
        raise
    except BaseException:  # a time limit of gevent's, or the end of this process: the effect must not be had twice
        insist(ledger.settle, lease, settlement)
        raise


def _begin(ledger: Ledger, call: Call) -> Granted | Finished | Buried | Busy | Later | Cancelled:
    # One holder for all tries: a grant whose answer was lost is given again.
    holder = os.urandom(16).hex()
    answer = insist(ledger.begin, call.submission, call.policy, worker=call.worker, holder=holder)
    if isinstance(answer, Absent):
        submission = replace(call.submission, body=call.body())
        answer = insist(ledger.begin, submission, call.policy, worker=call.worker, holder=holder)
    assert not isinstance(answer, Absent)  # noqa: S101 - with a body at hand, an unknown job is accepted
    return answer
