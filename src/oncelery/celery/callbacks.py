"""Call-backs: each is a job of its own, so that it is sent once, tried again, and in the end a dead letter like others.

A job that somebody wants to be told of has a second one, its watch, from the moment it is accepted. Whoever ends the
job sends the call-back at once and calls the watch off. If that one dies in between, or the job ends where nobody
knows of the call-back (by a cancel, by the sweeper), the watch finds it ended, and sends the call-back then.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from time import time
from typing import TYPE_CHECKING, Any

from oncelery.celery.message import JSON, typed
from oncelery.celery.publishing import Publication
from oncelery.celery.task import IdempotentTask
from oncelery.errors import DeliveryError, JobCancelledError, OnceleryError, WebhookTargetError
from oncelery.job import NOT_PUBLISHED, Job, State
from oncelery.ledger import Ledger
from oncelery.policy import Backoff, Policy
from oncelery.webhooks.event import ending_of, event_of
from oncelery.webhooks.sending import send
from oncelery.webhooks.signing import sign
from oncelery.webhooks.target import target_of

if TYPE_CHECKING:
    from celery import Celery

    from oncelery.celery.extension import Oncelery

_logger = logging.getLogger("oncelery")

#: The names of the two tasks, for Celery's `task_routes`.
NOTIFY_TASK, WATCH_TASK = "oncelery.notify", "oncelery.watch"

#: How long a watch waits before it first looks after its job.
FIRST_LOOK = timedelta(minutes=1)

#: Spread over about half a day, as Standard Webhooks advises; then it is a dead letter.
DELIVERY = Policy(
    key=("job_id", "ending", "url"),
    retry_on=(DeliveryError,),
    max_attempts=10,
    backoff=Backoff(first=timedelta(seconds=5), factor=4, most=timedelta(hours=6)),
    # An end that was told is not told again, whoever comes to know of it once more.
    retention=timedelta(days=7),
)


class StillLiveError(OnceleryError):
    """The job has not ended yet. Its watch looks again."""


WATCHING = Policy(
    key=("job_id", "url"),
    retry_on=(StillLiveError,),
    max_attempts=1_000_000,
    backoff=Backoff(first=timedelta(minutes=1), most=timedelta(minutes=10)),
    retention=timedelta(0),
    history=timedelta(hours=1),
)


def declare(app: Celery) -> None:
    """Give an app the tasks that send its call-backs."""
    options: dict[str, Any] = {"base": IdempotentTask, "bind": True, "shared": False, "ignore_result": True}
    app.task(name=NOTIFY_TASK, once=DELIVERY, **options)(notify)
    app.task(name=WATCH_TASK, once=WATCHING, **options)(watch)


def notify(task: IdempotentTask, job_id: str, ending: str, url: str) -> int:
    """Send the call-back of one end of a job."""
    once = task.oncelery
    job = once.ledger.get(job_id)
    if job is None or ending_of(job.state, job.fence) != ending:
        raise JobCancelledError(
            f"job {job_id} is gone, or was revived: that it was {ending} is not to be told any more"
        )
    return once.callbacks.send(job, url)


def watch(task: IdempotentTask, job_id: str, url: str) -> None:
    """See to it that the end of a job is told, when it has come to one."""
    once = task.oncelery
    job = once.ledger.get(job_id)
    # Of one that could not be published its caller was told, by an error.
    if job is None or job.reason == NOT_PUBLISHED:
        return
    if job.state.live:
        raise StillLiveError(job_id=job_id)
    once.callbacks.publish(job.id, job.state, job.fence, url)


class Callbacks:
    """What an app's tasks and publishers ask for call-backs."""

    def __init__(self, once: Oncelery) -> None:
        self._once = once

    def check(self, url: str) -> None:
        """Refuse a call-back that could not be sent: by its URL, or for lack of a secret to sign it."""
        target_of(url, private=self._once.settings.allow_private)
        if not self._once.settings.webhook_secrets:
            raise WebhookTargetError("no call-back can be signed: set webhook_secrets to one or more `whsec_…`")

    def expect(self, job_id: str, url: str, *, ledger: Ledger | None = None, again: bool = False) -> None:
        """Put the watch of a live job into the ledger; of one that has its watch nothing is done."""
        task = self._once.app.tasks[WATCH_TASK]
        options = {"countdown": FIRST_LOOK.total_seconds(), "ignore_result": True}
        watch_id = str(uuid.uuid4()) if again else _watch_id(job_id, url)
        publication = Publication(task=task, args=(job_id, url), kwargs={}, task_id=watch_id, options=options)
        # It has no message: the sweeper publishes what is due.
        (ledger or self._once.ledger).reserve(publication.prepared()[1])

    def tell(self, job_id: str, state: State, fence: int, url: str) -> None:
        """Publish the call-back of a job that has ended, and call off its watch; if that fails, the watch is there."""
        try:
            self.publish(job_id, state, fence, url)
            self._once.ledger.cancel(_watch_id(job_id, url), reason="told")
        except Exception as error:  # noqa: BLE001 - the run has ended otherwise, and well
            _logger.warning("could not publish the call-back of job %s; its watch will: %s", job_id, error)

    def publish(self, job_id: str, state: State, fence: int, url: str) -> None:
        """Publish the call-back of one end of a job, unless that was done."""
        task = self._once.app.tasks[NOTIFY_TASK]
        task.apply_async((job_id, ending_of(state, fence), url), add_to_parent=False)

    def send(self, job: Job, url: str) -> int:
        """Send a call-back, signed with the secrets of the job's scope."""
        settings = self._once.settings
        target = target_of(url, private=settings.allow_private)
        message_id, timestamp = f"{job.id}.{ending_of(job.state, job.fence)}", int(time())
        payload = event_of(job, _json_result(job))
        headers = {
            "content-type": "application/json",
            "user-agent": "oncelery",
            "webhook-id": message_id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": sign(message_id, timestamp, payload, secrets_of(settings.webhook_secrets, job.scope)),
        }
        return send(target, payload, headers)


Secrets = str | Iterable[str]


def secrets_of(given: Secrets | Mapping[str, Secrets] | Callable[[str], Secrets], scope: str) -> Secrets:
    """Choose the secrets of a tenant: one that all share would let each sign what the others believe."""
    if callable(given):
        return given(scope)
    return given.get(scope, given.get("", ())) if isinstance(given, Mapping) else given


def _watch_id(job_id: str, url: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{WATCH_TASK}/{job_id}/{url}"))


def _json_result(job: Job) -> bytes | None:
    """Give a result that is JSON as it is; what is written in another way is nobody's to read here."""
    content_type, _encoding, content = typed(job.result or b"")
    return content if content_type == JSON else None
