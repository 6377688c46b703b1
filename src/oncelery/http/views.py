"""What is shown of jobs, dead letters and duplicates, and the types that describe it in the OpenAPI schema."""

from __future__ import annotations

from datetime import datetime
from hashlib import blake2b
from typing import Any, Literal

import msgspec
from typing_extensions import TypedDict

from oncelery.job import Answer, Cause, Job, State
from oncelery.job import JobSummary as Summary
from oncelery.operations.dead_letters import Fate
from oncelery.operations.jobs import Call


class ProgressView(TypedDict):
    """How far a run says it has come."""

    stage: str | None
    done: float
    total: float | None
    message: str | None


class ErrorView(TypedDict):
    """What went wrong."""

    type: str
    message: str


class FailureView(ErrorView):
    """What went wrong, and where."""

    traceback: str


class JobSummary(TypedDict):
    """One job, in a list."""

    id: str
    task: str
    scope: str
    state: State
    #: Why it was buried or cancelled.
    reason: str
    progress: ProgressView | None
    attempt: int
    crashes: int
    cancel_requested: bool
    error: ErrorView | None
    queue: str
    worker: str
    caller: str
    #: How many duplicates were answered with this job.
    duplicates: int
    created_at: datetime
    changed_at: datetime
    not_before: datetime | None
    begun_at: datetime | None
    settled_at: datetime | None
    #: Until when duplicates are answered with the result.
    retained_until: datetime | None


class JobView(JobSummary):
    """One job, with what its task returned."""

    result: Any
    #: Why the result was not kept; empty if it was.
    result_omitted: str


class AttemptView(TypedDict):
    """A run that ended without finishing its job."""

    number: int
    fence: int
    worker: str
    begun_at: datetime
    ended_at: datetime
    cause: Cause
    error: FailureView | None


class ArgumentsView(TypedDict):
    """What the task was called with."""

    args: list[Any]
    kwargs: dict[str, Any]


class DeadLetterView(JobSummary):
    """A job that nobody runs any more, with all that is known of it."""

    arguments: ArgumentsView | None
    traceback: str
    past: list[AttemptView]


class JobPage(TypedDict):
    """Some jobs, and the cursor that continues the list; empty at its end."""

    items: list[JobSummary]
    cursor: str


class DuplicateView(TypedDict):
    """One duplicate, and what it was answered."""

    at: datetime
    job_id: str
    task: str
    scope: str
    caller: str
    answer: Answer


class DuplicatePage(TypedDict):
    """Some duplicates, and the cursor that continues the list; empty at its end."""

    items: list[DuplicateView]
    cursor: str


class DuplicateCountView(TypedDict):
    """How many duplicates of a task and scope were given an answer in one hour."""

    hour: datetime
    task: str
    scope: str
    answer: Answer
    count: int


class DuplicateCountsView(TypedDict):
    """Counts, oldest first."""

    items: list[DuplicateCountView]


class ItemView(TypedDict):
    """One dead letter among many, and what became of it."""

    job_id: str
    task: str
    scope: str
    fate: Fate
    why: str


class FatesView(TypedDict):
    """What became of each dead letter; after a dry run, what would."""

    items: list[ItemView]
    dry_run: bool


class ReadinessView(TypedDict):
    """What the service can reach."""

    store: Literal["up", "down"]
    broker: Literal["up", "down"]


View = dict[str, Any]


def summary_of(job: Summary) -> View:
    """Show a job in a list: a JobSummary."""
    return {
        "id": job.id,
        "task": job.task,
        "scope": job.scope,
        "state": job.state,
        "reason": job.reason,
        "progress": job.progress,
        "attempt": job.attempt,
        "crashes": job.crashes,
        "cancel_requested": job.cancel_requested,
        "error": job.error and {"type": job.error.type, "message": job.error.message},
        "queue": job.queue,
        "worker": job.worker,
        "caller": job.caller,
        "duplicates": job.duplicates,
        "created_at": job.created_at,
        "changed_at": job.changed_at,
        "not_before": job.not_before,
        "begun_at": job.begun_at,
        "settled_at": job.settled_at,
        "retained_until": job.retained_until,
    }


def view_of(job: Job, result: object) -> View:
    """Show a job, and what its task returned: a JobView."""
    return {
        **summary_of(job),
        "result": None if result is None else plain(result),
        "result_omitted": job.result_omitted,
    }


def dead_letter_of(job: Job, call: Call | None) -> View:
    """Show a dead letter with what a person must know before reviving it: a DeadLetterView."""
    return {
        **summary_of(job),
        "arguments": call and {"args": plain(call.args), "kwargs": plain(call.kwargs)},
        "traceback": job.error.traceback if job.error else "",
        "past": job.past,
    }


def plain(value: object) -> Any:  # noqa: ANN401 - any JSON
    """Turn a value of a task into JSON's types; what has no such form, into its text."""
    return msgspec.to_builtins(value, enc_hook=str, str_keys=True)


def version_of(written: bytes) -> str:
    """Name what is written: the same in every process, and another one after each change."""
    return blake2b(written, digest_size=12).hexdigest()
