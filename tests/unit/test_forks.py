"""Children are forked while no thread uses what is Celery's, and find no lock held that nobody can release."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import forking


def succeeds(play: Callable[[], None]) -> bool:
    played = subprocess.run([sys.executable, Path(forking.__file__), play.__name__], check=False, timeout=100)
    return played.returncode == 0


def test_a_fork_waits_until_a_thread_has_done_its_work() -> None:
    assert succeeds(forking.fork_waits_for_a_thread)


def test_a_fork_does_not_wait_for_ever_and_its_child_finds_no_lock_held() -> None:
    assert succeeds(forking.fork_waits_no_longer_than_it_may)


def test_a_child_that_is_forked_while_a_thread_makes_a_property_can_make_it() -> None:
    assert succeeds(forking.child_makes_a_property_that_a_thread_is_making)
