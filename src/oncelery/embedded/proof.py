"""The self-test behind `oncelery prove`: a double click, a killed worker and a sleeping one, and one charge each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep

from oncelery.answers import Fenced, Granted, Reserved
from oncelery.fingerprint import fingerprint
from oncelery.job import Job, State, Submission
from oncelery.ledger import Ledger
from oncelery.policy import Policy
from oncelery.settlement import Complete
from oncelery.stores import open_store

TASK = "shop.charge"
#: Short, so that nobody waits long to see a takeover; 30 s by default.
POLICY = Policy(lease=timedelta(seconds=1))
#: How long the demonstration waits for what must happen at once.
PATIENCE = 20.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the bank saw of the orders."""

    orders: int
    charges: int
    lost: int
    twice: int


def run(url: str) -> Verdict:
    """Play the three scenes on a real server with real worker processes, then count the charges at the bank."""
    ledger = Ledger(open_store(url, namespace="proof"))
    print(f"A private server is up at {url}\n")
    with TemporaryDirectory() as folder:
        bank = Path(folder) / "bank"
        bank.touch()
        shop = Shop(ledger, url, bank)
        orders = [double_click(shop), killed_worker(shop), sleeping_worker(shop)]
        charged = bank.read_text().split()
    lost = len(set(orders) - set(charged))
    verdict = Verdict(len(orders), len(charged), lost, len(charged) - len(set(charged)))
    told = [f"{count or 'none'} {word}" for count, word in ((lost, "lost"), (verdict.twice, "twice"))]
    print(f"{verdict.orders} orders, {verdict.charges} charges at the bank: {', '.join(told)}.")
    return verdict


@dataclass(frozen=True, slots=True)
class Shop:
    """Where the scenes play: the ledger, its server's URL for worker processes, and the bank's own journal."""

    ledger: Ledger
    url: str
    bank: Path


def double_click(shop: Shop) -> str:
    """Two submissions of one order are one job."""
    print("1. A customer clicks twice.")
    order = new_order()
    job = submit(shop, order)
    submit(shop, order)
    with worker(shop, job) as process:
        go_on(process)
    submit(shop, order)
    print()
    return order


def killed_worker(shop: Shop) -> str:
    """A run that dies is taken over."""
    print("2. A worker is killed half-way (kill -9).")
    order = new_order()
    job = submit(shop, order)
    with worker(shop, job) as process:
        process.kill()
        print("   the worker is dead; its lease lapses")
    take_over(shop, job)
    print()
    return order


def sleeping_worker(shop: Shop) -> str:
    """A run that was only asleep is refused when it wakes."""
    print("3. A worker falls asleep half-way (SIGSTOP) and wakes up when its job is done.")
    order = new_order()
    job = submit(shop, order)
    with worker(shop, job) as sleeper:
        os.kill(sleeper.pid, signal.SIGSTOP)
        print("   the worker hangs; its lease lapses")
        take_over(shop, job)
        os.kill(sleeper.pid, signal.SIGCONT)
        go_on(sleeper)
    print()
    return order


def new_order() -> str:
    """Name an order that no earlier demonstration has used."""
    return f"o-{uuid.uuid4().hex[:6]}"


def submit(shop: Shop, order: str) -> Job:
    """Offer a charge, as a web server would."""
    key = fingerprint(TASK, {"order_id": order})
    answer = shop.ledger.reserve(Submission(id=str(uuid.uuid4()), key=key, task=TASK, body=order.encode()))
    job = answer.job
    if isinstance(answer, Reserved):
        print(f"   charge({order!r}) -> accepted as job {job.id[:8]}")
    elif job.state is State.COMPLETED:
        print(f"   charge({order!r}) -> job {job.id[:8]} again, with its result: {(job.result or b'').decode()}")
    else:
        print(f"   charge({order!r}) -> job {job.id[:8]} again: it is {job.state}")
    return job


def take_over(shop: Shop, job: Job) -> None:
    """Wait until the sweeper finds the job, then let another worker run it."""
    deadline = monotonic() + PATIENCE
    while not any(due.id == job.id for due in shop.ledger.due()):
        if monotonic() > deadline:
            sys.exit("the sweeper did not find the job: its lease should have lapsed")
        sleep(0.05)
    print("   the sweeper finds the job and sends it to another worker")
    with worker(shop, job) as process:
        go_on(process)


@contextmanager
def worker(shop: Shop, job: Job) -> Iterator[subprocess.Popen[str]]:
    """Start a worker process on a job, and wait until it has begun."""
    process = subprocess.Popen(  # noqa: S603 - this very module
        [
            sys.executable,
            "-m",
            "oncelery.embedded.proof",
            shop.url,
            str(shop.bank),
            job.id,
            job.key,
            (job.body or b"").decode(),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        relay(process)
        yield process
    finally:
        process.kill()
        process.communicate()


def go_on(process: subprocess.Popen[str]) -> None:
    """Let the worker charge, and show what it says."""
    print(file=process.stdin, flush=True)
    relay(process)


def relay(process: subprocess.Popen[str]) -> None:
    """Show the next line of a worker."""
    if process.stdout:
        print(f"   worker {process.pid}: {process.stdout.readline().strip()}")


def work(url: str, bank: str, job_id: str, key: str, order: str) -> None:
    """Run one job as a worker does: begin, charge at a word from the demonstration, settle."""
    ledger = Ledger(open_store(url, namespace="proof"))
    answer = ledger.begin(Submission(id=job_id, key=key, task=TASK), POLICY, worker=f"pid {os.getpid()}")
    if not isinstance(answer, Granted):
        sys.exit(f"did not expect {answer}")
    lease = answer.lease
    print(f"begins, attempt {lease.attempt}{', after a crash' if answer.recovered else ''}", flush=True)
    sys.stdin.readline()
    if isinstance(ledger.renew([lease])[0], Fenced):
        print("may not charge: another run has taken over", flush=True)
        return
    with Path(bank).open("a") as journal:
        print(order, file=journal)
    ledger.settle(lease, Complete(result=b'{"charged": 500}'))
    print("charged, and the ledger has it", flush=True)


if __name__ == "__main__":
    work(*sys.argv[1:])
