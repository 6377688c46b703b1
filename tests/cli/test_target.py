"""Where a command is told what to work on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cli.desk import Desk, invoke
from oncelery.answers import Granted
from oncelery.cli import main
from oncelery.job import Reason, Submission
from oncelery.policy import Policy
from oncelery.settlement import Bury


@pytest.mark.parametrize("words", [["jobs"], ["dead-letters"], ["dead-letters", "discard", "job-none"], ["bench"]])
def test_the_store_is_named_before_the_command_or_behind_it(desk: Desk, words: list[str]) -> None:
    desk.bury("a")
    where = ["--store", desk.url, "--namespace", desk.namespace]
    words = [*words, "--json"]

    before, behind = invoke(*where, *words), invoke(*words, *where)

    assert before.exit_code == behind.exit_code
    assert before.stdout.splitlines()[:3] == behind.stdout.splitlines()[:3]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--store", "URL", "--namespace", "NAME", "jobs"], "job-a"),
        (["dead-letters", "--store", "URL", "--namespace", "NAME", "discard", "job-a"], "job-a  failed"),
        (["--store", "memory://", "jobs"], "no jobs in the namespace"),
        (["--store", "memory://", "migrate"], "nothing to migrate"),
        (["--store", "URL", "up"], "--store is not for `up`"),
    ],
)
def test_what_is_said_comes_before_the_environment(desk: Desk, words: list[str], told: str) -> None:
    desk.submit("a")
    spoken = [{"URL": desk.url, "NAME": desk.namespace}.get(word, word) for word in words]
    elsewhere: dict[str, Any] = {"ONCELERY_STORE": "redis://127.0.0.1:1/0", "ONCELERY_NAMESPACE": "elsewhere"}

    assert told in CliRunner().invoke(main, spoken, env=elsewhere).output


@pytest.mark.usefixtures("included")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["show", "job"], '["o-1", "[redacted]"]'),
        (["dead-letters", "revive", "job", "--args", "[1, 2, 3]"], "job  failed  TypeError: "),
    ],
)
def test_tasks_are_known_that_a_worker_would_find(
    desk: Desk, app: Callable[..., Result], words: list[str], told: str
) -> None:
    body = b'["later.pay", ["o-1", "1234"], {}, {}]'
    granted = desk.ledger.begin(Submission(id="job", key="0" * 64, task="later.pay", body=body), Policy())
    assert isinstance(granted, Granted)
    desk.ledger.settle(granted.lease, Bury(reason=Reason.FAILED))

    assert told in app(*words).stdout


def test_a_module_of_tasks_that_is_missing_here_is_told(
    app: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_INCLUDE", "no_such_module")

    ran = app("jobs")

    assert (ran.exit_code, "no module 'no_such_module': run this where your app" in ran.output) == (2, True)


@pytest.fixture
def included(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have a module that the app includes, and does not import by itself."""
    task = 'from shop import once\n\n@once.task(name="later.pay")\ndef pay(order_id, pin): ...\n'
    (tmp_path / "later.py").write_text(task)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("SHOP_INCLUDE", "later")
    yield
    sys.modules.pop("later", None)


def test_migrate_takes_its_app_behind_its_name_too() -> None:
    assert "no module 'no_such_module'" in invoke("migrate", "-A", "no_such_module").output
