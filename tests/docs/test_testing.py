"""docs/testing.md, as a user would follow it: its blocks are an app and its tests, which pass."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

DOCUMENT = Path(__file__).parents[2] / "docs" / "testing.md"


def blocks() -> dict[str, str]:
    """Give the files that the document's blocks make; a block that names none goes on with the last."""
    made: dict[str, str] = {}
    name = ""
    for code in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL):
        named = re.match(r"# (\w+)\.py\n", code)
        name = named[1] if named else name
        made[name] = made.get(name, "") + code
    return made


def test_the_document_s_own_tests_pass(pytester: pytest.Pytester) -> None:
    made = blocks()
    pytester.makepyfile(**made)

    told = pytester.runpytest_subprocess("-p", "no:randomly", "-p", "no:valkey", "-W", "error")

    told.assert_outcomes(passed=made["test_shop"].count("def test_"))
