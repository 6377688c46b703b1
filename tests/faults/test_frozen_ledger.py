"""A ledger that accepts connections and says nothing: tasks that do not need it do not notice."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from faults.brokers import broker_on
from faults.conftest import Setting
from faults.scene import SOON, Scene, busyness
from faults.shop import receipt
from faults.workers import Worker
from oncelery.embedded.process import eventually
from oncelery.testing.failpoints import Failpoint
from oncelery.testing.servers import PostgresServer, ValkeyServer

#: How many plain tasks are sent at once.
BATCH = 40

#: In seconds: by then the work that waited for the ledger goes on.
AWAKE = 5.0


def rate(scene: Scene, *, while_: Callable[[], bool]) -> float:
    """Run plain tasks, batch after batch, as long as it is so; return how many were done in a second."""
    began, done = time.monotonic(), 0
    while while_() or not done:
        results = [scene.shop.greet.delay(f"number {number}") for number in range(BATCH)]
        assert eventually(lambda: all(result.state == "SUCCESS" for result in results), AWAKE * busyness())  # noqa: B023
        done += BATCH
    return done / (time.monotonic() - began)


@pytest.mark.parametrize(("pool", "ledger"), [("prefork", "private_valkey"), ("threads", "private_postgres")])
def test_plain_tasks_go_on_while_the_ledger_is_silent_and_guarded_ones_when_it_wakes(
    request: pytest.FixtureRequest, valkey: ValkeyServer, setting: Setting, *, pool: str, ledger: str
) -> None:
    own_store: ValkeyServer | PostgresServer = request.getfixturevalue(ledger)
    with setting(broker_on(valkey), store=own_store.url, lease=30.0) as scene:
        midway = Failpoint("mid-effect", "wait", scene.folder)
        worker = scene.start(midway, pool=pool, concurrency=4)
        running = scene.shop.charge.delay("order-1").id
        assert eventually(lambda: midway.fired == 1, SOON)

        own_store.pause()
        midway.release()
        rate(scene, while_=lambda: not has_missed_the_ledger(worker))
        own_store.resume()
        woke = time.monotonic()

        assert scene.returned(running, receipt("order-1"))
        assert scene.returned(scene.shop.charge.delay("order-2").id, receipt("order-2"))
        assert time.monotonic() - woke < AWAKE * busyness()


@pytest.mark.prove
@pytest.mark.parametrize("ledger", ["private_valkey", "private_postgres"])
def test_plain_tasks_keep_their_rate_while_the_ledger_is_silent_for_a_minute(
    request: pytest.FixtureRequest, valkey: ValkeyServer, setting: Setting, *, ledger: str
) -> None:
    own_store: ValkeyServer | PostgresServer = request.getfixturevalue(ledger)
    with setting(broker_on(valkey), store=own_store.url, lease=30.0) as scene:
        midway = Failpoint("mid-effect", "wait", scene.folder)
        worker = scene.start(midway, concurrency=3)
        running = scene.shop.charge.delay("order-1").id
        assert eventually(lambda: midway.fired == 1, SOON)
        before = rate(scene, while_=during(20.0))

        own_store.pause()
        midway.release()
        silent = rate(scene, while_=during(60.0))
        own_store.resume()
        woke = time.monotonic()

        assert scene.returned(running, receipt("order-1"))
        assert scene.returned(scene.shop.charge.delay("order-2").id, receipt("order-2"))
        took = time.monotonic() - woke
        print(f"plain tasks per second: {before:.0f} before, {silent:.0f} in silence; guarded after {took:.2f} s")  # noqa: T201
        assert has_missed_the_ledger(worker)
        assert silent >= 0.9 * before
        assert took < AWAKE


def during(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() < end


def has_missed_the_ledger(worker: Worker) -> bool:
    return "could not sweep" in worker.log
