"""One run, top to bottom: begin, run, settle. A reader of this file alone knows the product."""

from __future__ import annotations

import os
import random
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from oncelery.answers import Absent, Declined, Fenced, Granted, Settled
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
        """Write the message that would start this job again, in any thread; only if the ledger knows nothing of it."""

    def holding(self, lease: Lease) -> AbstractContextManager[None]:
        """Show the lease, from begin to settle, to the process that releases it if this one dies."""

    def hold_instead(self, lease: Lease) -> None:
        """Show the lease under which the job was recorded again."""

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


#: What may come of a delivery.
Execution = Ended | Committed | Superseded | Declined


def execute(ledger: Ledger, heartbeat: Heartbeat, call: Call) -> Execution:
    """Run a job if it is ours to run, and record what became of it; else say why not."""
    failpoint("before-begin")
    # One holder for all tries: a grant whose answer was lost is given again.
    holder = os.urandom(16).hex()
    granted = _begin(ledger, call, holder)
    if not isinstance(granted, Granted):
        return granted
    run = Run(
        ledger,
        granted.lease,
        recovered=granted.recovered,
        steps=granted.steps,
        begin=partial(_begin_again, call, holder),
        write=call.written,
        keep=call.policy.history,
    )
    with call.holding(granted.lease), heartbeat.renewing(run):
        failpoint("after-begin")
        with running(run):
            outcome = call.run(run, granted.body)
        failpoint("before-settle")
        settlement = decide(outcome, call.policy, run.lease, jitter=random.random())  # noqa: S311 - no secret
        # Settle before the ack: a crash between the two redelivers, and begin() then answers Finished.
        settled = run.effect.settled if run.effect else None
        answer = settled or run.declined or _settle(run, settlement)
    failpoint("after-settle")
    return Ended(run, outcome, settlement, answer) if isinstance(answer, Settled) else _superseded(run, answer)


def _begin(ledger: Ledger, call: Call, holder: str) -> Granted | Declined:
    answer = insist(ledger.begin, call.submission, call.policy, worker=call.worker, holder=holder)
    if isinstance(answer, Absent):
        submission = replace(call.submission, body=call.body())
        answer = insist(ledger.begin, submission, call.policy, worker=call.worker, holder=holder)
    assert not isinstance(answer, Absent)  # noqa: S101 - with a body at hand, an unknown job is accepted
    return answer


def _begin_again(call: Call, holder: str, ledger: Ledger) -> Granted | Declined:
    """Record a run whose job the ledger has lost. Nobody else has it: to give it up would lose it for good."""
    submission = replace(call.submission, body=call.body())
    answer = ledger.begin(submission, call.policy, worker=call.worker, holder=holder, restores=True)
    assert not isinstance(answer, Absent)  # noqa: S101 - as above
    if isinstance(answer, Granted):
        call.hold_instead(answer.lease)
    return answer


def _settle(run: Run, settlement: Settlement) -> Settled | Fenced | Declined | Absent:
    try:
        return insist(run.settle, settlement)
    except OnceleryError:
        raise
    except BaseException:  # a time limit of gevent's, or the end of this process: the effect must not be had twice
        insist(run.settle, settlement)
        raise


def _superseded(run: Run, answer: Fenced | Declined | Absent) -> Committed | Superseded | Declined:
    if committed := _committed(run):
        return committed
    run.lose()
    return Superseded() if isinstance(answer, Fenced | Absent) else answer


def _committed(run: Run) -> Committed | None:
    """Look whether a commit in doubt has taken effect; `settle`, which comes before, waits for the end of one."""
    job = insist(run.ledger.get, run.job_id) if run.in_doubt else None
    return Committed(job) if job and job.state is State.COMPLETED and job.holder == run.lease.holder else None
