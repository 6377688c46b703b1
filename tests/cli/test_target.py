"""Where a command is told what to work on."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from cli.desk import Desk, invoke
from oncelery.cli import main


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


def test_migrate_takes_its_app_behind_its_name_too() -> None:
    assert "no module 'no_such_module'" in invoke("migrate", "-A", "no_such_module").output
