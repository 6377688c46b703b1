"""One run, top to bottom: begin, run, settle. A reader of this file alone knows the product."""

from __future__ import annotations

import logging
import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic, sleep
from typing import Protocol, TypeVar

from oncelery.answers import Absent, Buried, Busy, Cancelled, Fenced, Finished, Granted, Later, Settled
from oncelery.errors import StoreUnavailableError
from oncelery.failpoints import failpoint
from oncelery.heartbeat import Heartbeat
from oncelery.job import Lease, Submission
from oncelery.ledger import Ledger
from oncelery.policy import Policy
from oncelery.run import Run, running
from oncelery.settlement import Outcome, Settlement, decide

_logger = logging.getLogger("oncelery")
T = TypeVar("T")

#: How long a worker waits for a store that is away, in seconds: an outcome at hand is worth waiting for.
PATIENCE = 300.0


class Call(Protocol):
    """What is to be run, as the caller of `execute` knows it."""

    submission: Submission
    policy: Policy
    worker: str

    def body(self) -> bytes:
        """Write the message that would start this job again; asked only if the ledger knows nothing of it."""

    def run(self, run: Run, body: bytes | None) -> Outcome:
        """Run the task, with the payload of `body` where one is given; never raises an Exception."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The run ended and its settlement is recorded."""

    run: Run
    outcome: Outcome
    settlement: Settlement
    answer: Settled


@dataclass(frozen=True, slots=True)
class Superseded:
    """The run ended, but the job was no longer its own: nothing of it is recorded."""

    lease: Lease
    answer: Fenced


def execute(
    ledger: Ledger, heartbeat: Heartbeat, call: Call
) -> Ended | Superseded | Finished | Buried | Busy | Later | Cancelled:
    """Run a job if it is ours to run, and record what became of it; else say why not."""
    failpoint("before-begin")
    granted = _begin(ledger, call)
    if not isinstance(granted, Granted):
        return granted
    failpoint("after-begin")
    run = Run(ledger, granted.lease, recovered=granted.recovered, steps=granted.steps)
    with heartbeat.watch(run), running(run):
        outcome = call.run(run, granted.body)
    failpoint("before-settle")
    settlement = decide(outcome, call.policy, granted.lease, jitter=random.random())  # noqa: S311 - a delay, no secret
    # Settle before the ack: a crash between the two redelivers, and begin() then answers Finished.
    answer = insist(lambda: ledger.settle(granted.lease, settlement))
    failpoint("after-settle")
    if isinstance(answer, Fenced):
        return Superseded(granted.lease, answer)
    return Ended(run, outcome, settlement, answer)


def _begin(ledger: Ledger, call: Call) -> Granted | Finished | Buried | Busy | Later | Cancelled:
    # One holder for all tries: a grant whose answer was lost is given again.
    holder = secrets.token_hex(16)

    def begin(body: bytes | None) -> Granted | Finished | Buried | Busy | Later | Cancelled | Absent:
        return ledger.begin(replace(call.submission, body=body), call.policy, worker=call.worker, holder=holder)

    answer = insist(lambda: begin(None))
    if isinstance(answer, Absent):
        body = call.body()
        answer = insist(lambda: begin(body))
    assert not isinstance(answer, Absent)  # noqa: S101 - with a body at hand, an unknown job is accepted
    return answer


def insist(ask: Callable[[], T]) -> T:
    """Ask until the store answers. Every verb may be repeated, and a run whose outcome is unknown must not be acked."""
    deadline = monotonic() + PATIENCE
    pause = 0.1
    while True:
        try:
            return ask()
        except StoreUnavailableError as error:
            if monotonic() > deadline:
                raise
            _logger.warning("the store does not answer, asking again in %.1f s: %s", pause, error)
        sleep(pause * (1 + random.random()))  # noqa: S311 - spreads the workers that wait
        pause = min(pause * 2, 5.0)
