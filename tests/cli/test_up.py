"""`oncelery up` as a person runs it: the demonstration, an app of one's own, and what may be in the way."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from click.testing import CliRunner
from faults.workers import is_gone

from oncelery.cli import main
from oncelery.embedded.process import LOOPBACK, eventually, free_ports
from oncelery.embedded.stack import port_wanted
from oncelery.errors import ConfigurationError

#: Longer than anything here takes on a busy machine; reached only by a test that fails.
SOON = 90.0

#: The command, wherever it is installed.
ONCELERY = [sys.executable, "-c", "from oncelery.cli import main; main(prog_name='oncelery')"]

#: Of the demonstration's tasks.
CHARGE, PLAN, POISON = "demo.charge", "demo.plan_studies", "demo.poison"


class Up:
    """A running `oncelery up`, and what it has said."""

    def __init__(self, folder: Path, *words: str, cwd: Path) -> None:
        self.folder = folder
        command = [*ONCELERY, "up", "--folder", str(folder), "--port", "0", *words]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ONCELERY_")}
        self.process = subprocess.Popen(
            command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.said = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        # Its last line names a path of the service.
        told = re.compile(r"/(dead-letters|jobs/\S+)\n\Z")
        assert eventually(lambda: bool(told.search(self.said)) or self.process.poll() is not None, SOON), self.said
        found = re.search(r"dashboard +(http://127\.0\.0\.1:\d+)/", self.said)
        assert found, self.said
        self.url = found[1]
        self.client = httpx2.Client(base_url=self.url, timeout=SOON)

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.said += line

    def post(self, task: str, **arguments: object) -> httpx2.Response:
        return self.client.post(f"/jobs/{task}", json=arguments)

    def job(self, job_id: str) -> Any:  # noqa: ANN401 - JSON
        return self.client.get(f"/jobs/{job_id}").json()

    def pid(self, part: str) -> int:
        told = re.search(r"pid (\d+)", (self.folder / part / "server.lock").read_text())
        assert told
        return int(told[1])

    def processes(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        status = self.process.wait(SOON)
        self._reader.join(SOON)
        return status


@contextmanager
def up(folder: Path, *words: str, cwd: Path) -> Iterator[Up]:
    running = Up(folder, *words, cwd=cwd)
    try:
        yield running
    finally:
        running.stop()
        running.client.close()
        assert running.process.stdout
        running.process.stdout.close()
        sys.stdout.write(running.said)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("up")


@pytest.fixture(scope="module")
def demo(folder: Path) -> Iterator[Up]:
    with up(folder / ".oncelery", cwd=folder) as running:
        yield running
        assert running.stop(signal.SIGTERM) == 0


def first_of(demo: Up, path: str, **query: str) -> Callable[[], Any]:
    return lambda: next(iter(demo.client.get(path, params=query).json()["items"]), None)


def test_a_payment_that_is_sent_twice_is_one_job_and_then_its_result(demo: Up) -> None:
    first, second = (demo.post(CHARGE, order_id="o-1", amount=500) for _ in range(2))

    assert (first.status_code, second.json()["id"]) == (202, first.json()["id"])
    assert eventually(lambda: demo.job(first.json()["id"])["state"] == "completed", SOON)
    again = demo.post(CHARGE, order_id="o-1", amount=500)
    assert (again.status_code, again.headers["Idempotent-Replayed"]) == (200, "true")
    assert again.json()["result"]["order_id"] == "o-1"


def test_jobs_come_by_themselves_and_poison_ends_as_a_dead_letter(demo: Up) -> None:
    assert eventually(first_of(demo, "/duplicates", task=CHARGE), SOON)
    assert eventually(first_of(demo, "/jobs", task=PLAN), SOON)
    assert eventually(first_of(demo, "/dead-letters", task=POISON), SOON)
    dead = first_of(demo, "/dead-letters", task=POISON)()
    assert (dead["reason"], dead["crashes"]) == ("crashed", 3)


def test_a_plan_outlives_the_killing_of_its_worker_by_a_button(demo: Up) -> None:
    started = demo.client.post("/demo/kill")

    assert started.status_code == 303
    assert started.headers["Location"] in started.text
    job_id = started.headers["Location"].rpartition("/")[2]
    assert demo.client.get(started.headers["Location"]).status_code == 200
    assert eventually(lambda: demo.job(job_id)["attempt"] == 2, SOON)
    assert demo.job(job_id)["crashes"] == 1


def test_a_second_plan_for_the_same_project_is_refused_and_told_of_the_first(demo: Up) -> None:
    first = demo.post(PLAN, project="physics").json()

    second = demo.post(PLAN, project="physics")

    assert (second.status_code, second.json()["job_id"]) == (409, first["id"])


def test_the_page_of_buttons_has_one_for_each_act_and_refuses_others(demo: Up) -> None:
    page = demo.client.get("/demo")

    for word in re.findall(r'action="/demo/(\w+)"', page.text):
        assert demo.client.post(f"/demo/{word}").status_code == 303, word
    assert len(re.findall("<form", page.text)) == 4
    assert demo.client.post("/demo/nonsense").status_code == 404
    # What the demonstration answers to is this machine, as all of the service.
    assert demo.client.get("/demo", headers={"Host": "evil.example"}).status_code == 403


def test_what_is_killed_is_started_again(demo: Up) -> None:
    killed = demo.pid("worker")

    os.kill(killed, signal.SIGKILL)

    assert eventually(lambda: "the worker had ended, and is started again" in demo.said, SOON)
    assert demo.pid("worker") != killed
    job_id = demo.post(CHARGE, order_id="o-later", amount=500).json()["id"]
    assert eventually(lambda: demo.job(job_id)["state"] == "completed", SOON)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    port = next(free_ports())
    (tmp_path / "shop.py").write_text(
        "from celery import Celery\n"
        "from oncelery import Oncelery\n"
        f"app = Celery('shop', broker='redis://localhost:{port}/0')\n"
        f"once = Oncelery(app, store='redis://localhost:{port}/1')\n"
        "@once.task(key='order_id')\n"
        "def charge(order_id: str) -> str:\n"
        "    return 'charged ' + order_id\n"
        "@app.task\n"
        "def unguarded(): ...\n"
    )
    return tmp_path


def test_an_app_of_ones_own_finds_a_server_where_it_looks_for_one_and_its_data_again_after_ctrl_c(shop: Path) -> None:
    with up(shop / "data", "-A", "shop", cwd=shop) as running:
        # And not what it was before there was a worker.
        assert "are being asked" in running.client.get("/dashboard/").text
        # From any other process of the app, with nothing set.
        delay = [sys.executable, "-c", "import shop; print(shop.charge.delay('o-1').id)"]
        delayed = subprocess.run(delay, cwd=shop, capture_output=True, text=True, timeout=SOON, check=True)
        job_id = delayed.stdout.strip()
        assert eventually(lambda: running.job(job_id)["result"] == "charged o-1", SOON)
        assert running.post("shop.charge", order_id="o-1").json()["id"] == job_id
        assert running.post("shop.unguarded").status_code == 404
        assert f"""curl --json '{{"order_id": …}}' {running.url}/jobs/shop.charge""" in running.said
        assert "demo" not in running.said

        processes = running.processes()
        # Hard, and at the worst time.
        os.kill(running.pid("service"), signal.SIGKILL)
        assert running.stop() == 0

        assert running.said.endswith("stopped; `up` again goes on with the same data\n")
        assert eventually(lambda: all(is_gone(process) for process in processes), SOON)
    with up(shop / "data", "-A", "shop", cwd=shop) as again:
        assert again.job(job_id)["result"] == "charged o-1"

        processes = again.processes()
        again.stop(signal.SIGKILL)

        assert eventually(lambda: all(is_gone(process) for process in processes), SOON)


def test_the_readme_shows_what_is_said(demo: Up, pytestconfig: pytest.Config) -> None:
    readme = (pytestconfig.rootpath / "README.md").read_text()

    shown = readme.partition("$ make up\n")[2].partition("```")[0]

    said = demo.said.partition("\nthe worker had ended")[0].rstrip() + "\n"
    said = said.replace(demo.url, "http://127.0.0.1:8000")
    assert re.sub(r"redis://\S+", "redis://", said) == re.sub(r"redis://\S+", "redis://", shown)


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [*ONCELERY, *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=SOON, check=False)


def test_a_port_that_is_taken_is_told_in_one_line(tmp_path: Path) -> None:
    with closing(socket.create_server((LOOPBACK, 0))) as other:
        port = other.getsockname()[1]

        ran = run("up", "--folder", str(tmp_path / "data"), "--port", str(port), cwd=tmp_path)

    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == f"Error: port {port} is taken; choose another, or 0 for any free port\n"


def test_an_app_that_cannot_be_imported_or_starts_nothing_is_told(tmp_path: Path) -> None:
    (tmp_path / "kept.py").write_text(
        "from celery import Celery\nfrom oncelery import Oncelery\n"
        "app = Celery('kept')\nonce = Oncelery(app, store='memory://')\n"
    )

    missing = run("up", "-A", "no_such_module", cwd=tmp_path)
    kept = run("up", "-A", "kept", cwd=tmp_path)
    appless = run("up", "--api", "kept:api", cwd=tmp_path)

    assert (missing.returncode, "no module 'no_such_module'" in missing.stderr) == (2, True)
    assert (appless.returncode, "give it with -A" in appless.stderr) == (2, True)
    assert (kept.returncode, "memory:// is the ledger of one process" in kept.stderr) == (1, True)


def test_a_broker_that_does_not_answer_is_told_in_one_line_and_not_waited_for(shop: Path) -> None:
    port = next(free_ports())
    code = (shop / "shop.py").read_text()
    (shop / "shop.py").write_text(re.sub(r"broker='.*?'", f"broker='amqp://localhost:{port}'", code))

    ran = run("up", "-A", "shop", "--folder", str(shop / "data"), cwd=shop)

    assert (ran.returncode, ran.stdout) == (1, "")
    assert re.fullmatch(r"Error: the broker does not answer: .*; start it, or correct broker_url\n", ran.stderr)
    assert not (shop / "data").exists()


def test_without_a_server_program_or_the_service_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words = ["up", "--folder", str(tmp_path)]
    with monkeypatch.context() as bare:
        bare.setattr("oncelery.embedded.server.valkey_from_wheel", lambda: None)
        bare.setenv("PATH", "")
        without_server = CliRunner().invoke(main, words)
    with monkeypatch.context() as bare:
        bare.setattr("oncelery.embedded.service.find_spec", lambda _: None)
        without_service = CliRunner().invoke(main, words)

    assert (without_server.exit_code, "pip install oncelery[embedded]" in without_server.output) == (1, True)
    assert (without_service.exit_code, "pip install 'oncelery[dashboard]'" in without_service.output) == (1, True)


def test_a_server_is_brought_where_one_is_missing_and_nowhere_else() -> None:
    with closing(socket.create_server((LOOPBACK, 0))) as other:
        there = f"redis://127.0.0.1:{other.getsockname()[1]}"
        free, second = (next(free_ports()) for _ in range(2))

        assert port_wanted(None, None) == 0
        assert port_wanted(there, None) == 0
        assert port_wanted(there, there) is None
        assert port_wanted("amqp://localhost:1", "postgresql://localhost/x") is None
        assert port_wanted("redis://broker.example:6379", "rediss://127.0.0.1:1") is None
        assert port_wanted(f"redis://[::1]:{free}/0", f"redis://[::1]:{free}/1") is None
        assert port_wanted(f"redis://localhost:{free}/0", f"redis://127.0.0.1:{free}/1") == free
        assert port_wanted("amqp://localhost", f"valkey://localhost:{free}") == free
        with pytest.raises(ConfigurationError, match="name one"):
            port_wanted(f"redis://localhost:{free}", f"redis://localhost:{second}")
