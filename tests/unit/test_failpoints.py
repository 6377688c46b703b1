from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import psutil
import pytest

from oncelery.embedded.process import eventually
from oncelery.errors import ConfigurationError
from oncelery.failpoints import failpoint
from oncelery.testing.failpoints import Action, Failpoint, FailpointError, armed, environment

if TYPE_CHECKING:
    from pathlib import Path

#: Longer than anything here takes on a busy machine; reached only by a test that fails.
SOON = 20.0

PASS_BY = [sys.executable, "-c", "from oncelery.failpoints import failpoint; failpoint('here'); print('went on')"]


def pass_by(*points: Failpoint) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        PASS_BY, env=os.environ | environment(*points), capture_output=True, text=True, check=False, timeout=SOON
    )


def test_a_place_that_nobody_armed_does_nothing() -> None:
    failpoint("here")

    with armed(Failpoint("elsewhere", "raise", times=None)):
        failpoint("here")


@pytest.mark.parametrize(("action", "status"), [("kill", -signal.SIGKILL), ("exit", 1)])
def test_a_process_ends_at_the_place_that_its_environment_names(action: Action, status: int, tmp_path: Path) -> None:
    point = Failpoint("here", action, folder=tmp_path)

    ended = pass_by(point)

    assert (ended.returncode, ended.stdout, point.fired) == (status, "", 1)


def test_a_failpoint_happens_once_in_whichever_process_comes_first(tmp_path: Path) -> None:
    point = Failpoint("here", "kill", folder=tmp_path)

    started = [
        subprocess.Popen(PASS_BY, env=os.environ | environment(point), stdout=subprocess.DEVNULL) for _ in range(4)
    ]
    statuses = {process.pid: process.wait(SOON) for process in started}

    assert sorted(statuses.values()) == [-signal.SIGKILL, 0, 0, 0]
    assert statuses[point.pids[0]] == -signal.SIGKILL


def test_a_failpoint_happens_as_often_as_asked(tmp_path: Path) -> None:
    point = Failpoint("here", "exit", folder=tmp_path, times=2)

    statuses = [pass_by(point).returncode for _ in range(3)]

    assert (statuses, point.fired) == ([1, 1, 0], 2)


def test_a_failpoint_without_a_count_happens_every_time() -> None:
    poison = Failpoint("here", "exit", times=None)

    assert [pass_by(poison).returncode for _ in range(3)] == [1, 1, 1]


def test_a_stopped_process_goes_on_when_it_is_told_to(tmp_path: Path) -> None:
    point = Failpoint("here", "stop", folder=tmp_path)
    with subprocess.Popen(PASS_BY, env=os.environ | environment(point), stdout=subprocess.PIPE, text=True) as process:
        assert eventually(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED, SOON)
        assert point.pids == [process.pid]

        process.send_signal(signal.SIGCONT)

        assert process.communicate(timeout=SOON)[0] == "went on\n"


def test_a_waiting_thread_goes_on_when_it_is_released(tmp_path: Path) -> None:
    point = Failpoint("here", "wait", folder=tmp_path)
    with armed(point):
        waiting = threading.Thread(target=failpoint, args=["here"])
        waiting.start()
        assert eventually(lambda: point.fired == 1, SOON)
        assert waiting.is_alive()

        point.release()

        waiting.join(SOON)
        assert not waiting.is_alive()


def test_what_is_armed_in_this_process_ends_with_the_block(tmp_path: Path) -> None:
    with armed(Failpoint("here", "raise", folder=tmp_path, times=2)), pytest.raises(FailpointError, match="here"):
        failpoint("here")

    failpoint("here")


@pytest.mark.parametrize(
    ("name", "action", "times"),
    [("here", "explode", None), ("a,b", "kill", None), ("here", "kill", 1), ("here", "wait", None)],
)
def test_a_failpoint_that_would_break_nothing_is_refused(name: str, action: Action, times: int | None) -> None:
    with pytest.raises(ConfigurationError, match=action):
        Failpoint(name, action, times=times)
