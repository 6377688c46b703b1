"""Messages that may be the death of whoever opens them: the ledger is told before, and who lives tells it after.

Reading a payload can take a process along, and the message then goes to the next one. Nothing is told of a message that
comes for the first time, for that would cost every task a call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from oncelery.answers import Counted, ReceivedAnswer
from oncelery.errors import JobBuriedError, OnceleryError
from oncelery.job import NO_TIME, Job

if TYPE_CHECKING:
    from oncelery.celery.extension import Oncelery

_logger = logging.getLogger("oncelery")


def open_watched(once: Oncelery, job_id: str, lease: timedelta, read: Callable[[], object]) -> ReceivedAnswer:
    """Open a message under the eyes of the ledger, if it lets us: if it answers Counted."""
    answer = about_to_open(once, job_id, lease)
    if isinstance(answer, Counted):
        lives: timedelta | None = NO_TIME
        try:
            read()
        except Exception:
            raise
        except BaseException:
            # In the main thread it would have ended the process.
            lives = None
            raise
        finally:
            try:
                _report(once, job_id, lease=lives)
            except OnceleryError as error:
                _logger.warning("could not report that the message of job %s was opened: %s", job_id, error)
    return answer


def about_to_open(once: Oncelery, job_id: str, lease: timedelta) -> ReceivedAnswer:
    """Report that a message is being opened, by a process that begins within the lease or is dead."""
    return _report(once, job_id, lease=lease)


def died(once: Oncelery, job_id: str) -> ReceivedAnswer:
    """Report that opening a message was the death of a process."""
    return _report(once, job_id, lease=None)


def _report(once: Oncelery, job_id: str, *, lease: timedelta | None) -> ReceivedAnswer:
    # The job is buried with the first death over the limit.
    limit = max(once.settings.max_received - 1, 0)
    return once.ledger.received(job_id, limit=limit, lease=lease)


def fail_buried(backend: Any, task_id: str, job: Job, request: Any = None) -> None:
    """Tell Celery that a job failed for good.

    Without a request, which takes opening the message, neither a chord nor errbacks hear of it.
    """
    error = JobBuriedError(f"job {job.id} is a dead letter ({job.reason})", key=job.key, job_id=job.id)
    try:
        backend.mark_as_failure(task_id, error, request=request)
    except Exception as away:  # noqa: BLE001 - of whatever backend: the job is buried all the same
        _logger.warning("job %s is a dead letter, but its result could not be told: %s", job.id, away)
