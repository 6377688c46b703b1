"""`once.jobs`: what the ledger knows of jobs, and how to end one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, Unpack

from msgspec.structs import replace

from oncelery.answers import CancelAnswer, Cancelled
from oncelery.job import Job, JobSummary, Page, Query
from oncelery.ledger import Ledger
from oncelery.operations.queries import Filters, each, query_of

T = TypeVar("T")

#: Content that is code: reading it runs it.
CODE = frozenset({"pickle", "application/x-python-serialize"})

_logger = logging.getLogger("oncelery")


@dataclass(frozen=True, slots=True)
class Call:
    """What a job's task was called with."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Reader(Protocol):
    """Reads what a job's task was given and what it returned; runs no code for that."""

    def call(self, body: bytes) -> Call:
        """Read a job's body."""

    def result(self, result: bytes) -> Any:  # noqa: ANN401 - whatever the task returned
        """Read a job's result."""


class Jobs:
    """Looks at jobs, and cancels them."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        read: Reader,
        terminate: Callable[[Job], object] = lambda _job: None,
        tell: Callable[[Job], object] = lambda _job: None,
        key_of: Callable[[Any, tuple[Any, ...], Mapping[str, Any]], str] | None = None,
    ) -> None:
        self._ledger = ledger
        self._read = read
        #: Ends the process that runs a job.
        self._terminate = terminate
        #: Tells whoever waits for the result of a job that it is cancelled.
        self._tell = tell
        #: Returns the key of a call; None where no tasks are known.
        self._key_of = key_of

    def get(self, job_id: str) -> Job | None:
        """Find a job by its id: live, buried, or finished and within its history."""
        return self._ledger.get(job_id)

    def of(self, task: Any, /, *args: Any, **kwargs: Any) -> Job | None:  # noqa: ANN401 - as the task takes them
        """Return the last job of this call, without sending it; None if there was none, or its history is over.

        A job that is queued or running (`job.state.live`), or completed and within its retention, is what a duplicate
        of the call would be answered with.

        Raises:
            ConfigurationError: equal calls of the task are not the same work (`key=TASK_ID`), or it is not guarded.
        """
        assert self._key_of is not None  # noqa: S101 - an app's `once.jobs` has it
        return self._ledger.last(self._key_of(task, args, kwargs))

    def find(self, query: Query | None = None, **filters: Unpack[Filters]) -> Page[JobSummary]:
        """Return one page of jobs, newest change first; its cursor leads to the next. `get` has the rest of each."""
        return self._ledger.find(query_of(query, filters))

    def each(self, query: Query | None = None, **filters: Unpack[Filters]) -> Iterator[JobSummary]:
        """Give all jobs that match, newest change first, page after page."""
        asked = query_of(query, filters)
        return each(lambda cursor: self._ledger.find(replace(asked, cursor=cursor)), asked.cursor)

    def call(self, job: Job) -> Call | None:
        """Tell what a job's task is called with; None once it has ended well, or if it cannot be read."""
        return _readable(job, self._read.call, job.body)

    def result(self, job: Job) -> Any:  # noqa: ANN401 - whatever the task returned
        """Tell what a job's task returned; None if it has not, or if it cannot be read."""
        return _readable(job, self._read.result, job.result)

    def cancel(self, job_id: str, *, reason: str = "cancelled", terminate: bool = False) -> CancelAnswer:
        """End a queued job, or ask a running one to end; it holds even while no worker is up.

        A running task sees the request when it next reports progress, makes a step or calls `raise_if_cancelled()`, at
        the latest with its next heartbeat. `terminate` is for one that does none of these: the job is cancelled at
        once, whatever its run still does is not recorded, and the process that runs it is told to end. If the broker
        cannot be asked for that, its error is raised; the cancellation stands all the same.
        """
        before = self._ledger.get(job_id)
        # The ledger first: a process that ended by itself in between must not be taken for a crash.
        answer = self._ledger.cancel(job_id, reason=reason, force=terminate)
        if isinstance(answer, Cancelled):
            # With its message, which goes when it ends.
            job = replace(answer.job, body=before.body if before else None)
            if before and before.state.live:
                # That message may be long under way, or lost; and what runs in a thread cannot be ended.
                self._tell(job)
            if terminate:
                self._terminate(job)
        return answer


def _readable(job: Job, read: Callable[[bytes], T], written: bytes | None) -> T | None:
    try:
        return read(written) if written else None
    except Exception as error:  # noqa: BLE001 - of whatever serialiser: the job is to be shown all the same
        _logger.warning("cannot read what is kept of job %s: %s", job.id, error)
        return None
