"""Brokers that die, forget, stand still, hang up and deliver what is being done: the ledger knows better."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from guarded.versions import restores_often
from redis import Redis

from faults.brokers import Broker, broker_on
from faults.conftest import Setting
from faults.scene import SOON, Scene
from faults.shop import GRACE_VARIABLE, receipt
from oncelery.embedded.process import eventually
from oncelery.job import State
from oncelery.testing.failpoints import Failpoint
from oncelery.testing.proxy import FaultProxy
from oncelery.testing.servers import RabbitMQServer, ValkeyServer

#: How long RabbitMQ lets a consumer hold a message, in milliseconds.
CONSUMER_TIMEOUT = 4_000

#: For workers whose sweeper is to ask for a missing message after a second.
IMPATIENT = {GRACE_VARIABLE: "1"}


@pytest.fixture(scope="module")
def own_valkey() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


@pytest.fixture(scope="module")
def own_rabbitmq(rabbitmq: RabbitMQServer) -> Iterator[RabbitMQServer]:
    assert rabbitmq.is_running  # or the test is skipped, for there is none
    with RabbitMQServer(options={"consumer_timeout": str(CONSUMER_TIMEOUT)}) as server:
        yield server


@pytest.fixture(params=["own_valkey", "own_rabbitmq"])
def own_broker(request: pytest.FixtureRequest) -> Broker:
    """Give each broker in turn on a server that only this module uses, to kill and to pause."""
    return broker_on(request.getfixturevalue(request.param))


@pytest.fixture
def own_scene(own_broker: Broker, setting: Setting) -> Iterator[Scene]:
    with setting(own_broker) as scene:
        yield scene


def test_a_broker_that_is_killed_and_restarted_under_running_tasks_loses_and_repeats_nothing(own_scene: Scene) -> None:
    midway = Failpoint("mid-effect", "wait", own_scene.folder)
    own_scene.start(midway, env=IMPATIENT)
    orders = [f"order-{number}" for number in range(6)]
    jobs = {order: own_scene.shop.charge.delay(order).id for order in orders}
    assert eventually(lambda: midway.fired == 1, SOON)

    own_scene.broker.server.kill()
    # Accepted, though nobody can be told.
    jobs["while it was away"] = own_scene.shop.charge.delay("while it was away").id
    midway.release()
    own_scene.broker.server.restart()

    assert all(own_scene.returned(job_id, receipt(order)) for order, job_id in jobs.items())
    assert own_scene.journal.verdict(list(jobs)).is_clean
    assert sorted(own_scene.commits()) == sorted(jobs.values())


def test_a_worker_that_holds_a_message_and_could_take_another_outlives_its_broker(own_scene: Scene) -> None:
    midway = Failpoint("mid-effect", "wait", own_scene.folder)
    worker = own_scene.start(midway, concurrency=2)
    held = own_scene.shop.charge.delay("held").id
    assert eventually(lambda: midway.fired == 1, SOON)

    own_scene.broker.server.kill()
    assert eventually(lambda: "Cannot connect" in worker.log or worker.status is not None, SOON)
    own_scene.broker.server.restart()
    midway.release()

    later = own_scene.shop.charge.delay("later").id
    assert own_scene.returned(held, receipt("held"))
    assert own_scene.returned(later, receipt("later"))
    assert worker.status is None


def test_a_broker_that_stands_still_delays_and_repeats_nothing(own_scene: Scene) -> None:
    own_scene.start()
    jobs = {order: own_scene.shop.charge.delay(order, seconds=0.2).id for order in (f"order-{n}" for n in range(8))}
    assert eventually(lambda: len(own_scene.journal.entries()) >= 2, SOON)

    own_scene.broker.server.pause()
    try:
        # What runs ends, and is recorded.
        starts = len(own_scene.journal.entries(what="start"))
        assert eventually(lambda: len(own_scene.commits()) >= starts, SOON)
    finally:
        own_scene.broker.server.resume()

    assert all(own_scene.returned(job_id, receipt(order)) for order, job_id in jobs.items())
    assert own_scene.journal.verdict(list(jobs)).is_clean


def test_every_job_of_a_broker_that_was_emptied_is_published_again(own_valkey: ValkeyServer, setting: Setting) -> None:
    with setting(broker_on(own_valkey)) as scene:
        jobs = {order: scene.shop.charge.delay(order).id for order in (f"order-{number}" for number in range(50))}

        with Redis.from_url(scene.broker.url) as client:
            client.flushall()
        scene.start(env=IMPATIENT)

        assert eventually(lambda: scene.all_are(State.COMPLETED, jobs.values()), SOON)
        assert scene.journal.verdict(list(jobs)).is_clean


@restores_often
def test_a_task_longer_than_the_visibility_timeout_runs_once_however_often_it_is_delivered(
    valkey: ValkeyServer, setting: Setting
) -> None:
    impatient = {"visibility_timeout": 1, "unacked_restore_interval": 0.2, "unacked_restore_throttle": 1}
    with setting(replace(broker_on(valkey), transport_options=impatient)) as scene:
        midway = Failpoint("mid-effect", "wait", scene.folder)
        worker = scene.start(midway)
        job_id = scene.shop.charge.delay("order-1").id

        # To acknowledge the copy takes the message itself away as well; the ledger has it.
        assert eventually(lambda: worker.log.count(f"[{job_id}] received") >= 2, SOON)
        midway.release()

        assert scene.returned(job_id, receipt("order-1"))
        assert len(scene.journal.entries(what="start")) == 1
        assert scene.journal.verdict(["order-1"]).is_clean


@pytest.mark.parametrize("cancel", [False, True])
def test_a_task_whose_worker_loses_its_connection_takes_effect_once(
    own_rabbitmq: RabbitMQServer, setting: Setting, *, cancel: bool
) -> None:
    with FaultProxy(own_rabbitmq.port) as proxy, setting(broker_on(own_rabbitmq)) as scene:
        midway = Failpoint("mid-effect", "wait", scene.folder)
        lossy = replace(scene.broker, url=proxy.url(scene.broker.url))
        settings = {"worker_cancel_long_running_tasks_on_connection_loss": cancel}
        worker = scene.start(midway, broker=lossy, settings=settings)
        job_id = scene.shop.charge.delay("order-1").id
        assert eventually(lambda: midway.fired == 1, SOON)

        proxy.cut()
        # RabbitMQ sends the message again, to a worker that runs it or has ended it.
        assert eventually(lambda: worker.log.count(f"[{job_id}] received") >= 2, SOON)
        midway.release()

        assert scene.returned(job_id, receipt("order-1"))
        assert scene.journal.verdict(["order-1"]).is_clean
        assert scene.commits() == [job_id]
        assert len(scene.journal.entries(what="start")) == 1 + cancel


def test_a_task_longer_than_the_consumer_timeout_runs_once(own_rabbitmq: RabbitMQServer, setting: Setting) -> None:
    with setting(broker_on(own_rabbitmq)) as scene:
        midway = Failpoint("mid-effect", "wait", scene.folder)
        both = [scene.start(midway) for _ in range(2)]
        job_id = scene.shop.charge.delay("order-1").id

        # The broker closes the channel, which ends the worker when its task has ended, and sends the message again.
        assert eventually(lambda: sum(worker.log.count(f"[{job_id}] received") for worker in both) >= 2, SOON)
        midway.release()

        assert scene.returned(job_id, receipt("order-1"))
        assert len(scene.journal.entries(what="start")) == 1
        assert scene.journal.verdict(["order-1"]).is_clean


def test_a_message_that_is_sent_twice_because_a_reply_was_lost_runs_once(
    valkey: ValkeyServer, setting: Setting
) -> None:
    with FaultProxy(valkey.port) as proxy, setting(broker_on(valkey)) as scene:
        worker = scene.start()
        lost = proxy.lose_reply(b"LPUSH")
        scene.shop.app.conf.update(broker_url=proxy.url(scene.broker.url))

        job_id = scene.shop.charge.delay("order-1").id

        assert scene.returned(job_id, receipt("order-1"))
        assert lost.happened.is_set()
        assert eventually(lambda: worker.log.count(f"[{job_id}] received") == 2, SOON)
        assert scene.journal.verdict(["order-1"]).is_clean
