"""`python -m examples.NAME`: each kills its own worker, counts the effects, and exits with 1 if they are wrong."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: They give up by themselves, after a minute for each thing that they wait for.
SOON = 400.0


@pytest.mark.parametrize("name", ["payments", "periodic", "webhooks"])
def test_a_reader_sees_what_the_readme_shows(name: str, pytestconfig: pytest.Config) -> None:
    played = subprocess.run(
        [sys.executable, "-m", f"examples.{name}"],
        cwd=pytestconfig.rootpath,
        capture_output=True,
        text=True,
        timeout=SOON,
        check=False,
    )

    assert played.returncode == 0, played.stdout + played.stderr
    readme = (pytestconfig.rootpath / "examples" / name / "README.md").read_text()
    shown = readme.partition(f"$ python -m examples.{name}\n")[2].partition("```")[0]
    assert played.stdout == shown
    front = (pytestconfig.rootpath / "README.md").read_text()
    assert played.stdout.startswith(front.partition(f"$ python -m examples.{name}\n")[2].partition("```")[0])
