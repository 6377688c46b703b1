"""From a call to a job: reserve first, then publish. The ledger holds the job even if the broker never gets it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from celery import Celery
from celery.result import AsyncResult
from kombu.exceptions import OperationalError
from msgspec import Struct
from msgspec.structs import replace

from oncelery.answers import Cancelled, Existing, Reserved
from oncelery.celery.gate import Gate, NotToBeSent
from oncelery.celery.identifying import identify
from oncelery.celery.message import ASKED, FOLLOWS, JOB, RESENT, Message, follows_of, headers_of, job_id_of
from oncelery.celery.reading import outcome_of
from oncelery.celery.routing import ROUTED, queue_label
from oncelery.celery.successors import is_successor
from oncelery.celery.times import delay_of, instant, whole
from oncelery.errors import DuplicateTaskError, IdTakenError, StoreUnavailableError
from oncelery.failpoints import failpoint
from oncelery.job import ALIAS_RETENTION, NO_TIME, NOT_PUBLISHED, Job, OnDuplicate, State, Submission
from oncelery.ledger import Ledger

if TYPE_CHECKING:
    from oncelery.celery.extension import Oncelery
    from oncelery.celery.task import IdempotentTask

_logger = logging.getLogger("oncelery")

#: How long a job that somebody is to be told of stays readable at least: its call-back may be long under way.
TOLD_WITHIN = timedelta(days=2)

#: The option of `apply_async` that carries `Publication.apart`; it is not sent.
APART = "oncelery_apart"

#: What makes a call part of a canvas, whose ids are fixed before it is published.
_CANVAS = ("chain", "chord", "group_id", "link", "link_error", "parent_id", "replaced_task_nesting")


class Publication(Struct, frozen=True, kw_only=True):
    """One call of a guarded task, before it is a job."""

    task: IdempotentTask
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    task_id: str
    options: dict[str, Any]
    #: What the caller calls this request: the alias of its job, or the key of a task that declares none.
    idempotency_key: str | None = None
    #: What to do if it is a duplicate, as the task or this call says; see `on_duplicate`.
    chosen: OnDuplicate = OnDuplicate.JOIN
    #: A key in place of the task's own, for a task that is part of what replaces it (see replacing.py).
    apart: str = ""
    #: For whom the call is made, where that is known from elsewhere than its arguments.
    scope: str = ""
    #: Who submits, in the audit; empty: this app.
    caller: str = ""
    #: A URL to call when the job has ended.
    notify: str = ""
    #: Whether the id was there before the call: somebody may wait for a result under it.
    promised: bool = False
    #: The id of its job, if another call has its task id.
    own_id: str = ""
    #: The options that say where its message goes, once that is known.
    destination: dict[str, Any] = {}

    @property
    def _app(self) -> Celery:
        # Celery's own way from a task to its app is a long one.
        return self.task.oncelery.app

    @property
    def in_canvas(self) -> bool:
        """Whether others follow this call, or have gone before it."""
        return any(map(self.options.get, _CANVAS))

    @property
    def job_id(self) -> str:
        """The id of the job that this call would be."""
        return self.own_id or job_id_of(self.task, self.task_id, self.options.get("replaced_task_nesting"))

    @property
    def follows(self) -> str:
        """What this call follows in a canvas; nothing for a call that stands alone."""
        options = self.options
        return follows_of(options.get("root_id"), options.get("parent_id"), options.get("group_id"))

    def with_own_id(self) -> Publication:
        """Return the call with its own job id, derived from what it follows: another call has its task id."""
        nesting = self.options.get("replaced_task_nesting")
        return replace(self, own_id=job_id_of(self.task, self.task_id, nesting, self.follows))

    @property
    def on_duplicate(self) -> OnDuplicate:
        """What is done if the work is there; a canvas neither fails for it, nor is its message any other job's."""
        if self._is_named:
            # Nobody else has this key: what finds a job under it is the same request, sent again.
            return OnDuplicate.JOIN
        if self.in_canvas and self.chosen is not OnDuplicate.REPLACE:
            return OnDuplicate.JOIN
        return self.chosen

    @property
    def _is_named(self) -> bool:
        """Whether the caller's name for the request is the key, too."""
        return self.idempotency_key is not None and self.task.policy.key is None

    def rejected_by(self, answer: Existing) -> bool:
        """Whether the task rejects this duplicate of a live job. A request that is sent again is not a duplicate."""
        return answer.job.state.live and not answer.repeated and self.on_duplicate is OnDuplicate.REJECT

    def answered_by(self, job: Job) -> bool:
        """Whether the caller can be given that job in place of one of its own."""
        if job.state.live and (self.task.oncelery.answers_its_callers or self._wants_more_than(job)):
            return False
        return not self.in_canvas and (not self.promised or job.id == self.job_id)

    def _wants_more_than(self, job: Job) -> bool:
        """Whether this call wants a result, and that job will store none."""
        ignored: bool = self.options.get("ignore_result", self.task.ignore_result)
        return not ignored and sent_as(self._app, job)[1]

    def asked_again(self, job: Job) -> Publication:
        """Give the call with a mark, if it is another one under that job's id; not if it follows from a job before."""
        if job.id != self.job_id or self.options.get("parent_id"):
            return self
        return self.with_headers({ASKED: True})

    def with_headers(self, headers: Mapping[str, Any]) -> Publication:
        """Return the call with more headers."""
        return replace(self, options={**self.options, "headers": {**self.options["headers"], **headers}})

    def may_find_expired(self, job: Job) -> bool:
        """Whether that job is worth a look, which takes time: it may have expired unseen."""
        return bool(self.options.get("expires")) or b"expires" in (job.body or b"")

    def body(self) -> bytes:
        """Write the message that publishes this call again."""
        options = self.options if self.job_id == self.task_id else {**self.options, "task_id": self.task_id}
        if self.task.oncelery.answers_its_callers:
            options = {"reply_to": self._app.thread_oid, **options}
        return Message(self.task.name, self.args, self.kwargs, options).pack(self._app, self.task.serializer)

    def prepared(self) -> tuple[Publication, Submission]:
        """Give the call as it is to be sent, with its key in its headers and its way known; and its submission."""
        once = self.task.oncelery
        policy = self.task.policy
        found = identify(
            self.task,
            self.args,
            self.kwargs,
            idempotency_key=self.idempotency_key,
            apart=self.apart,
            task_id=self.own_id or self.task_id,
            scope=self.scope,
        )
        digest, follows = found.digest if self.idempotency_key or self.apart else "", self.follows
        given = self.options.get("headers") or {}
        headers = headers_of(found, digest, self.notify, given, **{FOLLOWS: follows, JOB: self.own_id})
        call = replace(self, options={**self.options, "headers": headers})
        destination, queue = call.route()
        delay = delay_of(self.options)
        if delay and self._app.conf.task_always_eager:
            # Whoever calls waits for it, and Celery runs it at once.
            delay = NO_TIME
        return replace(call, destination=destination), Submission(
            id=self.job_id,
            key=found.key,
            alias=found.alias,
            task=self.task.name,
            digest=digest,
            follows=follows,
            scope=found.scope,
            body=call.body(),
            queue=queue,
            caller=self.caller or once.caller,
            delay=delay,
            retention=retention_of(self.task, named=self._is_named),
            history=max(policy.kept_for, TOLD_WITHIN) if self.notify else policy.kept_for,
            durability=policy.durability,
            quota=once.settings.quota_of(found.scope) if found.scope else None,
        )

    def route(self) -> tuple[dict[str, Any], str]:
        """Decide where the message goes, as Celery does, and name the queue; the app's router is not asked again."""
        amqp, options = self._app.amqp, self.options
        given, default = options.get("router"), amqp.default_queue
        router: Any = given or amqp.router
        if given or router.routes or options.get("queue"):
            name = options.get("route_name") or self.task.name
            options = router.route(dict(options), name, self.args, self.kwargs, self.task)
            destination = {**options, "router": ROUTED}
        else:
            # Not by way of the app's configuration, where a look takes as long as all the rest.
            destination = {"queue": default, "router": ROUTED}
        queue = options.get("queue") or options.get("routing_key") or default
        return destination, queue_label(queue if isinstance(queue, str) else queue.name, options.get("priority"))


