"""The example of the study plans, on a stack of its own, at any pace."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from guarded.receiver import SECRET
from oncelery.embedded.stack import Stack

#: So slow that a plan is never done before its worker is killed, in seconds for each of its twelve lessons.
SLOWLY = "3"
AT_ONCE = "0"

ROOT = Path(__file__).parents[2]


@contextmanager
def planning(folder: Path) -> Iterator[Stack]:
    """Serve the plans and run them, with call-backs to this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setenv("ONCELERY_WEBHOOK_SECRETS", SECRET)
        patch.setenv("ONCELERY_ALLOW_PRIVATE", "yes")
        patch.setenv("ONCELERY_LEASE", "2")
        app, api = "examples.study_plans.app", "examples.study_plans.api:api"
        with Stack(folder, app=app, api=api, concurrency=4) as stack:
            yield stack
        for part in stack.parts.values():
            sys.stdout.write(part.log_file.read_text())


def run_at(stack: Stack, pace: str) -> None:
    """Kill the worker with all its children, and start it again at another pace."""
    stack.environment["STUDY_PLANS_PACE"] = pace
    stack.worker.kill()
    assert list(stack.revive()) == ["worker"]
