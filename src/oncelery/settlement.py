"""How a run ends: what happened to it, and the settlement that follows. Pure; the store applies it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, assert_never

from msgspec import Struct

from oncelery.codec import escaped
from oncelery.errors import JobCancelledError, OutcomeUnknownError
from oncelery.job import Cause, Failure, Reason

if TYPE_CHECKING:
    from oncelery.job import Lease
    from oncelery.policy import Policy

# What a run did.


class Returned(Struct, frozen=True):
    """The body returned; `result` is its value, encoded."""

    result: bytes
    #: The task that does the rest of the work, if the body was replaced by one; packed.
    replaced_by: bytes | None = None
    #: Why the value is not kept; empty if it is.
    omitted: str = ""


class Raised(Struct, frozen=True):
    """The body raised; `failure` is the error as text."""

    error: BaseException
    failure: Failure


class Postponed(Struct, frozen=True):
    """The task asked to go on later (`self.retry`), perhaps with another message body."""

    delay: timedelta
    failure: Failure | None = None
    body: bytes | None = None


class Interrupted(Struct, frozen=True):
    """The worker is stopping; the body did not end of its own."""


Outcome = Returned | Raised | Postponed | Interrupted

# What becomes of its job.


class Complete(Struct, frozen=True, kw_only=True):
    """Record the result: it answers duplicates for the job's retention and stays readable for its history.

    A run that finished is completed, whatever becomes of its result.
    """

    result: bytes
    #: What took the place of the task, and why its result is not kept. Beside the result, never in it: no value that
    #: a task returns may be read as either.
    replaced_by: bytes | None = None
    omitted: str = ""


class Release(Struct, frozen=True, kw_only=True):
    """Back to the queue for `delay`. A handback gives its attempt back; a crash counts against `max_crashes`."""

    cause: Cause
    delay: timedelta = timedelta(0)
    error: Failure | None = None
    #: The body to go on with, where the run has changed it.
    body: bytes | None = None


class Bury(Struct, frozen=True, kw_only=True):
    """A dead letter, kept until a person revives or discards it."""

    reason: Reason
    error: Failure | None = None


class Cancel(Struct, frozen=True, kw_only=True):
    """Ended by request; readable for the job's history."""

    reason: str


Settlement = Complete | Release | Bury | Cancel


def decide(outcome: Outcome, policy: Policy, lease: Lease, *, jitter: float) -> Settlement:
    """Choose what becomes of the job; touches nothing. `jitter` is a draw from [0, 1)."""
    match outcome:
        case Returned(result, replaced_by, omitted):
            return Complete(result=result, replaced_by=replaced_by, omitted=omitted)
        case Raised(JobCancelledError() as error):
            # Escaped: a store refuses a lone surrogate, and the job would never be settled.
            return Cancel(reason=escaped(str(error)))
        case Raised(OutcomeUnknownError(), failure):
            return Bury(reason=Reason.OUTCOME_UNKNOWN, error=failure)
        case Raised(error, failure):
            return _decide_failure(error, failure, policy, lease, jitter)
        case Postponed(delay, failure, body):
            return Release(cause=Cause.RETRY, delay=delay, error=failure, body=body)
        case Interrupted():
            return Release(cause=Cause.HANDBACK)
        case _:
            assert_never(outcome)


def _decide_failure(
    error: BaseException, failure: Failure, policy: Policy, lease: Lease, jitter: float
) -> Release | Bury:
    if isinstance(error, policy.bury_on) or not isinstance(error, policy.retry_on):
        return Bury(reason=Reason.FAILED, error=failure)
    # Crashes have a budget of their own (`max_crashes`).
    failures = lease.attempt - lease.crashes
    if failures >= policy.max_attempts:
        return Bury(reason=Reason.EXHAUSTED, error=failure)
    return Release(cause=Cause.RETRY, delay=policy.backoff.after(failures, jitter), error=failure)
