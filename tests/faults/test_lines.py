"""Lines to the ledger and to the broker that break again and again: nothing is lost, and nothing runs a second time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from faults.brokers import broker_on
from faults.conftest import Setting
from faults.scene import SOON, Scene, through
from faults.shop import GRACE_VARIABLE, receipt
from oncelery import StoreUnavailableError
from oncelery.embedded.process import eventually
from oncelery.job import State
from oncelery.testing.proxy import FaultProxy
from oncelery.testing.servers import PostgresServer, RabbitMQServer, ValkeyServer

#: In seconds; longer than any fault here lasts, so that every run keeps its job.
LEASE = 10.0

#: How many jobs a worker runs at once. On gevent, Celery takes so many from Redis, and then none for up to two seconds.
AT_ONCE = {"prefork": 4, "threads": 4, "gevent": 50}

#: How often something befalls the line to the ledger, and that to the broker, after a job is sent.
LEDGER_BREAKS, BROKER_BREAKS = 0.3, 0.03


@pytest.mark.parametrize(
    ("pool", "brokers", "ledgers"),
    [
        ("prefork", "rabbitmq", "valkey"),
        ("prefork", "valkey", "postgres"),
        ("threads", "rabbitmq", "postgres"),
        ("threads", "valkey", "valkey"),
        ("gevent", "valkey", "valkey"),
    ],
)
@pytest.mark.parametrize("count", [50, pytest.param(1_000, marks=pytest.mark.prove)])
def test_jobs_run_once_each_while_the_lines_break(
    request: pytest.FixtureRequest, setting: Setting, *, pool: str, brokers: str, ledgers: str, count: int
) -> None:
    messages: ValkeyServer | RabbitMQServer = request.getfixturevalue(brokers)
    ledger: ValkeyServer | PostgresServer = request.getfixturevalue(ledgers)
    store = ledger.create_database() if isinstance(ledger, PostgresServer) else ledger.url
    chance = random.Random(f"{count} jobs on {pool}, {brokers} and {ledgers}")
    with (
        FaultProxy(ledger.port) as to_ledger,
        FaultProxy(messages.port) as to_broker,
        setting(broker_on(messages), store=to_ledger.url(store), lease=LEASE) as scene,
    ):
        far = through(scene, broker=to_broker.url(scene.broker.url))
        far.start(pool=pool, concurrency=AT_ONCE[pool], env={GRACE_VARIABLE: "1"})
        jobs = {}
        for order in (f"order-{number}" for number in range(count)):
            jobs[order] = send(scene, order)
            if chance.random() < LEDGER_BREAKS:
                chance.choice(FAULTS)(to_ledger, chance)
            if chance.random() < BROKER_BREAKS:
                to_broker.cut()
        to_ledger.losses.clear()

        assert all(scene.returned(job_id, receipt(order)) for order, job_id in jobs.items())
        assert scene.all_are(State.COMPLETED, jobs.values())
        assert scene.journal.verdict(list(jobs)).is_clean
        assert len(scene.journal.entries(what="start")) == count
        assert sorted(scene.commits()) == sorted(jobs.values())


def send(scene: Scene, order: str) -> str:
    """Send a job until the ledger has answered, as a caller may who was told that it has not."""
    while True:
        with suppress(StoreUnavailableError):
            sent: str = scene.shop.charge_in_step.delay(order, seconds=0.05).id
            return sent


# What may befall a line


def break_it(line: FaultProxy, _: random.Random) -> None:
    line.cut()


def lose_a_reply(line: FaultProxy, chance: random.Random) -> None:
    line.lose_reply(nth=chance.randint(1, 9))


def lose_a_request(line: FaultProxy, chance: random.Random) -> None:
    line.lose_request(nth=chance.randint(1, 9))


def stand_still(line: FaultProxy, chance: random.Random) -> None:
    over_at = time.monotonic() + chance.uniform(0.05, 0.5)
    line.freeze()
    assert eventually(lambda: time.monotonic() > over_at, SOON)
    line.thaw()


def crumble(line: FaultProxy, chance: random.Random) -> None:
    line.piece = chance.choice((0, 1, 3, 50))


FAULTS: tuple[Callable[[FaultProxy, random.Random], None], ...] = (
    break_it,
    lose_a_reply,
    lose_a_request,
    stand_still,
    crumble,
)
