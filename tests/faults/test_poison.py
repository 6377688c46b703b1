"""Jobs that take their process along: each ends as a dead letter, and its neighbours do not notice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from faults.brokers import broker_on
from faults.conftest import Setting
from faults.scene import SOON, Scene
from faults.shop import receipt
from faults.workers import Worker
from oncelery.embedded.process import eventually
from oncelery.job import Reason, State
from oncelery.testing.servers import RabbitMQServer

#: What the tasks of the shop leave at their defaults.
MAX_CRASHES = 3
MAX_RECEIVED = 3


@pytest.fixture(scope="module")
def worker(stage: Scene) -> Iterator[Worker]:
    worker = stage.start()
    yield worker
    worker.stop()


@pytest.mark.usefixtures("worker")
def test_a_job_that_kills_its_child_is_buried_and_its_neighbours_finish(stage: Scene) -> None:
    neighbours = [f"neighbour {number}" for number in range(20)]

    before = {order: stage.shop.charge.delay(order).id for order in neighbours[:10]}
    poison = stage.shop.die.delay("poison").id
    after = {order: stage.shop.charge.delay(order).id for order in neighbours[10:]}

    assert eventually(lambda: stage.job(poison).state is State.BURIED, SOON)
    assert stage.job(poison).reason == Reason.CRASHED
    starts = [entry for entry in stage.journal.entries(what="start") if entry.key == "poison"]
    assert len(starts) == MAX_CRASHES + 1
    assert eventually(lambda: stage.result(poison).state == "FAILURE", SOON)
    assert "JobBuriedError" in repr(stage.result(poison).result)
    assert all(stage.returned(job_id, receipt(order)) for order, job_id in (before | after).items())
    effects = [entry.key for entry in stage.journal.entries() if entry.key in neighbours]
    assert sorted(effects) == sorted(neighbours)


@pytest.mark.usefixtures("worker")
def test_a_message_that_kills_its_child_before_the_run_is_buried_as_never_started(stage: Scene) -> None:
    poison = stage.shop.die_before_begin.delay("bomb").id
    neighbour = stage.shop.charge.delay("neighbour of a bomb").id

    assert eventually(lambda: stage.job(poison).state is State.BURIED, SOON)
    assert stage.job(poison).reason == Reason.NEVER_STARTED
    assert eventually(lambda: stage.result(poison).state == "FAILURE", SOON)
    assert stage.returned(neighbour, receipt("neighbour of a bomb"))


def test_a_message_that_kills_the_worker_that_reads_it_is_buried_as_never_started(
    rabbitmq: RabbitMQServer, setting: Setting
) -> None:
    with setting(broker_on(rabbitmq)) as scene:
        worker = scene.start()
        poison = scene.shop.charge.apply_async(["bomb"], serializer="bomb").id

        for _ in range(MAX_RECEIVED + 1):
            assert eventually(lambda: not worker.is_running, SOON)
            worker.restart()

        assert eventually(lambda: scene.job(poison).state is State.BURIED, SOON)
        assert scene.job(poison).reason == Reason.NEVER_STARTED
        neighbour = scene.shop.charge.delay("order-1").id
        assert scene.returned(neighbour, receipt("order-1"))
