"""Does the broker deliver as it should, and do workers stay with it?"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from types import MappingProxyType

from oncelery.operations.checks.check import Complaint, error, warning
from oncelery.operations.facts import Facts, QueueFacts

#: After how many deliveries RabbitMQ 4 drops a message of a quorum queue, unless the queue says otherwise. From that
#: version on, a negative limit means no limit; before, it means 0.
QUORUM_LIMIT = 20
QUORUM_LIMIT_SINCE = (4, 0)

#: The option that says how long a silent broker is listened to, by its transport.
SILENCE_OPTIONS = MappingProxyType({"redis": "socket_timeout", "amqp": "read_timeout"})

#: How long RabbitMQ lets a consumer hold a message, unless it is told otherwise.
CONSUMER_TIMEOUT = timedelta(minutes=30)


@error
def broker_unreachable(facts: Facts) -> Iterator[Complaint]:
    """Jobs are accepted and wait in the ledger, but no worker is told of them."""
    if facts.broker.missing:
        yield f"the broker cannot be asked: {facts.broker.error}", f"pip install 'celery[{facts.broker.missing}]'"
    elif facts.broker.error:
        yield f"the broker does not answer: {facts.broker.error}", "start the server, or correct broker_url"


@error
def broker_is_replica(facts: Facts) -> Iterator[Complaint]:
    """A replica refuses every message."""
    if facts.broker.server and facts.broker.server.replica:
        yield "broker_url leads to a replica", 'app.conf.broker_url = "redis://primary:6379/0"'


@warning
def visibility_timeout(facts: Facts) -> Iterator[Complaint]:
    """Redis delivers a message again when it is not acknowledged in time, however well its task runs or waits.

    That is a needless duplicate of a guarded task, and a second run of any other.
    """
    limit = facts.visibility_timeout
    if limit is None:
        return
    longest = max([facts.store.longest_delay, *(policy.backoff.most for _, policy in facts.guarded)])
    slow = {f"one run in a hundred of {name} takes": span for name, span in facts.store.p99.items()}
    for what, span in {**slow, "a delay (ETA, countdown, back-off) is": longest}.items():
        if span >= limit:
            seconds = int(span.total_seconds() * 2)
            yield (
                f"visibility_timeout is {limit.total_seconds():.0f} s, and {what} {span.total_seconds():.0f} s or more",
                f'app.conf.broker_transport_options = {{"visibility_timeout": {seconds}}}',
            )


@warning
def consumer_timeout(facts: Facts) -> Iterator[Complaint]:
    """RabbitMQ closes the channel of a consumer that acknowledges too late, and delivers all its messages again."""
    if facts.broker.kind != "amqp":
        return
    for name, span in facts.store.p99.items():
        if span >= CONSUMER_TIMEOUT:
            yield (
                f"one run in a hundred of {name} takes {span.total_seconds():.0f} s or more; RabbitMQ waits 30 minutes",
                f"consumer_timeout = {int(span.total_seconds() * 2000)}  # in rabbitmq.conf, milliseconds",
            )


@error
def quorum_limit_negative(facts: Facts) -> Iterator[Complaint]:
    """RabbitMQ 3 takes a negative delivery limit for 0, and drops a message when it is delivered for the second time.

    After the death of a child or worker, tasks that are not guarded are lost, and guarded ones wait for the sweeper.
    """
    if not facts.broker.version or facts.broker.version >= QUORUM_LIMIT_SINCE:
        return
    version = ".".join(map(str, facts.broker.version))
    for queue in facts.broker.queues:
        if _is_quorum(queue) and int(queue.arguments.get("x-delivery-limit", 0)) < 0:
            yield (
                f"queue {queue.name!r} drops redelivered messages: RabbitMQ {version} reads x-delivery-limit -1 as 0",
                f'Queue("{queue.name}", queue_arguments={{"x-queue-type": "quorum"}})  # delete the old queue',
            )


@warning
def quorum_delivery_limit(facts: Facts) -> Iterator[Complaint]:
    """A quorum queue drops a message without a word after so many deliveries.

    Tasks that are not guarded are then lost, and guarded ones wait until the sweeper misses them.
    """
    needed = max([facts.settings.max_received, *(policy.max_crashes for _, policy in facts.guarded)]) + 2
    for queue in facts.broker.queues:
        limit, caught = _delivery_limit(queue, facts.broker.version), "x-dead-letter-exchange" in queue.arguments
        if limit is None:
            continue
        if not caught:
            unlimited = ', "x-delivery-limit": -1' if facts.broker.version >= QUORUM_LIMIT_SINCE else ""
            yield (
                f"queue {queue.name!r} drops a message after {limit} deliveries",
                f'Queue("{queue.name}", queue_arguments={{"x-queue-type": "quorum"{unlimited}}})',
            )
        elif limit < needed:
            yield (
                f"queue {queue.name!r} gives up after {limit} deliveries, before the ledger does",
                f'Queue("{queue.name}", queue_arguments={{..., "x-delivery-limit": {needed}}})',
            )


@warning
def broker_silence(facts: Facts) -> Iterator[Complaint]:
    """A publisher waits for ever for a broker that accepts connections and says nothing, or is behind a cut line."""
    option = SILENCE_OPTIONS.get(facts.broker.kind)
    if option and not (facts.conf.get("broker_transport_options") or {}).get(option):
        yield (
            f"broker_transport_options has no {option}",
            f'app.conf.broker_transport_options = {{"{option}": 30}}  # or Oncelery(app, recommended=True)',
        )


@warning
def broker_retry_on_startup(facts: Facts) -> Iterator[Complaint]:
    """A worker that is started while the broker is away ends instead of waiting for it."""
    # Where it is not set, broker_connection_retry holds for the start, too.
    if facts.conf.get("broker_connection_retry_on_startup") is False:
        yield (
            "broker_connection_retry_on_startup is off",
            "app.conf.broker_connection_retry_on_startup = True  # or Oncelery(app, recommended=True)",
        )


@warning
def broker_retries(facts: Facts) -> Iterator[Complaint]:
    """A worker that cannot reach its broker for a while ends for good."""
    if not facts.conf:
        return
    if facts.conf.get("broker_connection_retry") is False:
        yield "broker_connection_retry is off", "app.conf.broker_connection_retry = True"
    elif retries := facts.conf.get("broker_connection_max_retries"):
        yield (
            f"workers give up after {retries} tries to connect",
            "app.conf.broker_connection_max_retries = None  # or Oncelery(app, recommended=True)",
        )


@warning
def prefetch(facts: Facts) -> Iterator[Complaint]:
    """Messages that a busy worker has fetched wait there while others are idle, and come back late if it dies."""
    multiplier = _prefetch(facts)
    if multiplier != 1:
        ahead = "without a limit" if multiplier == 0 else f"{multiplier} for each process"
        yield (
            f"workers fetch messages ahead: {ahead}",
            "app.conf.worker_prefetch_multiplier = 1  # or Oncelery(app, recommended=True)",
        )
        return
    for worker in facts.workers:
        if worker.prefetched > worker.concurrency:
            yield (
                f"worker {worker.name} fetches {worker.prefetched} messages for {worker.concurrency} processes",
                "celery worker --prefetch-multiplier 1",
            )


CHECKS = (
    broker_unreachable,
    broker_is_replica,
    visibility_timeout,
    consumer_timeout,
    quorum_limit_negative,
    quorum_delivery_limit,
    broker_silence,
    broker_retry_on_startup,
    broker_retries,
    prefetch,
)


def _prefetch(facts: Facts) -> int:
    return int(facts.conf.get("worker_prefetch_multiplier", 1))


def _is_quorum(queue: QueueFacts) -> bool:
    return queue.arguments.get("x-queue-type") == "quorum"


def _delivery_limit(queue: QueueFacts, version: tuple[int, ...]) -> int | None:
    """After how many deliveries a message is dropped; None for never."""
    if not _is_quorum(queue):
        return None
    limit = int(queue.arguments.get("x-delivery-limit", QUORUM_LIMIT if version >= QUORUM_LIMIT_SINCE else -1))
    return None if limit < 0 else limit
