"""Copies dead letters to a queue of the broker, for those who watch one; the ledger keeps them all the same."""

from __future__ import annotations

import logging
from typing import Any

from celery import Celery
from kombu import Connection, Producer, Queue

from oncelery.celery import forks
from oncelery.celery.message import typed
from oncelery.events import Event, JobBuried
from oncelery.job import Job
from oncelery.ledger import Ledger

_logger = logging.getLogger("oncelery")

#: One more try, at once: a connection that has long been idle may be dead. Then the copy is given up.
RETRIES = 1

#: How much of an error's text goes into a header; brokers limit the size of headers.
ERROR_LENGTH = 1000


class Mirror:
    """A subscriber: publishes the body of each job that is buried, with what is known of it in the headers."""

    def __init__(self, app: Celery, ledger: Ledger, queue: str) -> None:
        self._app = app
        self._ledger = ledger
        self._queue = queue

    def __call__(self, event: Event) -> None:
        """Copy a dead letter; if that fails, say so and no more."""
        if not isinstance(event, JobBuried):
            return
        try:
            job = self._ledger.get(event.job_id)
            if job:
                with forks.no_fork:
                    self._publish(job)
        except Exception as error:  # noqa: BLE001 - only a copy: it must not disturb the worker
            _logger.warning("could not copy dead letter %s to queue %r: %s", event.job_id, self._queue, error)

    def _publish(self, job: Job) -> None:
        # The body is not read here: it may be the very thing that kills whoever reads it.
        content_type, encoding, content = typed(job.body or b"")
        with self._app.connection_or_acquire() as connection:

            def put(channel: Any) -> None:
                self._declare(connection, channel)
                Producer(channel).publish(
                    content,
                    exchange="",  # it leads to every queue by its name, however that was declared
                    routing_key=self._queue,
                    content_type=content_type,
                    content_encoding=encoding,
                    headers=headers(job),
                    delivery_mode="persistent",
                )

            connection.autoretry(put, max_retries=RETRIES, interval_start=0)()

    def _declare(self, connection: Connection, channel: Any) -> None:
        """Declare the queue, unless there is one of that name: it may be the target of a dead-letter exchange."""
        try:
            # On a channel of its own, which the answer that there is none closes.
            with connection.channel() as probe:
                probe.queue_declare(self._queue, passive=True)
        except connection.channel_errors:
            configured = self._app.amqp.queues.get(self._queue)
            queue = configured or Queue(self._queue, durable=True, queue_arguments=self._arguments())
            queue(channel).declare()

    def _arguments(self) -> dict[str, Any]:
        kind = self._app.conf.get("task_default_queue_type", "classic")
        return {} if kind == "classic" else {"x-queue-type": kind}


def headers(job: Job) -> dict[str, Any]:
    """Tell what a person must know before reviving the job."""
    error = f"{job.error.type}: {job.error.message}"[:ERROR_LENGTH] if job.error else ""
    return {
        "oncelery_job_id": job.id,
        "oncelery_key": job.key,
        "oncelery_task": job.task,
        "oncelery_scope": job.scope,
        "oncelery_reason": job.reason,
        "oncelery_error": error,
        "oncelery_attempt": job.attempt,
    }
