"""docs/quickstart.md, as a new user follows it: its files, its commands, and the output it shows."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from oncelery.embedded.process import eventually, free_ports
from oncelery.job import State
from oncelery.ledger import Ledger
from oncelery.stores import open_store

#: In seconds; reached only when something is wrong.
SOON = 90.0


@pytest.fixture
def page(pytestconfig: pytest.Config) -> str:
    """Give the page, with a port that is free here, and less patience than a reader has."""
    text = (pytestconfig.rootpath / "docs" / "quickstart.md").read_text()
    return text.replace("6390", str(next(free_ports()))).replace("sleep(10)", "sleep(3)")


def test_a_new_user_sees_a_duplicate_collapse_and_a_killed_worker_s_task_finish(page: str, tmp_path: Path) -> None:
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        (tmp_path / re.match(r"# (\w+\.py)\n", code)[1]).write_text(code)  # type: ignore[index] # each names its file
    serve, work = command(page, "python -c"), command(page, "celery")
    ledger_url = re.search(r'store="(.*?)"', page)[1]  # type: ignore[index] # it is there

    with started(serve, tmp_path) as server, started(work, tmp_path) as worker:
        assert eventually(lambda: b"Enter" in (tmp_path / f"{server.pid}.log").read_bytes(), SOON)
        for _ in range(2):
            assert run("twice.py", tmp_path) == shown(page, "twice.py")

        with started([sys.executable, "killed.py"], tmp_path) as caller:
            ledger = Ledger(open_store(ledger_url))
            assert eventually(lambda: bool(ledger.tally().states.get(State.RUNNING)), SOON)
            os.killpg(worker.pid, signal.SIGKILL)
            with started(work, tmp_path):
                assert caller.wait(SOON) == 0
        assert (tmp_path / f"{caller.pid}.log").read_text() == shown(page, "killed.py")


def command(page: str, start: str) -> list[str]:
    """Find a command of the page, to be run by this Python."""
    line = next(line for line in page.splitlines() if line.startswith(f"$ {start}"))
    words = shlex.split(line.removeprefix("$ "))
    return [sys.executable, *(["-m"] if words[0] != "python" else []), *words[words[0] == "python" :]]


def shown(page: str, file: str) -> str:
    """Give what the page shows of a program's output."""
    return page.partition(f"$ python {file}\n")[2].partition("```")[0]


def run(file: str, folder: Path) -> str:
    """Run one of the page's programs."""
    told = subprocess.run([sys.executable, file], cwd=folder, capture_output=True, text=True, timeout=SOON, check=False)
    assert told.returncode == 0, told.stderr
    return told.stdout


@contextmanager
def started(arguments: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program of the page in a group of its own, and end it with the block."""
    log = folder / "starting.log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            arguments,
            cwd=folder,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    log.rename(folder / f"{process.pid}.log")
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
