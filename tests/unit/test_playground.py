"""The button of the demonstration that kills a worker: one run, and that once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from guarded.world import unshared_tasks

from oncelery.answers import Granted
from oncelery.job import Submission
from oncelery.ledger import Ledger
from oncelery.stores.memory import MemoryStore

MODULE = "oncelery.embedded.playground"


@pytest.fixture
def playground() -> Iterator[Any]:
    with unshared_tasks():
        module = import_module(MODULE)
        module.once.__dict__["ledger"] = Ledger(MemoryStore())
        yield module
    module.app.close()
    del sys.modules[MODULE]


def test_the_button_asks_until_one_worker_has_killed_a_run_and_then_no_more(
    playground: Any,  # noqa: ANN401 - the module
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = playground.plan_studies
    offer = Submission(id="plan-1", key="1" * 64, task=plan.name, body=b"[]")
    assert isinstance(playground.once.ledger.begin(offer, plan.policy), Granted)
    # Nobody answers; a worker that does not run it; the one that does.
    replies = iter([None, [{"one": None}], [{"two": {"killed": 7}}]])
    asked: list[Any] = []

    def broadcast(command: str, arguments: dict[str, str], **_: object) -> Any:  # noqa: ANN401 - Celery's
        asked.append((command, arguments))
        return next(replies)

    monkeypatch.setattr(playground.app.control, "broadcast", broadcast)

    killed = playground.kill_a_worker()

    assert killed.id == "plan-1"
    assert asked == [("kill_child", {"job_id": "plan-1"})] * 3


def test_a_worker_kills_its_child_that_runs_the_job_and_no_other(
    playground: Any,  # noqa: ANN401 - the module
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests = [SimpleNamespace(id=name, worker_pid=pid) for name, pid in (("other", 6), ("plan-1", 7), ("new", None))]
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(playground.worker_state, "active_requests", requests)

    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", lambda pid, number: killed.append((pid, number)))
        answers = [playground.kill_child(None, job_id) for job_id in ("plan-1", "elsewhere", "new")]

    assert answers == [{"killed": 7}, None, None]
    assert killed == [(7, signal.SIGKILL)]
