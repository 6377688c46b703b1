"""Messages that nobody will acknowledge: their job has ended, but its worker died before it could say so to Celery.

RabbitMQ delivers such a message again at once, and the worker that gets it replays the result: to the result backend,
the chain, the callbacks. The Redis transport would keep it for its visibility timeout, which is an hour.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from celery.states import READY_STATES
from kombu.serialization import prepare_accept_content
from kombu.utils.json import loads

from oncelery.celery import forks
from oncelery.celery.message import KEY, PARKED, job_id_in
from oncelery.celery.reading import kept_of
from oncelery.celery.task import IdempotentTask
from oncelery.celery.times import instant
from oncelery.errors import OnceleryError

if TYPE_CHECKING:
    from oncelery.celery.extension import Oncelery

_logger = logging.getLogger("oncelery")

#: How often a worker looks, in seconds. What it finds twice in a row is an orphan: to acknowledge takes milliseconds.
LOOK_EVERY = 5.0

#: How many messages it looks at; where there are more, each worker begins at another place.
PAGE = 100

#: How long a worker leaves a message alone that it has put back, in seconds: it may be waiting behind a long task.
PAUSE = 120.0


class Orphans:
    """Puts orphans back into their queues. To put back too many does no harm: each is told how its work ended."""

    def __init__(self, once: Oncelery) -> None:
        self._once = once
        self._suspects: set[str] = set()
        #: Where the next look begins; each worker's first is elsewhere.
        self._place = random.randrange(10 * PAGE)  # noqa: S311 - spreads the workers
        self._restored: dict[str, float] = {}

    def restore(self) -> int:
        """Put back what was an orphan at the last look and still is; answer how many."""
        now = monotonic()
        self._restored = {tag: at for tag, at in self._restored.items() if now - at < PAUSE}
        with forks.no_fork:
            connection = self._once.app.connection_for_read()
        try:
            with forks.no_fork:
                channel = connection.default_channel
                if not hasattr(channel, "unacked_index_key"):
                    return 0
                delivered = self._delivered(channel)
            # Not while no child can be forked: each of them is asked for in the ledger.
            found = {tag for tag, written in delivered if self._orphan(written, channel)}
            orphans = found & self._suspects
            with forks.no_fork:
                for tag in orphans:
                    channel.qos.restore_by_tag(tag)
                    self._restored[tag] = now
        finally:
            with forks.no_fork:
                connection.release()
        self._suspects = found - orphans
        return len(orphans)

    def _delivered(self, channel: Any) -> list[tuple[str, bytes]]:
        """Read the suspects, and the next page of what workers were given some time ago and have not acknowledged."""
        from kombu.transport import redis as transport  # noqa: PLC0415 - not everybody's

        index, messages = (
            f"{channel.global_keyprefix}{key}" for key in (channel.unacked_index_key, channel.unacked_key)
        )
        with channel.conn_or_acquire() as kombus:
            # Not by its own client, which gives that prefix to some commands, and in each version to others.
            client: Any = transport.redis.Redis(connection_pool=kombus.connection_pool)
            until = time() - LOOK_EVERY
            there = client.zcount(index, 0, until)
            first = self._place % there if there > PAGE else 0
            self._place = first + PAGE if first + PAGE < there else 0
            page = client.zrangebyscore(index, 0, until, start=first, num=PAGE)
            tags = sorted(({tag.decode() for tag in page} | self._suspects) - self._restored.keys())
            found = client.hmget(messages, tags) if tags else []
        return [(tag, written) for tag, written in zip(tags, found, strict=True) if written]

    def _orphan(self, written: bytes, channel: Any) -> bool:
        try:
            message, _exchange, _routing_key = loads(written.decode())
            return self._over(channel.message_to_python(message))
        except OnceleryError:
            raise
        except Exception:  # of whatever kind: a message that cannot be judged must not keep back others
            _logger.debug("cannot tell whether a message is an orphan", exc_info=True)
            return False

    def _over(self, message: Any) -> bool:
        """Whether the message's work is done, so that whoever holds it should have acknowledged it."""
        headers: Mapping[str, Any] = message.headers
        task = self._once.app.tasks.get(headers.get("task"))
        if not isinstance(task, IdempotentTask):
            return False
        if (eta := headers.get("eta")) and instant(eta) > datetime.now(UTC) - timedelta(seconds=LOOK_EVERY):
            # It waits in a worker's memory, as it should.
            return False
        job = self._once.ledger.get(job_id_in(headers, task))
        if job is None and PARKED in headers:
            # It waits for another job. While that lives, each copy of it would be put aside again, and they would be
            # more each time.
            job = self._once.ledger.last(self._key(task, message))
            return job is None or not job.state.live
        # One that waits behind others in a worker's memory, while its job was run by way of a copy, is no orphan.
        return job is not None and not job.state.live and not self._is_told(task, headers)

    def _is_told(self, task: IdempotentTask, headers: Mapping[str, Any]) -> bool:
        """Whether Celery has the result: it is stored last, but for the count of a group that is a chord's."""
        with forks.no_fork:
            return not headers.get("group") and kept_of(task, headers["id"]).get("status") in READY_STATES

    def _key(self, task: IdempotentTask, message: Any) -> str:
        if told := message.headers.get(KEY):
            return str(told)
        # Sent by code that does not know the ledger. Whoever put it aside has opened it, and lived.
        message.accept = prepare_accept_content(self._once.app.conf.accept_content)
        args, kwargs, _ = message.payload
        return task.identity.of(args, kwargs, namespace=self._once.namespace, task_id=message.headers["id"]).key
