from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from oncelery.errors import JobCancelledError
from oncelery.job import Cause, Failure, Lease, Reason
from oncelery.policy import Backoff, Policy
from oncelery.settlement import (
    Bury,
    Cancel,
    Complete,
    Interrupted,
    Outcome,
    Postponed,
    Raised,
    Release,
    Returned,
    decide,
)

LEASE = Lease(
    job_id="job",
    key="0" * 64,
    task="shop.charge",
    scope="",
    holder="h",
    fence=1,
    attempt=1,
    crashes=0,
    until=datetime(2030, 1, 1, tzinfo=UTC),
    duration=timedelta(seconds=30),
)
FAILURE = Failure(type="TimeoutError", message="no answer")
POLICY = Policy(retry_on=(TimeoutError,), bury_on=(ConnectionError,), max_attempts=3)


class GatewayTimeoutError(TimeoutError, ConnectionError):
    """Listed on both sides, by its two bases."""


def raised(error: BaseException) -> Raised:
    return Raised(error, FAILURE)


@pytest.mark.parametrize(
    ("outcome", "settlement"),
    [
        (Returned(b"7"), Complete(result=b"7")),
        (raised(ValueError()), Bury(reason=Reason.FAILED, error=FAILURE)),
        (raised(ConnectionError()), Bury(reason=Reason.FAILED, error=FAILURE)),
        (raised(GatewayTimeoutError()), Bury(reason=Reason.FAILED, error=FAILURE)),
        (raised(TimeoutError()), Release(cause=Cause.RETRY, delay=timedelta(seconds=0.5), error=FAILURE)),
        (raised(JobCancelledError("by ops")), Cancel(reason="by ops")),
        (raised(JobCancelledError("no \udcff.csv")), Cancel(reason="no \\udcff.csv")),
        (Postponed(timedelta(minutes=3)), Release(cause=Cause.RETRY, delay=timedelta(minutes=3))),
        (Interrupted(), Release(cause=Cause.HANDBACK)),
    ],
)
def test_each_outcome_has_its_settlement(outcome: Outcome, settlement: object) -> None:
    assert decide(outcome, POLICY, LEASE, jitter=0.5) == settlement


def test_the_last_attempt_is_buried_as_exhausted() -> None:
    last = replace(LEASE, attempt=3)

    assert decide(raised(TimeoutError()), POLICY, last, jitter=0.5) == Bury(reason=Reason.EXHAUSTED, error=FAILURE)


def test_attempts_that_crashed_do_not_use_up_the_retries() -> None:
    third_after_two_crashes = replace(LEASE, attempt=3, crashes=2)

    assert isinstance(decide(raised(TimeoutError()), POLICY, third_after_two_crashes, jitter=0.5), Release)


@pytest.mark.parametrize("factor", [1.1, 2.0, 1e5])
def test_backoff_comes_to_its_most_and_stays_there_whatever_its_factor(factor: float) -> None:
    backoff = Backoff(factor=factor)

    assert [backoff.after(n, 1.0) for n in (100, 1_000, 100_000)] == [backoff.most] * 3


def test_backoff_doubles_up_to_its_most_and_is_drawn_from_the_whole_range() -> None:
    backoff = Backoff(first=timedelta(seconds=2), most=timedelta(seconds=10))

    assert [backoff.after(n, 1.0).total_seconds() for n in (1, 2, 3, 4, 5000)] == [2, 4, 8, 10, 10]
    assert backoff.after(3, 0.0) == timedelta(0)