def publish_once(publication: Publication) -> AsyncResult[Any]:
    """Reserve and publish; a duplicate is answered with the job that is there, by this process or by a worker."""
    task = publication.task
    once = task.oncelery
    publication, submission = publication.prepared()
    try:
        wait = once.ledger.reserving(submission, on_duplicate=publication.on_duplicate)
        return _send_if_accepted(publication, wait)
    except NotToBeSent as stop:
        answer = stop.answer
    except IdTakenError:
        # Celery 5.7 keeps the id of a chain's last task in the chain object, which may be sent again.
        return publish_once(publication.with_own_id())
    except StoreUnavailableError as error:
        if not publication.options.get("parent_id"):
            raise
        # It follows from a task that has done its work, so nobody would send it later. A worker tells the ledger of it.
        _logger.warning("%s is sent on before the ledger knows of it: %s", publication.task_id, error)
        return marked(task.hand_to_celery(publication.with_headers({JOB: publication.own_id})))
    match answer:
        case Reserved(job):
            # Behind another, whose end publishes it; until then it would only be sent away.
            return marked(task.AsyncResult(job.id), job)
        case Existing(job) if publication.may_find_expired(job) and cancel_expired(once, job):
            return publish_once(publication)
        case Existing(job) if publication.rejected_by(answer):
            raise DuplicateTaskError(key=job.key, job_id=job.id, state=job.state)
        case Existing(job) if not publication.answered_by(job):
            expect(publication, job)
            # Its id is fixed and others wait for it: let the worker answer, with the result of that job.
            return marked(task.hand_to_celery(publication.asked_again(job)), job)
        case Existing(job):
            expect(publication, job)
            return existing(publication, job)


