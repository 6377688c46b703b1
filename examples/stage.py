"""What the examples are played on: a private Valkey, processes that may be killed, and patience."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from oncelery.embedded import EmbeddedServer
from oncelery.embedded.process import eventually

#: Examples are run from here: `python -m examples.payments`.
ROOT = Path(__file__).parents[1]

#: In seconds; reached only when something is wrong.
PATIENCE = 60.0

#: Leaves out what a worker does for other workers, which takes it a second at its start.
ALONE = ("--without-mingle", "--without-gossip", "--without-heartbeat")


@contextmanager
def valkey() -> Iterator[EmbeddedServer]:
    """Start a private server, and say in the environment where it is; its folder has room for the rest."""
    with TemporaryDirectory() as folder, EmbeddedServer(folder) as server:
        os.environ["BROKER_URL"] = server.url
        os.environ["LEDGER_URL"] = server.url.removesuffix("/0") + "/1"
        # So that nobody waits long for a takeover; 30 s by default.
        os.environ["ONCELERY_LEASE"] = "2"
        os.environ["ONCELERY_SWEEP_EVERY"] = "0.5"
        yield server


@contextmanager
def running(log: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a Python module at the head of a group of processes of its own; what it says is shown if the block fails."""
    with log.open("ab") as said:
        process = subprocess.Popen(  # noqa: S603 - our own programs
            [sys.executable, "-m", *command], cwd=ROOT, stdout=said, stderr=said, start_new_session=True
        )
    try:
        yield process
    except BaseException:  # also Ctrl-C: whatever went wrong, its log tells why
        sys.stderr.write(log.read_text())
        raise
    finally:
        kill(process)


def worker(app: str, log: Path, *, concurrency: int = 1) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """Run a Celery worker of an app."""
    return running(log, "celery", "-A", app, "worker", "--concurrency", str(concurrency), "--loglevel", "INFO", *ALONE)


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children as a power cut would, and return when it is gone."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def wait_for(what: str, condition: Callable[[], object]) -> None:
    """Wait for what must come."""
    if not eventually(lambda: bool(condition()), PATIENCE):
        sys.exit(f"waited in vain for {what}")
