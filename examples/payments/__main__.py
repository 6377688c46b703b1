"""Play it: a double-click, a worker killed when the bank has charged, a busy bank, a refused card.

`python -m examples.payments`, from the root of the checkout, brings a Valkey and a bank and stops them again.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from threading import Event
from typing import Any

from examples.payments.bank import STOLEN, Bank
from examples.stage import kill, valkey, wait_for, worker

from oncelery.job import State

APP = "examples.payments.app"
CARD = "4242-4242-4242-4242"


def main() -> None:
    """Start the servers, play, and stop them."""
    with valkey() as server, Bank() as bank:
        os.environ["BANK_URL"] = bank.url
        # Only now: it reads the environment.
        play(import_module(APP), bank, server.folder / "worker.log")


def play(payments: Any, bank: Bank, log: Path) -> None:  # noqa: ANN401 - the module
    """Let four customers pay, each with a trouble of their own."""
    charge, once = payments.charge, payments.once
    with ExitStack() as running:
        doomed = running.enter_context(worker(APP, log))

        print("1. A customer clicks twice.")
        first, second = (charge.delay("o-1", CARD, 500) for _ in range(2))
        print(f"   the same job: {first.id == second.id}")
        report(once, bank, first.id, "o-1")

        print("2. The bank charges, and the worker is killed (kill -9) before it hears of it.")
        bank.silent["o-2"] = answers = Event()
        result = charge.delay("o-2", CARD, 500)
        wait_for("the bank to charge", lambda: bank.charged("o-2"))
        kill(doomed)
        answers.set()
        running.enter_context(worker(APP, log))
        report(once, bank, result.id, "o-2")

        print("3. The bank is busy, twice.")
        bank.busy["o-3"] = 2
        report(once, bank, charge.delay("o-3", CARD, 500).id, "o-3")

        print("4. The bank refuses the card.")
        result = charge.delay("o-4", STOLEN, 500)
        report(once, bank, result.id, "o-4", State.BURIED)
        print("   The customer gives another one; the dead letter is revived with it.")
        once.dead_letters.revive(result.id, args=("o-4", CARD, 500))
        report(once, bank, result.id, "o-4")
    count(bank)


def report(once: Any, bank: Bank, job_id: str, order: str, state: State = State.COMPLETED) -> None:  # noqa: ANN401
    """Wait for the end of a job, and tell of it."""
    wait_for(f"{order} to be {state}", lambda: once.jobs.get(job_id).state is state)
    job = once.jobs.get(job_id)
    print(f"   {state} by attempt {job.attempt}" + (f": {job.error.type}" if state is State.BURIED else ""))
    print(f"   the bank was asked {bank.asked.count(order)} x, and has charged {bank.charged(order)} x")


def count(bank: Bank) -> None:
    """Compare what the bank has charged with what was ordered."""
    orders = [charge["order"] for charge in bank.charges.values()]
    print(f"\n4 orders, {len(orders)} charges at the bank: none lost, none twice.")
    if sorted(orders) != ["o-1", "o-2", "o-3", "o-4"]:
        sys.exit(f"but these are the charges: {bank.charges}")


if __name__ == "__main__":
    main()
