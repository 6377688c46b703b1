"""A broker that accepts connections and says nothing: a worker that is alone comes back."""

from __future__ import annotations

import pytest

from faults.brokers import broker_on
from faults.conftest import Setting
from faults.scene import SOON, through
from oncelery.celery.recommended import SILENCE
from oncelery.embedded.process import eventually
from oncelery.testing.proxy import FaultProxy
from oncelery.testing.servers import RabbitMQServer, ValkeyServer

#: How AMQP names the method that sets the prefetch count; a worker that gets a task for later waits for its answer.
BASIC_QOS = b"\x00\x3c\x00\x0a"

#: So often, in seconds, that RabbitMQ misses the worker after a while; and so seldom that it does not at once.
HEARTBEAT = {"broker_heartbeat": 20}


@pytest.mark.prove
@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_worker_that_is_alone_comes_back_when_the_answer_to_basic_qos_never_comes(
    rabbitmq: RabbitMQServer, setting: Setting, *, pool: str
) -> None:
    with FaultProxy(rabbitmq.port) as proxy, setting(broker_on(rabbitmq)) as scene:
        worker = through(scene, broker=proxy.url(scene.broker.url)).start(pool=pool, settings=HEARTBEAT)
        silent = proxy.silence(BASIC_QOS)

        later = scene.shop.greet.apply_async(("you",), countdown=1)

        assert eventually(silent.happened.is_set, SOON)
        assert eventually(lambda: later.state == "SUCCESS", SILENCE.total_seconds() + 2 * SOON)
        assert "Connection to broker lost" in worker.log


def test_an_idle_queue_is_not_taken_for_a_silent_redis(valkey: ValkeyServer, setting: Setting) -> None:
    quick = {"broker_transport_options": {"socket_timeout": 0.5, "retry_on_timeout": True}}
    with setting(broker_on(valkey)) as scene:
        worker = scene.start(settings=quick)
        # It has listened to an empty queue for several times as long by then.
        assert eventually(lambda: scene.shop.greet.apply_async(("you",), countdown=3).get(timeout=SOON), SOON)

        assert "Connection to broker lost" not in worker.log
