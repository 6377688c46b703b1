"""How long a job waits when what ran it is killed: from kill -9 to the next run, with Celery's settings as they are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic_ns, sleep
from typing import Any

import psutil

from benchmarks.laboratory import Laboratory, say
from benchmarks.report import Cell, Table
from benchmarks.workers import broker_on, fresh_app
from oncelery.embedded.process import ServerNotFoundError, eventually
from oncelery.testing.servers import ValkeyServer

#: Between two kills of workers, in seconds: so that they meet the sweeper at different points of its round.
APART = 0.7


@dataclass(frozen=True, slots=True)
class Begun:
    """A run, and when it began."""

    number: int
    pid: int
    at: int


def ask(laboratory: Laboratory) -> Table:
    """Kill children one after the other; then workers that each run a job, while another one lives."""
    full = laboratory.effort.pairs > 10
    lease, deaths = (30.0, 7) if full else (1.0, 1)
    table = Table(
        title="How soon a job runs again after kill -9, in seconds",
        note=f"The lease is {lease:.0f} s and Redis' visibility timeout an hour. A dead child is seen by its parent;"
        " the job of a dead worker is taken over when its lease has lapsed. The ledger is on Valkey.",
    )
    for broker in ("Valkey", "RabbitMQ") if full else ("Valkey",):
        try:
            with ValkeyServer() as valkey, broker_on(broker, valkey) as url, _stage(url, valkey, lease) as stage:
                for killed, waits in (("a child", stage.kill_children), ("a worker", stage.kill_workers)):
                    table.rows.append({"broker": broker, "killed": killed, **_figures(waits(deaths))})
        except ServerNotFoundError as missing:
            say(f"left out: {missing}")
    return table


def _figures(waits: list[float]) -> dict[str, Cell]:
    return {"times": len(waits), "median": median(waits), "least": min(waits), "most": max(waits)}


class Stage:
    """A broker, a ledger, and workers to be killed."""

    def __init__(self, folder: Path, app: Any) -> None:  # noqa: ANN401 - the app's module
        self._folder = folder
        self._app = app
        self._heard = folder / "bell"
        self._heard.touch()
        self._numbers = count()

    def kill_children(self, times: int) -> list[float]:
        """Kill the child of one job after the other; give how long each job waited."""
        waits = []
        with self._worker(children=2):
            for _ in range(times):
                number = self._publish()
                begun = self._await(number, runs=1)
                killed_at = monotonic_ns()
                os.kill(begun.pid, signal.SIGKILL)
                waits.append((self._await(number, runs=2).at - killed_at) / 1e9)
        return waits

    def kill_workers(self, times: int) -> list[float]:
        """Kill workers that have a job each, with all their children; give how long each job waited."""
        with ExitStack() as workers:
            victims = [workers.enter_context(self._worker(children=1)) for _ in range(times)]
            numbers = [self._publish() for _ in victims]
            runner = {self._parent(self._await(number, runs=1).pid): number for number in numbers}
            workers.enter_context(self._worker(children=times))
            killed_at = {}
            for victim in victims:
                killed_at[runner[victim.pid]] = monotonic_ns()
                _kill(victim)
                sleep(APART)
            return [(self._await(number, runs=2).at - at) / 1e9 for number, at in killed_at.items()]

    def _publish(self) -> int:
        number = next(self._numbers)
        self._app.interrupted.delay(number)
        return number

    def _await(self, number: int, *, runs: int) -> Begun:
        assert eventually(lambda: len(self._runs(number)) >= runs, 120), f"job {number} has not begun again"
        return self._runs(number)[runs - 1]

    def _runs(self, number: int) -> list[Begun]:
        lines = [line.split() for line in self._heard.read_text().splitlines(keepends=True) if line.endswith("\n")]
        begun = [Begun(*map(int, words)) for words in lines]
        return [run for run in begun if run.number == number]

    def _parent(self, pid: int) -> int:
        return psutil.Process(pid).ppid()

    @contextmanager
    def _worker(self, *, children: int) -> Iterator[psutil.Process]:
        log = self._folder / f"log-{next(self._numbers)}"
        command = [sys.executable, "-m", "celery", "-A", "benchmarks.recovery_app", "worker", "-c", str(children)]
        quiet = ["-n", log.name, "--without-mingle", "--without-gossip", "--without-heartbeat", "-l", "info"]
        with log.open("wb") as output:
            process = subprocess.Popen([*command, *quiet], stdout=output, stderr=output)
        worker = psutil.Process(process.pid)
        try:
            assert eventually(lambda: b"ready." in log.read_bytes(), 60), log.read_text()
            yield worker
        finally:
            _kill(worker)
            process.wait()


def _kill(worker: psutil.Process) -> None:
    """Kill a worker as a power cut would: the parent first, so that it does not see its children die."""
    with suppress(psutil.NoSuchProcess):
        children = worker.children()
        for process in (worker, *children):
            with suppress(psutil.NoSuchProcess):
                process.kill()


@contextmanager
def _stage(broker: str, valkey: ValkeyServer, lease: float) -> Iterator[Stage]:
    with TemporaryDirectory() as folder:
        os.environ.update(
            BENCH_BROKER=broker,
            BENCH_STORE=f"{valkey.url.rpartition('/')[0]}/1",
            BENCH_LEASE=str(lease),
            BENCH_BELL=str(Path(folder) / "bell"),
        )
        yield Stage(Path(folder), fresh_app("benchmarks.recovery_app"))
