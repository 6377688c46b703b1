"""What guarding costs a worker: no-op tasks, plain and guarded in two ways, served in turns by the same worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import psutil

from benchmarks.laboratory import Laboratory, say
from benchmarks.report import Table
from oncelery.embedded.process import ServerNotFoundError, eventually
from oncelery.testing.servers import RabbitMQServer, ValkeyServer

TASKS = ("plain", "guarded", "recipe")

#: Seconds for one task: until it is done, of CPU, and to publish it.
Block = dict[str, float]

#: Tasks in a block: a second's work or less, so that neighbours see the same machine.
BLOCK = 400


def ask(laboratory: Laboratory) -> Table:
    """Compare rates and CPU on each broker and pool."""
    table = Table(
        title="What a guarded task costs a worker: no-op tasks, concurrency 2, results off",
        note="Ratios to the neighbouring block of plain tasks, medians. rate: tasks per second, more is better; CPU: of"
        " the whole worker for each task, less is better; publish: calls per second, more is better. recipe: GET,"
        " SET NX EX, SET around the task. Ledger and recipe are on Valkey.",
    )
    quick = laboratory.effort.pairs < 10
    pairs, block = (1, 80) if quick else (12, BLOCK)
    for broker, pool in (("Valkey", "prefork"), ("Valkey", "threads"), ("RabbitMQ", "prefork")):
        try:
            table.rows.append({"broker": broker, "pool": pool, **_compare(broker, pool, pairs, block)})
        except ServerNotFoundError as missing:
            say(f"left out: {missing}")
    return table


def _compare(broker: str, pool: str, pairs: int, block: int) -> dict[str, float]:
    with ValkeyServer() as valkey, _worker(broker, pool, valkey) as bench:
        bench.size = block
        for task in TASKS:
            bench.block(task)
        plain, guarded, recipe = zip(*([bench.block(task) for task in TASKS] for _ in range(pairs)), strict=True)
    return {
        "plain tasks/s": median(1 / block["seconds"] for block in plain),
        "rate": _ratio(plain, guarded, "seconds"),
        "recipe's rate": _ratio(plain, recipe, "seconds"),
        "plain CPU ms": median(block["cpu"] * 1e3 for block in plain),
        "CPU": _ratio(guarded, plain, "cpu"),
        "recipe's CPU": _ratio(recipe, plain, "cpu"),
        "plain publishes/s": median(1 / block["publish"] for block in plain),
        "publish": _ratio(plain, guarded, "publish"),
    }


def _ratio(over: Sequence[Block], under: Sequence[Block], figure: str) -> float:
    return median(one[figure] / other[figure] for one, other in zip(over, under, strict=True))


class Bench:
    """A worker at work, and the means to give it work and see it done."""

    def __init__(self, process: psutil.Process, bell: int, app: Any) -> None:  # noqa: ANN401 - the app's module
        self._process = process
        self._bell = bell
        self._app = app
        self._numbers = count()
        #: Tasks in a block.
        self.size = BLOCK

    def block(self, task: str) -> Block:
        """Publish a block while the worker sleeps, then time the worker."""
        call = getattr(self._app, task).delay
        self._signal(signal.SIGSTOP)
        started = perf_counter()
        for _ in range(self.size):
            call(next(self._numbers), "an argument of some length, as arguments are")
        published = perf_counter()
        before = self._cpu()
        self._signal(signal.SIGCONT)
        awake = perf_counter()
        rung = 0
        while rung < self.size:
            rung += len(os.read(self._bell, self.size))
        done = perf_counter()
        return {
            "publish": (published - started) / self.size,
            "seconds": (done - awake) / self.size,
            "cpu": (self._cpu() - before) / self.size,
        }

    def _cpu(self) -> float:
        everyone = [self._process, *self._process.children()]
        return sum(times.user + times.system for times in (process.cpu_times() for process in everyone))

    def _signal(self, what: signal.Signals) -> None:
        for process in [self._process, *self._process.children()]:
            process.send_signal(what)


@contextmanager
def _worker(broker: str, pool: str, valkey: ValkeyServer) -> Iterator[Bench]:
    with TemporaryDirectory() as folder, broker_on(broker, valkey) as url:
        bell = Path(folder) / "bell"
        os.mkfifo(bell)
        environment = {
            "BENCH_BROKER": url,
            "BENCH_STORE": f"{valkey.url.rpartition('/')[0]}/1",
            "BENCH_BELL": str(bell),
        }
        os.environ.update(environment)
        log = Path(folder) / "log"
        reading = os.open(bell, os.O_RDONLY | os.O_NONBLOCK)
        os.set_blocking(reading, True)
        # The worker opens its end when its first task rings; ours keeps the pipe from ending between two tasks.
        writing = os.open(bell, os.O_WRONLY)
        command = [sys.executable, "-m", "celery", "-A", "benchmarks.noop_app", "worker", "-c", "2", "-P", pool]
        quiet = ["--without-mingle", "--without-gossip", "--without-heartbeat", "-l", "info"]
        with log.open("wb") as output:
            process = subprocess.Popen([*command, *quiet], stdout=output, stderr=output)
        try:
            eventually(lambda: b"ready." in log.read_bytes(), 60)
            yield Bench(psutil.Process(process.pid), reading, fresh_app("benchmarks.noop_app"))
        finally:
            for one in [*psutil.Process(process.pid).children(), psutil.Process(process.pid)]:
                one.kill()
            process.wait()
            os.close(reading)
            os.close(writing)


@contextmanager
def broker_on(name: str, valkey: ValkeyServer) -> Iterator[str]:
    """Give the URL of a broker: this Valkey, or a RabbitMQ of our own."""
    if name == "Valkey":
        yield valkey.url
        return
    with RabbitMQServer() as server:
        yield server.url


def fresh_app(name: str) -> Any:  # noqa: ANN401 - a module
    """Load an app anew: it reads where its servers are when it is imported."""
    sys.modules.pop(name, None)
    return import_module(name)