def _send_if_accepted(publication: Publication, wait: Callable[[], Reserved | Existing]) -> AsyncResult[Any]:
    """Have the message made while the ledger is asked, and sent if it has accepted the job; else raise NotToBeSent."""

    def answer() -> Reserved | Existing:
        found = wait()
        if isinstance(found, Reserved):
            expect(publication, found.job)
            if not found.job.behind:
                failpoint("before-publish")
        return found

    gate, task = Gate(answer), publication.task
    if not task.sent_by_celery:
        gate.go_on()
    try:
        result = task.hand_to_celery(publication, gate if task.sent_by_celery else None)
    except Exception as error:
        # Celery may have refused the call before it came to the gate.
        found = gate.ask()
        if isinstance(found, Existing):
            raise
        return _not_sent(publication, found.job, error)
    # It may not have come by the gate: sent in another way, or not at all, as in a test that stands in for Celery.
    return marked(result, gate.go_on())


def expect(publication: Publication, job: Job, *, ledger: Ledger | None = None) -> None:
    """See to it that whoever asked for it is told of the job's end; before it is published, so that none is missed.

    Who is answered with a finished job has its result at hand.
    """
    if publication.notify and job.state.live and not publication.task.app.conf.task_always_eager:
        publication.task.oncelery.callbacks.expect(job.id, publication.notify, ledger=ledger)


def existing(publication: Publication, job: Job) -> AsyncResult[Any]:
    """Give the result of an earlier call in place of one of its own."""
    task = publication.task
    if task.app.conf.task_always_eager and not job.state.live:
        # Under that job's id it is replayed, into a result that needs no backend.
        return marked(task.hand_to_celery(replace(publication, task_id=job.id)), job, existing=True)
    task_id, ignored = sent_as(task.app, job)
    result: Any = task.AsyncResult(task_id)
    result.ignored = ignored
    if not ignored:
        # The backend may have forgotten it; or never known it under this id, if it was another task's before.
        result._cache = outcome_of(task, job)  # noqa: SLF001 - what it would read from there, and then keep
    return marked(result, job, existing=True)


