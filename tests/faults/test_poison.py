"""Jobs that take their process along: each ends as a dead letter, and its neighbours do not notice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from faults.brokers import broker_on
from faults.conftest import Setting
from faults.scene import SOON, Scene
from faults.shop import DIES_BEFORE_BEGIN, GRACE_VARIABLE, receipt
from faults.workers import Worker
from oncelery.celery.publishing import publish_again
from oncelery.embedded.process import ServerStartError, eventually
from oncelery.job import Reason, State

#: What the tasks of the shop leave at their defaults.
MAX_CRASHES = 3
MAX_RECEIVED = 3

CHILDREN = 2

#: Of one message: many more than may be the death of somebody, and fewer than a worker fetches in advance.
COPIES = 12


@pytest.fixture(scope="module")
def worker(stage: Scene) -> Iterator[Worker]:
    worker = stage.start(concurrency=CHILDREN, options=["--prefetch-multiplier", "16"])
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
    assert stage.workers.started[0].log.count(f"[{poison}] received") <= MAX_RECEIVED + 1


@pytest.mark.usefixtures("worker")
def test_copies_of_a_message_that_wait_for_busy_children_do_not_bury_its_job(stage: Scene) -> None:
    sign = stage.folder / "go on"
    busy = [stage.shop.charge_when_told.delay(f"busy {number}", str(sign)).id for number in range(CHILDREN)]
    assert eventually(lambda: stage.all_are(State.RUNNING, busy), SOON)
    waiting = stage.shop.charge.delay("waiting").id
    for _ in range(COPIES):
        publish_again(stage.shop.once, stage.job(waiting), resent=True)
    last = stage.shop.charge.delay("behind the copies").id

    log = stage.workers.started[0]
    assert eventually(lambda: f"[{last}] received" in log.log, SOON)
    assert stage.job(waiting).state is State.QUEUED
    sign.touch()

    assert stage.returned(waiting, receipt("waiting"))
    assert stage.returned(last, receipt("behind the copies"))
    assert stage.commits().count(waiting) == 1


@pytest.mark.parametrize(
    ("server", "pool", "task"),
    [
        # Dies in its main process as soon as it has the message; and once a thread has it, long after.
        ("rabbitmq", "prefork", "bomb"),
        ("valkey", "threads", DIES_BEFORE_BEGIN),
    ],
)
def test_a_message_that_kills_the_whole_worker_before_the_run_is_buried_as_never_started(
    request: pytest.FixtureRequest, setting: Setting, server: str, pool: str, task: str
) -> None:
    with setting(broker_on(request.getfixturevalue(server)), lease=1.0) as scene:
        worker = scene.start(pool=pool, env={GRACE_VARIABLE: "0.5"})
        dies = scene.shop.charge if task == "bomb" else scene.shop.die_before_begin
        poison = dies.apply_async(["bomb"], serializer="bomb" if task == "bomb" else "json").id

        for _ in range(MAX_RECEIVED + 1):
            assert eventually(lambda: not worker.is_running, SOON)
            # The message may be there again, and be the death of it at once.
            with suppress(ServerStartError):
                worker.restart()

        assert eventually(lambda: scene.job(poison).state is State.BURIED, SOON)
        assert scene.job(poison).reason == Reason.NEVER_STARTED
        assert eventually(lambda: scene.result(poison).state == "FAILURE", SOON)
        neighbour = scene.shop.charge.delay("order-1").id
        assert scene.returned(neighbour, receipt("order-1"))
        assert worker.is_running


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("discarded", [False, True])
def test_a_stray_copy_of_a_dead_letter_that_never_started_is_not_opened(stage: Scene, *, discarded: bool) -> None:
    once = stage.shop.once
    poison = stage.shop.die_before_begin.apply_async([f"stray, {discarded}"], countdown=3600).id
    letter = stage.job(poison)
    once.ledger.received(poison, limit=0)
    assert stage.job(poison).reason == Reason.NEVER_STARTED
    if discarded:
        once.dead_letters.discard(poison)
    deaths = stage.workers.started[0].log.count("WorkerLostError")

    publish_again(once, letter, resent=True)
    after = stage.shop.charge.delay(f"after a stray, {discarded}").id

    assert stage.returned(after, receipt(f"after a stray, {discarded}"))
    # The one that waits for its time.
    assert stage.workers.started[0].log.count(f"[{poison}] received") == 1
    assert stage.workers.started[0].log.count("WorkerLostError") == deaths
