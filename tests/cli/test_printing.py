"""What people are shown: the texts of jobs as they are, ids whole, and nothing that a terminal would obey."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from uuid import uuid4

import pytest
from click.testing import Result

from cli.desk import HERE, Desk
from oncelery.answers import Granted
from oncelery.job import Progress, Reason, Submission
from oncelery.policy import Policy
from oncelery.settlement import Bury

#: Clears the screen, names the window, clears it in one character less, and turns the text around.
HOSTILE = "\x1b[2J\x1b]0;owned\x07 \x9b2J \u202etxt"
HARMLESS = r"\u001b[2J\u001b]0;owned\u0007 \u009b2J \u202etxt"


@pytest.mark.parametrize("text", ["[/b] x", "[red]x", "[type=int_parsing, input_value='x']", ":bug:", "a\\[b]"])
def test_texts_of_jobs_are_shown_as_they_are(desk: Desk, text: str) -> None:
    letter = desk.bury("a", message=text, traceback=f"Traceback: {text}")
    desk.ledger.record(desk.begin("b").lease, progress=Progress(done=1, total=2, stage=text))

    assert f"CardRefused: {text}" in desk.run("dead-letters").stdout
    assert desk.run("show", letter).stdout.count(text) == 2
    assert f"50% {text}" in desk.run("jobs").stdout


def test_a_secret_is_shown_as_what_may_be_given_back(desk: Desk) -> None:
    body = json.dumps(["shop.charge", [], {"password": "x", "note": "a  b" * 50}, {}]).encode()
    desk.ledger.reserve(Submission(id="job", key="0" * 64, task="shop.charge", body=body))

    shown = next(line for line in desk.run("show", "job").stdout.splitlines() if line.startswith("kwargs"))

    assert json.loads(shown.removeprefix("kwargs")) == {"password": "[redacted]", "note": "a  b" * 50}


@pytest.mark.parametrize("words", [["jobs"], ["dead-letters"], ["show", "job-a"], ["show", "job-a", "--json"]])
def test_nothing_that_a_job_says_is_obeyed_by_the_terminal(desk: Desk, words: list[str]) -> None:
    desk.bury("a", message=HOSTILE, traceback=f"Traceback:\n\t{HOSTILE}")
    desk.ledger.record(desk.begin("b").lease, progress=Progress(done=1, total=2, stage=HOSTILE))

    shown = desk.run(*words)

    assert (shown.exit_code, HARMLESS in shown.stdout) == (0, True)
    assert not set(HOSTILE) - set(HARMLESS) & set(shown.stdout)


def test_json_is_still_the_same_value(desk: Desk) -> None:
    desk.bury("a", message=HOSTILE)

    assert desk.json("show", "job-a")["error"]["message"] == HOSTILE


def test_what_cannot_be_encoded_is_shown_all_the_same(desk: Desk) -> None:
    body = b'["shop.charge", [], {"note": "\\ud800"}, {}]'
    desk.ledger.reserve(Submission(id="job", key="0" * 64, task="shop.charge", body=body))

    assert r'{"note": "\ud800"}' in desk.run("show", "job").stdout
    assert desk.json("show", "job")["kwargs"] == {"note": "\ud800"}


def test_an_error_of_many_lines_is_one_row_and_is_whole_where_it_is_shown(desk: Desk) -> None:
    letter = desk.bury("a", message="1 error\n  qty: no number")

    assert "CardRefused: 1 error\n" in desk.run("dead-letters").stdout
    assert "CardRefused: 1 error\n  qty: no number\n" in desk.run("show", letter).stdout


def test_a_column_in_which_nothing_stands_is_left_out(desk: Desk) -> None:
    desk.submit("a")
    assert desk.run("jobs").stdout.split("\n")[0].split() == ["ID", "TASK", "STATE", "ATTEMPT", "CHANGED", "SCOPE"]

    desk.ledger.record(desk.begin("b").lease, progress=Progress(done=1))
    assert "PROGRESS" in desk.run("jobs").stdout


@pytest.mark.parametrize(
    ("words", "behind"), [(["jobs"], "buried"), (["dead-letters"], "failed"), (["jobs", "--watch"], "buried")]
)
def test_ids_are_whole_on_a_narrow_terminal(desk: Desk, words: list[str], behind: str) -> None:
    order = str(uuid4())
    desk.bury(order, message="a long story " * 10)

    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    program = "from oncelery.cli import main; main(prog_name='oncelery')"
    command = [sys.executable, "-c", program, *words, "--store", desk.url, "--namespace", desk.namespace]
    environment = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "NO_COLOR"}}
    process = subprocess.Popen(command, env=environment | {"TERM": "xterm"}, stdout=end, stdin=end, cwd=HERE)
    os.close(end)
    shown = b""
    while behind.encode() not in shown and (more := _read(terminal)):
        shown += more
    process.terminate()
    process.wait()
    os.close(terminal)

    assert f"job-{order}  shop.charge  " in shown.decode()


def test_arguments_that_do_not_fit_are_told_in_a_line(desk: Desk, app: Callable[..., Result]) -> None:
    letter = desk.bury("a")  # it was called with one argument by its place
    desk.bury("b")

    wrong = app("dead-letters", "revive", letter, "--args", "[1, 2, 3]")
    twice = app("dead-letters", "revive", letter, "--kwargs", '{"order_id": "z"}')
    right = app("dead-letters", "revive", letter, "--args", "[]", "--kwargs", '{"order_id": "z"}')

    assert (wrong.exit_code, wrong.output.count("\n")) == (twice.exit_code, twice.output.count("\n")) == (1, 1)
    assert wrong.stdout.startswith(f"{letter}  failed  TypeError: ")
    assert "positional" not in wrong.stdout.partition("; ")[2]
    assert "; it was called with positional arguments: give --args '[…]', or --args '[]'" in twice.stdout
    assert right.stdout.startswith(f"{letter}  resubmitted  as job ")


def test_one_that_cannot_be_revived_keeps_no_other_from_it(
    desk: Desk, app: Callable[..., Result], caplog: pytest.LogCaptureFixture
) -> None:
    odd = Submission(id="odd", key="0" * 64, task="shop.charge", body=b'["shop.charge", [1, 2, 3], {}, {}]')
    granted = desk.ledger.begin(odd, Policy())
    assert isinstance(granted, Granted)
    desk.ledger.settle(granted.lease, Bury(reason=Reason.FAILED))
    letter = desk.bury("a")

    many = app("dead-letters", "revive", "--all", "--dry-run")
    ran = app("dead-letters", "revive", "odd", letter, "nobody")

    assert sorted(line.split("  ")[1] for line in many.stdout.splitlines()) == ["failed", "would be revived"]
    assert [line.split("  ")[:2] for line in ran.stdout.splitlines()] == [
        ["odd", "failed"],
        [letter, "revived"],
        ["nobody", "failed"],
    ]
    assert "there is no such job" in ran.stdout
    assert not any(record.exc_info for record in caplog.records)  # no traceback on the terminal


def test_a_correction_is_rehearsed_as_it_would_be_made(desk: Desk, app: Callable[..., Result]) -> None:
    letter = desk.bury("a")
    corrections = (["--args", "[1, 2, 3]"], ["--kwargs", '{"order_id": "z"}'], ["--args", '["z"]'])

    tried = [app("dead-letters", "revive", letter, *words, "--dry-run") for words in corrections]
    untouched = desk.ledger.get(letter)
    done = [app("dead-letters", "revive", letter, *words) for words in corrections]

    assert [ran.exit_code for ran in tried] == [ran.exit_code for ran in done] == [1, 1, 0]
    assert [ran.stdout for ran in tried[:2]] == [ran.stdout for ran in done[:2]]
    assert tried[2].stdout.startswith(f"{letter}  would be resubmitted  as a new job: ")
    assert done[2].stdout.startswith(f"{letter}  resubmitted  as job ")
    assert untouched
    assert (untouched.state, json.loads(untouched.body or b"")[1]) == ("buried", ["a"])


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # what Linux says when the other end is closed
        return b""
