"""Play it: events that come again and again, a forged one, and a worker that is killed half-way.

`python -m examples.webhooks`, from the root of the checkout, brings a Valkey, the service and a worker of its own and
stops them again.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import sys
import time
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from examples.stage import kill, running, valkey, wait_for, worker

from oncelery.embedded.process import free_ports
from oncelery.job import State
from oncelery.sql.inbox import create
from oncelery.webhooks.signing import sign

APP = "examples.webhooks.app"
TENANTS = {name: "whsec_" + b64encode(secrets.token_bytes(32)).decode() for name in ("acme", "globex")}


def main() -> None:
    """Start the servers, play, and stop them."""
    with valkey() as server:
        os.environ["DATABASE_URL"] = f"sqlite:///{server.folder / 'books.db'}"
        os.environ["WEBHOOK_SECRETS"] = json.dumps(TENANTS)
        prepare(server.folder / "books.db")
        # Only now: it reads the environment.
        play(import_module(APP), server.folder)


def play(webhooks: Any, folder: Path) -> None:  # noqa: ANN401 - the module
    """Be the provider, and break things."""
    port = next(free_ports())
    with ExitStack() as stage:
        service = ("uvicorn", "examples.webhooks.api:api", "--port", str(port))
        stage.enter_context(running(folder / "service.log", *service))
        doomed = stage.enter_context(worker(APP, folder / "worker.log"))
        provider = Provider(f"http://127.0.0.1:{port}/tenants")
        wait_for("the service", provider.is_heard)

        def booked(answer: dict[str, Any]) -> Any:  # noqa: ANN401 - the job
            wait_for("the event to be booked", lambda: webhooks.once.jobs.get(answer["id"]).state is State.COMPLETED)
            return webhooks.once.jobs.get(answer["id"])

        print("1. The provider sends evt_1 to acme, ten times at once; and an evt_1 of its own to globex.")
        with ThreadPoolExecutor(10) as hands:
            answers = list(hands.map(lambda _: provider.send("acme", "evt_1", 500), range(10)))
        answers.append(provider.send("globex", "evt_1", 70))
        print(f"   {len(answers)} were taken, as {len({answer['id'] for _, answer in answers})} jobs")
        for _, answer in answers:
            booked(answer)
        tell(folder)

        print("2. A forged event; one that is signed with globex's secret; one for a tenant that nobody knows.")
        forged = provider.send("acme", "evt_2", 9_999, secret="whsec_" + b64encode(bytes(32)).decode())
        foreign = provider.send("acme", "evt_2", 9_999, secret=TENANTS["globex"])
        unknown = provider.send("initech", "evt_2", 9_999, secret=TENANTS["globex"])
        print(f"   answered with {forged[0]}, {foreign[0]}, {unknown[0]}")

        print("3. evt_3 is half-way when its worker is killed (kill -9). The provider sends it again.")
        with held_up(folder / "books.db"):
            _, first = provider.send("acme", "evt_3", 30)
            wait_for("it to begin", lambda: webhooks.once.jobs.get(first["id"]).state is State.RUNNING)
            kill(doomed)
        _, second = provider.send("acme", "evt_3", 30)
        print(f"   the same job: {first['id'] == second['id']}")
        stage.enter_context(worker(APP, folder / "worker.log"))
        print(f"   completed by attempt {booked(second).attempt}")

        print("4. The provider sends all of acme's once more.")
        late = [provider.send("acme", "evt_1", 500), provider.send("acme", "evt_3", 30)]
        print(f"   answered with {[status for status, _ in late]} and {[answer['result'] for _, answer in late]}")
    print()
    if tell(folder) != {"acme": 530, "globex": 70}:
        sys.exit("that is wrong")


class Provider:
    """Sends events, signed as Standard Webhooks has it."""

    def __init__(self, url: str) -> None:
        self.url = url

    def is_heard(self) -> bool:
        """Whether the service answers."""
        try:
            return self.send("nobody", "evt_0", 0, secret=TENANTS["acme"])[0] > 0
        except URLError:
            return False

    def send(self, tenant: str, event_id: str, amount: int, secret: str = "") -> tuple[int, dict[str, Any]]:
        """Send an event, and give the status and the body of the answer."""
        payload = json.dumps({"type": "payment.succeeded", "amount": amount}).encode()
        now = int(time.time())
        headers = {
            "Content-Type": "application/json",
            "webhook-id": event_id,
            "webhook-timestamp": str(now),
            "webhook-signature": sign(event_id, now, payload, secret or TENANTS[tenant]),
        }
        try:
            with urlopen(Request(f"{self.url}/{tenant}/webhooks", payload, headers), timeout=60) as answer:  # noqa: S310
                return answer.status, json.load(answer)
        except HTTPError as refusal:
            with refusal:
                return refusal.code, json.load(refusal)


def prepare(books: Path) -> None:
    """Make the books, and beside them the table that says whose effects are in them."""
    with closing(sqlite3.connect(books)) as connection, connection:
        connection.execute("CREATE TABLE books (tenant text PRIMARY KEY, balance int NOT NULL)")
        connection.executemany("INSERT INTO books VALUES (?, 0)", [(tenant,) for tenant in TENANTS])
    create(os.environ["DATABASE_URL"])


@contextmanager
def held_up(books: Path) -> Iterator[None]:
    """Hold up whoever wants to write, so that half-way needs no luck: a rival is writing, and has not committed."""
    with closing(sqlite3.connect(books)) as rival:
        rival.execute("BEGIN IMMEDIATE")
        yield
        rival.rollback()


def tell(folder: Path) -> dict[str, int]:
    """Tell what is in the books."""
    with closing(sqlite3.connect(folder / "books.db")) as connection:
        balances = dict(connection.execute("SELECT tenant, balance FROM books ORDER BY tenant"))
    print("   balances: " + ", ".join(f"{tenant} {balance}" for tenant, balance in balances.items()))
    return balances


if __name__ == "__main__":
    main()
