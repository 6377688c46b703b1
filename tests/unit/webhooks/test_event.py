from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from oncelery.job import Failure, Job, State
from oncelery.webhooks.event import MOST_BYTES, event_of

AT = datetime(2026, 11, 15, tzinfo=UTC)
COMPLETED = Job(
    id="j-1",
    key="0" * 64,
    task="charge",
    state=State.COMPLETED,
    created_at=AT,
    changed_at=AT + timedelta(seconds=1),
)


def test_a_completed_job_is_told_with_its_result() -> None:
    event = json.loads(event_of(replace(COMPLETED, attempt=2, scope="acme"), b'{"paid":1}'))

    assert event["type"] == "job.completed"
    assert event["timestamp"] == "2026-11-15T00:00:01Z"
    told = {name: event["data"][name] for name in ("id", "task", "scope", "state", "attempts", "result")}
    assert told == {
        "id": "j-1",
        "task": "charge",
        "scope": "acme",
        "state": "completed",
        "attempts": 2,
        "result": {"paid": 1},
    }


def test_a_failed_job_is_told_with_its_error_but_without_the_traceback() -> None:
    failure = Failure(type="CardRefused", message="no", traceback='File "secret.py"')

    event = event_of(replace(COMPLETED, state=State.BURIED, reason="failed", error=failure), None)

    about = json.loads(event)["data"]
    assert (about["reason"], about["error"]) == ("failed", {"type": "CardRefused", "message": "no"})
    assert b"secret.py" not in event


def test_a_result_that_is_too_large_is_left_out_and_said_to_be() -> None:
    event = json.loads(event_of(COMPLETED, b'"' + b"a" * MOST_BYTES + b'"'))

    assert event["data"]["result_omitted"].endswith("read it with GET /jobs/j-1")
    assert "result" not in event["data"]


def test_a_result_that_was_not_kept_is_said_to_be_omitted_and_why() -> None:
    event = json.loads(event_of(replace(COMPLETED, result=b"", result_omitted="too large"), b""))

    assert event["data"]["result_omitted"] == "too large"
    assert "result" not in event["data"]