def _not_sent(publication: Publication, job: Job, error: Exception) -> AsyncResult[Any]:
    """Leave the job to the sweeper, if that is what the app wants; else see that it is not run, and raise the error."""
    task, once = publication.task, publication.task.oncelery
    if task.app.conf.task_always_eager:
        # It is the task's own, and its job is settled.
        raise error
    kept = once.settings.on_broker_down == "accept" or is_successor(publication.options)
    if kept and isinstance(error, OperationalError):
        _logger.warning("job %s is accepted, but the broker did not take it; the sweeper will: %s", job.id, error)
        return marked(task.AsyncResult(publication.task_id), job, published=False)
    # The caller sees the error, so nobody may find the job later and run it; unless others were told that it will.
    once.ledger.withdraw(job.id, reason=NOT_PUBLISHED)
    raise error


def marked(
    result: AsyncResult[Any], job: Job | None = None, *, existing: bool = False, published: bool = True
) -> AsyncResult[Any]:
    """Note on a result: its job, whether an earlier call had made it, and whether its message was sent."""
    # Without its body: results are kept, by those who wait for many and by Celery's own trail.
    result.job = job and replace(job, body=None)  # type: ignore[attr-defined]
    result.existing = existing  # type: ignore[attr-defined]
    result.published = published  # type: ignore[attr-defined]
    return result


def publish_again(once: Oncelery, job: Job, *, countdown: float | None = None, resent: bool = False) -> None:
    """Publish a job from the body that the ledger keeps; `resent` marks a message that may be one too many."""
    if cancel_expired(once, job):
        return
    message = Message.unpack(once.app, job.body or b"")
    options = {"task_id": job.id, **message.options}
    if resent:
        options["headers"] = {**(options.get("headers") or {}), RESENT: True}
    if once.app.conf.task_always_eager:
        once.app.tasks[message.task].apply(message.args, message.kwargs, **options)
    else:
        once.send_unguarded(message.task, message.args, message.kwargs, countdown=whole(once.app, countdown), **options)


def publish_or_leave(job_id: str, publish: Callable[[], object]) -> None:
    """Publish for a job that the ledger holds: what cannot be published now, the sweeper publishes later."""
    try:
        publish()
    except Exception as error:  # noqa: BLE001 - the run that publishes it has ended otherwise, and well
        _logger.warning("could not publish the message of job %s; the sweeper will: %s", job_id, error)


def cancel_expired(once: Oncelery, job: Job, *, ledger: Ledger | None = None) -> bool:
    """Cancel a job that waits but may not run any more; a broker drops its message without a word."""
    if job.state is not State.QUEUED or not job.body:
        return False
    message = Message.unpack(once.app, job.body)
    expires = message.options.get("expires")
    if expires is None or instant(expires) > datetime.now(UTC):
        return False
    answer = (ledger or once.ledger).cancel(job.id, reason="expired")
    if not isinstance(answer, Cancelled):
        return False  # it has begun or ended meanwhile
    tell_cancelled(once.app, replace(answer.job, body=job.body))
    return True


def tell_cancelled(app: Celery, job: Job) -> None:
    """Tell whoever waits for a job's result that it was cancelled; `job.body` says under which id they wait."""
    try:
        task_id, ignore_result = sent_as(app, job)
        if not ignore_result:
            app.backend.mark_as_revoked(task_id, job.reason)
    except Exception as error:  # noqa: BLE001 - of whatever backend: the job is cancelled all the same
        _logger.warning("job %s is cancelled, but its result could not be told: %s", job.id, error)


def sent_as(app: Celery, job: Job) -> tuple[str, bool]:
    """Tell under which task id a job was sent, where its result is looked for; and whether it is to have none."""
    body = job.body or b""
    # Opened only if it says something of these: a message may be the death of whoever opens it.
    told = Message.unpack(app, body).options if b"task_id" in body or b"ignore_result" in body else {}
    task = app.tasks.get(job.task)
    return told.get("task_id", job.id), told.get("ignore_result", task is not None and task.ignore_result)


def retention_of(task: IdempotentTask, *, named: bool) -> timedelta:
    """Return how long a completed job answers its key; at least as long as an alias if a request's name is the key."""
    return max(task.policy.retention, ALIAS_RETENTION) if named else task.policy.retention
