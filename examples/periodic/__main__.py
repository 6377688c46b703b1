"""Play it: two beats tick twice a second each, an instance takes far longer, and its worker is killed.

`python -m examples.periodic`, from the root of the checkout, brings a Valkey and a warehouse and stops them again.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

from examples.periodic.warehouse import Warehouse
from examples.stage import kill, running, valkey, wait_for, worker

from oncelery.job import State

APP = "examples.periodic.app"

#: So many ticks must have come in vain before the play goes on, and so many instances have run before it ends.
ENOUGH = 3


def main() -> None:
    """Start the servers, play, and stop them."""
    with valkey() as server, Warehouse() as warehouse:
        os.environ["WAREHOUSE_URL"] = warehouse.url
        # Here instances are counted that overlap: on a machine that is very busy, two seconds are soon over.
        os.environ["ONCELERY_LEASE"] = "5"
        # Only now: it reads the environment.
        play(import_module(APP), warehouse, server.folder)


def play(periodic: Any, warehouse: Warehouse, folder: Path) -> None:  # noqa: ANN401 - the module
    """Let the beats tick, keep the tasks waiting, kill their worker, and let them go."""
    stock, prices = periodic.sync_stock.name, periodic.refresh_prices.name
    with ExitStack() as stage:
        doomed = stage.enter_context(worker(APP, folder / "worker.log", concurrency=4))
        for beat in ("one", "two"):
            options = ("--schedule", str(folder / beat), "--pidfile", "")
            stage.enter_context(running(folder / "beats.log", "celery", "-A", APP, "beat", *options))

        print("1. Two beats tick; both tasks are kept waiting by the warehouse.")
        wait_for("both to ask", lambda: warehouse.asking.keys() == {"stock", "prices"})
        (job,) = periodic.once.jobs.find(task=stock, states={State.RUNNING}).items
        for task in (stock, prices):
            wait_for(f"{ENOUGH} ticks of {task} in vain", lambda task=task: in_vain(periodic.once, task) >= ENOUGH)
        tell(warehouse)

        print("2. Their worker is killed (kill -9); another is started.")
        kill(doomed)
        warehouse.open.set()
        wait_for("the warehouse to be empty", lambda: not warehouse.asking.total())
        stage.enter_context(worker(APP, folder / "worker.log", concurrency=4))
        wait_for("the stock to be fetched", lambda: periodic.once.jobs.get(job.id).state is State.COMPLETED)
        print(f"   sync_stock: the same job, completed by attempt {periodic.once.jobs.get(job.id).attempt}")
        wait_for("another tick", lambda: warehouse.asked["prices"] > 1)
        print("   refresh_prices: a later tick runs, now that the dead one's lock has lapsed")

        print("3. The beats go on.")
        wait_for("some more", lambda: min(warehouse.asked.values()) >= ENOUGH)
    tell(warehouse)
    if set(warehouse.at_most.values()) != {1}:
        sys.exit(f"but so many asked at the same time: {warehouse.at_most}")


def in_vain(once: Any, task: str) -> int:  # noqa: ANN401 - the extension
    """Count the ticks that found an instance."""
    return len(once.duplicates.find(task=task).items)


def tell(warehouse: Warehouse) -> None:
    """Tell what the warehouse has seen."""
    for what in ("stock", "prices"):
        print(f"   {what}: asked for by {warehouse.at_most[what]} at a time, at most")


if __name__ == "__main__":
    main()
