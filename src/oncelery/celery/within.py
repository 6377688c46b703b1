"""`apply_async(..., within=session)`: a job that is accepted if and when the caller's transaction commits."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from oncelery.answers import Existing, Reserved
from oncelery.celery.publishing import Publication, cancel_expired, existing, expect, marked
from oncelery.errors import ConfigurationError, DuplicateTaskError
from oncelery.job import Job, State
from oncelery.sql.outbox import Outbox

if TYPE_CHECKING:
    from celery.result import AsyncResult

_logger = logging.getLogger("oncelery")


def publish_within(publication: Publication, target: object) -> AsyncResult[Any]:
    """Reserve in the caller's transaction. Once that has committed the job is published, or else swept."""
    if target is None:
        raise ConfigurationError(
            "within= is None: there is no connection yet (in Django, make the call inside transaction.atomic())"
        )
    if publication.in_canvas:
        raise ConfigurationError(
            "within= is for a call that stands alone: start the canvas from a task that is called with within="
        )
    return _publish(publication, Outbox(publication.task.oncelery.ledger, target))


def _publish(publication: Publication, outbox: Outbox) -> AsyncResult[Any]:
    once = publication.task.oncelery
    publication, submission = publication.prepared()
    answer = outbox.ledger.reserve(submission, on_duplicate=publication.on_duplicate)
    match answer:
        case Reserved(job):
            expect(publication, job, ledger=outbox.ledger)
            return _to_be_published(publication, job, outbox)
        case Existing(job) if publication.may_find_expired(job) and cancel_expired(once, job, ledger=outbox.ledger):
            return _publish(publication, outbox)
        case Existing(job) if publication.rejected_by(answer):
            raise DuplicateTaskError(key=job.key, job_id=job.id, state=job.state)
        case Existing(job):
            expect(publication, job, ledger=outbox.ledger)
            return existing(publication, job)


def _to_be_published(publication: Publication, job: Job, outbox: Outbox) -> AsyncResult[Any]:
    result = marked(publication.task.AsyncResult(publication.task_id), job, published=False)

    def publish() -> None:
        """Publish the job if the caller has committed; for one whose library tells nobody so."""
        if not result.published:  # type: ignore[attr-defined]
            result.published = _publish_if_there(publication, job, outbox)  # type: ignore[attr-defined]

    result.publish = publish  # type: ignore[attr-defined]
    outbox.afterwards(publish)
    return result


def _publish_if_there(publication: Publication, job: Job, outbox: Outbox) -> bool:
    task = publication.task
    try:
        # Asked rather than inferred from what the caller did: a savepoint around the call may have been rolled back.
        found = task.oncelery.ledger.get(job.id)
        if found is None:
            return False
        outbox.ledger.emit_held()
        # One that is behind another is published by the end of that.
        if found.state is not State.QUEUED or found.begun_at or found.behind:
            return False
        # Over a connection of its own: the one that was given may be closed by now.
        task.hand_to_celery(replace(publication, options={**publication.options, "producer": None}))
    except Exception as error:  # noqa: BLE001 - the caller has committed, and has nothing to do with this
        _logger.warning("could not publish job %s after the commit; the sweeper will: %s", job.id, error)
        return False
    return True
