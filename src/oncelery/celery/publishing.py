"""From a call to a job: reserve first, then publish. The ledger holds the job even if the broker never gets it."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from celery.result import AsyncResult
from kombu.exceptions import OperationalError

from oncelery.answers import Existing, Reserved
from oncelery.celery.message import Message
from oncelery.errors import DuplicateTaskError
from oncelery.fingerprint import fingerprint
from oncelery.job import Job, OnDuplicate, Submission

if TYPE_CHECKING:
    from oncelery.celery.extension import Oncelery
    from oncelery.celery.task import IdempotentTask

_logger = logging.getLogger("oncelery")

#: The message header that carries a job's key to the worker.
HEADER = "oncelery"

#: What makes a call part of a canvas, whose ids are fixed before it is published.
_CANVAS = ("chain", "chord", "group_id", "link", "link_error")


@dataclass(frozen=True, slots=True)
class Publication:
    """One call of a guarded task, before it is a job."""

    task: IdempotentTask
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    task_id: str
    options: dict[str, Any]
    idempotency_key: str | None = None

    @property
    def lone(self) -> bool:
        """Whether a duplicate may be answered with another job's id."""
        return not any(self.options.get(name) for name in _CANVAS)

    def body(self) -> bytes:
        """Write the message that publishes this call again."""
        return Message(self.task.name, self.args, self.kwargs, self.options).pack(self.task.app)

    def submission(self) -> Submission:
        """Make the submission, and put the key into the message's headers."""
        once = self.task.oncelery
        policy = self.task.policy
        found = self.task.identity.of(
            self.args, self.kwargs, namespace=once.namespace, idempotency_key=self.idempotency_key, task_id=self.task_id
        )
        digest = found.digest if self.idempotency_key else ""
        self.options["headers"] = {
            **(self.options.get("headers") or {}),
            HEADER: {"key": found.key, "digest": digest, "scope": found.scope},
        }
        return Submission(
            id=job_id(self.task, self.task_id, self.options.get("replaced_task_nesting")),
            key=found.key,
            task=self.task.name,
            digest=digest,
            scope=found.scope,
            body=self.body(),
            queue=queue_label(self.task, self.options),
            caller=once.caller,
            delay=delay_of(self.options),
            retention=policy.retention,
            history=policy.history,
            durability=policy.durability,
        )


def publish_once(publication: Publication) -> AsyncResult[Any]:
    """Reserve and publish; a lone duplicate is answered with the job that is there."""
    task = publication.task
    once = task.oncelery
    match once.ledger.reserve(publication.submission(), on_duplicate=task.policy.on_duplicate):
        case Reserved(job):
            return _send(once, publication, job)
        case Existing(job) if not publication.lone:
            # Its id is fixed and others wait for it: let the worker answer, with the result of that job.
            return task.send(publication)
        case Existing(job):
            if job.state.live and task.policy.on_duplicate is OnDuplicate.REJECT:
                raise DuplicateTaskError(key=job.key, job_id=job.id, state=job.state)
            return marked(task.AsyncResult(job.id), existing=True)


def _send(once: Oncelery, publication: Publication, job: Job) -> AsyncResult[Any]:
    if job.behind:
        # It would only be sent away; the end of the job before it publishes it.
        return marked(publication.task.AsyncResult(job.id))
    try:
        return marked(publication.task.send(publication))
    except OperationalError as error:
        if once.settings.on_broker_down == "refuse":
            once.ledger.cancel(job.id, reason="not published", force=True)
            raise
        _logger.warning("job %s is accepted, but the broker did not take it; the sweeper will: %s", job.id, error)
        return marked(publication.task.AsyncResult(job.id), published=False)


def marked(result: AsyncResult[Any], *, existing: bool = False, published: bool = True) -> AsyncResult[Any]:
    """Tell on a result whether it is that of an earlier call, and whether the broker has its message."""
    result.existing = existing  # type: ignore[attr-defined]
    result.published = published  # type: ignore[attr-defined]
    return result


def publish_again(once: Oncelery, job: Job, *, countdown: float | None = None, resent: bool = False) -> None:
    """Publish a job from the body that the ledger keeps; `resent` marks a message that may be one too many."""
    message = Message.unpack(once.app, job.body or b"")
    options = dict(message.options)
    if resent:
        headers = options.get("headers") or {}
        options["headers"] = {**headers, HEADER: {**(headers.get(HEADER) or {}), "resent": True}}
    once.send_task(message.task, message.args, message.kwargs, task_id=job.id, countdown=countdown, **options)


def job_id(task: IdempotentTask, task_id: str, replaced: int | None) -> str:
    """Name the job of a message: its task id, except for a task that replaced another one under that id."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{task_id}/{task.name}/{replaced}")) if replaced else task_id


def callback_id(task: IdempotentTask, parent_id: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Name a callback by its parent and its call: a parent that is replayed publishes it under the same id."""
    call = fingerprint(task.name, {"args": args, "kwargs": dict(kwargs)})
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{parent_id}/{call}"))


def queue_label(task: IdempotentTask, options: Mapping[str, Any]) -> str:
    """Name the queue that a message goes to, and its priority: only messages of one label are served in order."""
    app = task.app
    routed = app.amqp.router.route(dict(options), task.name, (), {}, task) if app.conf.task_routes else options
    queue = routed.get("queue") or routed.get("routing_key") or app.conf.task_default_queue
    label = queue if isinstance(queue, str) else queue.name
    priority = options.get("priority")
    return label if priority is None else f"{label}#{priority}"


def delay_of(options: Mapping[str, Any]) -> timedelta:
    """Read how long a call is to wait, whether it says so as `countdown` or as `eta`."""
    return delay_until(options.get("eta") or options.get("countdown"))


def delay_until(when: datetime | str | float | None) -> timedelta:
    """Read a delay the ways Celery writes one: seconds, an instant, or an instant as text."""
    if isinstance(when, str):
        when = datetime.fromisoformat(when)
    if isinstance(when, datetime):
        now = datetime.now(UTC) if when.tzinfo else datetime.now()  # noqa: DTZ005 - compared with a naive time
        return max(when - now, timedelta(0))
    return max(timedelta(seconds=when or 0), timedelta(0))
