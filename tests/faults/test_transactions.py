"""Effects in SQL while everything is killed: `run.transaction(...)` on both kinds of ledger, with real workers."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import sqlalchemy
from guarded.books import AMOUNT, Books

from faults.brokers import broker_on
from faults.clerk import Office, office_of, receipt
from faults.scene import SOON
from faults.traps import Trap
from faults.workers import Worker
from oncelery.embedded.process import ServerProcess, eventually
from oncelery.job import Cause, Job, State
from oncelery.sql import inbox
from oncelery.testing.proxy import FaultProxy
from oncelery.testing.servers import PostgresServer, ValkeyServer

LEDGERS = ["in the books' database", "on Redis, with an inbox"]

#: Where a child is killed, and whether the job is completed by then if its ledger is in the books' database.
PLACES = {"before-commit": False, "no-reply-to-commit": True, "after-commit": True}


def fresh_books(url: str) -> Books:
    books = Books(url)
    books.open()
    inbox.create(url)
    return books


@pytest.fixture(scope="module")
def line(postgres: PostgresServer) -> Iterator[FaultProxy]:
    """Give the way to the books, on which replies get lost."""
    with FaultProxy(postgres.port) as line:
        yield line


@pytest.fixture(scope="module", params=LEDGERS)
def office(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    postgres: PostgresServer,
    valkey: ValkeyServer,
) -> Iterator[Office]:
    books = fresh_books(postgres.create_database())
    store = books.url if request.param == LEDGERS[0] else valkey.url
    folder = tmp_path_factory.mktemp("office")
    with office_of(folder, broker=broker_on(valkey), store=store, results=valkey.url, books=books) as office:
        yield office


@pytest.fixture(scope="module")
def traps(office: Office) -> dict[str, Trap]:
    return {place: Trap(place, "kill", office.folder) for place in PLACES}


@pytest.fixture(scope="module")
def worker(office: Office, traps: dict[str, Trap], line: FaultProxy) -> Iterator[Worker]:
    worker = office.start(*(trap.point for trap in traps.values()), books=line.url(office.books.url))
    yield worker
    sys.stdout.write(worker.log)
    worker.stop()


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("kind", ["psycopg", "session"])
@pytest.mark.parametrize("place", PLACES)
def test_a_child_that_is_killed_at_its_commit_has_its_effect_once(
    office: Office, traps: dict[str, Trap], line: FaultProxy, place: str, kind: str
) -> None:
    order = f"{place} through {kind}"
    trap = traps[place]
    trap.reset()
    trap.set()
    if place == "no-reply-to-commit":
        line.lose_reply(b"COMMIT")

    job_id = office.clerk.enter.delay(order, kind).id

    assert eventually(lambda: office.result(job_id).state == "SUCCESS", SOON)
    assert office.result(job_id).result == receipt(order)
    assert trap.caught
    assert office.books.entries.count(order) == 1
    assert office.books.balance == AMOUNT * len(office.books.entries)
    assert office.job(job_id).state is State.COMPLETED
    cut_short = [] if office.is_joined and PLACES[place] else [Cause.CRASH]
    assert [attempt.cause for attempt in office.job(job_id).past] == cut_short


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("place", ["before-commit", "after-commit"])
def test_it_holds_for_books_in_a_file_too(office: Office, traps: dict[str, Trap], place: str, tmp_path: Path) -> None:
    books = fresh_books(f"sqlite:///{tmp_path}/books.db")
    traps[place].reset()
    traps[place].set()

    job_id = office.clerk.enter.delay(f"{place} in a file", "session", url=books.url).id

    assert eventually(lambda: office.result(job_id).state == "SUCCESS", SOON)
    assert traps[place].caught
    assert (books.entries, books.balance) == ([f"{place} in a file"], AMOUNT)
    assert [attempt.cause for attempt in office.job(job_id).past] == [Cause.CRASH]
    books.close()


@pytest.mark.prove
@pytest.mark.parametrize("then", ["resume", "kill"])
def test_a_worker_that_freezes_at_its_commit_and_then_wakes_or_dies_has_its_effect_once(
    office: Office, tmp_path: Path, then: str
) -> None:
    order = f"frozen, then {then}"
    trap = Trap("before-commit", "stop", tmp_path)
    trap.set()
    frozen = office.start(trap.point)
    job_id = office.clerk.enter.delay(order).id
    assert eventually(lambda: trap.caught is not None, SOON)
    frozen.pause()
    other = office.start()

    assert eventually(lambda: is_up_for_takeover(office.job(job_id)), SOON)
    getattr(frozen, then)()

    assert eventually(lambda: office.job(job_id).state is State.COMPLETED, SOON)
    assert eventually(lambda: office.result(job_id).state == "SUCCESS", SOON)
    assert office.books.entries.count(order) == 1
    assert office.books.balance == AMOUNT * len(office.books.entries)
    for worker in (frozen, other):
        worker.kill()


def is_up_for_takeover(job: Job) -> bool:
    """Whether another run has begun, or may."""
    return job.attempt > 1 or (job.lease_until is not None and job.lease_until.timestamp() < time.time())


# Everything at once


@pytest.fixture(params=LEDGERS)
def shaken(
    request: pytest.FixtureRequest, private_postgres: PostgresServer, valkey: ValkeyServer, tmp_path: Path
) -> Iterator[tuple[Office, dict[str, Callable[[], object]]]]:
    """Give an office, and how to strike its database and the store of its ledger."""
    books = fresh_books(private_postgres.create_database())
    store = private_postgres if request.param == LEDGERS[0] else request.getfixturevalue("durable_valkey")
    url = books.url if store is private_postgres else store.url
    with office_of(tmp_path, broker=broker_on(valkey), store=url, results=valkey.url, books=books) as office:
        yield (
            office,
            {
                "database": lambda: kill_and_restart(private_postgres),
                "store": lambda: kill_and_restart(store),
            },
        )


@pytest.mark.parametrize(
    ("count", "blows"),
    [
        (60, {"child": 4, "worker": 1, "database": 1, "store": 1}),
        pytest.param(500, {"child": 40, "worker": 6, "database": 6, "store": 6}, marks=pytest.mark.prove),
    ],
)
def test_each_job_adds_one_row_and_one_amount_while_everything_is_killed(
    shaken: tuple[Office, dict[str, Callable[[], object]]], count: int, blows: dict[str, int]
) -> None:
    office, strike = shaken
    books = office.books
    chance = random.Random(f"{count} jobs, joined: {office.is_joined}")
    worker = office.start(concurrency=4)
    strike = {
        **strike,
        "child": lambda: kill_a_child(worker, chance),
        "worker": lambda: kill_and_restart(worker),
    }
    orders = [f"order-{number}" for number in range(count)]
    kinds = ("psycopg", "connection", "session", "engine")
    for number, order in enumerate(orders):
        office.clerk.enter.delay(order, kinds[number % 4], chance.uniform(0.02, 0.1))

    plan = list(Counter(blows).elements())
    chance.shuffle(plan)
    for entered, blow in zip(sorted(chance.sample(range(3, count - 5), len(plan))), plan, strict=True):
        assert eventually(lambda: has_entered(books, entered), SOON)  # noqa: B023 - called at once
        strike[blow]()

    assert eventually(lambda: office.completed() == count, 3 * SOON)
    sys.stdout.write(worker.log)
    assert sorted(books.entries) == sorted(orders)
    assert books.balance == AMOUNT * count


def has_entered(books: Books, count: int) -> bool:
    """Whether so many payments are in the books, which may just have been closed by force."""
    with suppress(sqlalchemy.exc.DBAPIError):
        return len(books.entries) >= count
    return False


def kill_and_restart(server: ServerProcess) -> None:
    server.kill()
    server.restart()


def kill_a_child(worker: Worker, chance: random.Random) -> None:
    # It may just have ended; the worker then has another.
    with suppress(psutil.NoSuchProcess, IndexError):
        chance.choice(worker.children()).kill()
