from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from faults.brokers import Broker
from kombu import Connection, Exchange, Queue

from oncelery import Oncelery
from oncelery.answers import Granted
from oncelery.celery.mirror import ERROR_LENGTH
from oncelery.embedded.process import eventually
from oncelery.job import Failure, Reason, State, Submission
from oncelery.policy import Policy
from oncelery.settlement import Bury, Complete
from oncelery.testing.servers import RabbitMQServer

KEY = "a" * 64
BODY = json.dumps(["shop.charge", ["o-1"], {}, {}]).encode()
ERROR = Failure(type="CardRefused", message="no funds")


def once_on(url: str, **settings: Any) -> Oncelery:  # noqa: ANN401 - those of Oncelery
    app = Celery("shop", broker=url, set_as_current=False)
    return Oncelery(app, store="memory://", dead_letter_queue="dead", **settings)


def bury(once: Oncelery, *, body: bytes = BODY, error: Failure = ERROR, job_id: str = "job-1") -> None:
    submission = Submission(id=job_id, key=KEY, task="shop.charge", scope="acme", body=body)
    once.ledger.reserve(submission)
    answer = once.ledger.begin(submission, Policy())
    assert isinstance(answer, Granted)
    once.ledger.settle(answer.lease, Bury(reason=Reason.FAILED, error=error))


def take(connection: Connection, queue: str = "dead") -> Any:  # noqa: ANN401 - a message of kombu, which is untyped
    bound = Queue(queue)(connection.default_channel)
    arrived: list[Any] = []

    def has_arrived() -> bool:
        # RabbitMQ routes a message after its publisher has gone on.
        arrived.extend(message for message in [bound.get(no_ack=True)] if message is not None)
        return bool(arrived)

    assert eventually(has_arrived, 10), f"there is no message in {queue!r}"
    return arrived[0]


@pytest.fixture
def once() -> Iterator[Oncelery]:
    once = once_on("memory://")
    with once.app.connection_for_read() as connection:
        yield once
        Queue("dead")(connection.default_channel).purge()


def test_a_dead_letter_is_copied_as_it_is_with_what_is_known_of_it(once: Oncelery) -> None:
    bury(once)

    with once.app.connection_for_read() as connection:
        message = take(connection)
    assert message.payload == ["shop.charge", ["o-1"], {}, {}]
    assert {name: value for name, value in message.headers.items() if name.startswith("oncelery")} == {
        "oncelery_job_id": "job-1",
        "oncelery_key": KEY,
        "oncelery_task": "shop.charge",
        "oncelery_scope": "acme",
        "oncelery_reason": "failed",
        "oncelery_error": "CardRefused: no funds",
        "oncelery_attempt": 1,
    }


def test_a_body_that_kills_its_reader_is_copied_unread(once: Oncelery) -> None:
    bury(once, body=b"\0application/x-python-serialize\nbinary\ncos\nabort\n(tR.")

    with once.app.connection_for_read() as connection:
        message = take(connection)
    assert (message.content_type, message.content_encoding) == ("application/x-python-serialize", "binary")
    assert message.body == b"cos\nabort\n(tR."


def test_a_long_error_is_cut_to_what_a_header_holds(once: Oncelery) -> None:
    bury(once, error=Failure(type="ValueError", message="x" * 100_000))

    with once.app.connection_for_read() as connection:
        message = take(connection)
    assert len(message.headers["oncelery_error"]) == ERROR_LENGTH


def test_only_dead_letters_are_copied(once: Oncelery) -> None:
    submission = Submission(id="job-1", key=KEY, task="shop.charge", body=BODY)
    once.ledger.reserve(submission)
    answer = once.ledger.begin(submission, Policy())
    assert isinstance(answer, Granted)
    once.ledger.settle(answer.lease, Complete(result=b"1"))

    with once.app.connection_for_read() as connection:
        assert Queue("dead")(connection.default_channel).get() is None


def test_a_broker_that_is_down_is_a_warning_and_the_dead_letter_stays(caplog: pytest.LogCaptureFixture) -> None:
    once = once_on("redis://127.0.0.1:1/0")

    bury(once)

    job = once.jobs.get("job-1")
    assert job
    assert job.state is State.BURIED
    assert "could not copy dead letter job-1 to queue 'dead'" in caplog.text


def test_a_worker_does_not_consume_the_queue_that_is_copied_to(once: Oncelery) -> None:
    bury(once)

    assert "dead" not in once.app.amqp.queues


def test_a_real_broker_takes_the_copies_also_when_nobody_has_declared_the_queue(broker: Broker) -> None:
    once = once_on(broker.url)

    bury(once)
    bury(once, job_id="job-2")

    with once.app.connection_for_read() as connection:
        assert [take(connection).headers["oncelery_job_id"] for _ in range(2)] == ["job-1", "job-2"]
    once.app.close()


def test_a_queue_behind_a_dead_letter_exchange_is_used_as_it_was_declared(rabbitmq: RabbitMQServer) -> None:
    url = rabbitmq.create_vhost()
    exchange = Exchange("graves", type="fanout")
    queue = Queue("dead", exchange=exchange, queue_arguments={"x-max-length": 10, "x-message-ttl": 60_000})
    with Connection(url) as connection:
        queue(connection.default_channel).declare()
        once = once_on(url)

        bury(once)

        assert take(connection).headers["oncelery_job_id"] == "job-1"
    once.app.close()
