"""Break a process at a named place in the library, in the processes that a test starts or in its own.

killed = Failpoint("after-begin", "kill", folder=tmp_path)
worker = start(environment=os.environ | environment(killed))    # the first process that gets there dies, no other
assert eventually(lambda: killed.fired == 1, seconds=10)
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from oncelery import failpoints
from oncelery.errors import ConfigurationError
from oncelery.failpoints import FailpointError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Action", "Failpoint", "FailpointError", "armed", "environment"]

#: kill: SIGKILL to the process. stop: SIGSTOP, until it gets SIGCONT. exit: it ends without cleaning up, with status 1.
#: raise: FailpointError. wait: the thread, until `release()`. limit: a prefork child's soft time limit strikes.
Action = Literal["kill", "stop", "exit", "raise", "wait", "limit"]


@dataclass(frozen=True, slots=True)
class Failpoint:
    """What happens at a place: the first `times` that any process gets there, told by files in `folder`.

    With `times=None` it happens every time, nobody counts, and no folder is needed.
    """

    name: str
    action: Action
    folder: Path | None = None
    times: int | None = 1

    def __post_init__(self) -> None:
        # Refused here, because a test that breaks nothing would pass.
        if self.action not in get_args(Action) or not re.fullmatch(r"[\w-]+", self.name):
            raise ConfigurationError(
                f"{self.name}={self.action}: write a name such as after-begin, and one of {', '.join(get_args(Action))}"
            )
        if self.times is not None and self.folder is None:
            raise ConfigurationError(f"{self.name}={self.action}: give a folder to count in, or times=None for always")
        if self.times is None and self.action == "wait":
            raise ConfigurationError(f"{self.name}=wait: give a folder, or nobody could release it")

    @property
    def fired(self) -> int:
        """How often it has happened, in whichever processes."""
        return len(self.pids)

    @property
    def pids(self) -> list[int]:
        """The processes to which it happened, the first one first."""
        return [int(marker.readlink().name) for marker in self._markers if marker.is_symlink()]

    def release(self) -> None:
        """Let go on what waits here, now and later."""
        for marker in self._markers:
            marker.with_name(f"{marker.name}.released").touch()

    @property
    def armings(self) -> list[tuple[str, str, str]]:
        """What the library is told: place, action and marker, once for each time."""
        return [(self.name, self.action, str(marker)) for marker in self._markers] or [(self.name, self.action, "")]

    @property
    def _markers(self) -> list[Path]:
        if self.folder is None or self.times is None:
            return []
        return [self.folder / f"{self.name}-{self.action}-{count}" for count in range(1, self.times + 1)]


def environment(*points: Failpoint) -> dict[str, str]:
    """Give what to add to the environment of a process that is to be started, to have it break there."""
    armings = (arming for point in points for arming in point.armings)
    written = (f"{name}={action}" + (f"@{marker}" if marker else "") for name, action, marker in armings)
    return {failpoints.VARIABLE: ",".join(written)}


@contextmanager
def armed(*points: Failpoint) -> Iterator[None]:
    """Break this process there, and nowhere else, while the block runs."""
    before, failpoints.armed = failpoints.armed, [arming for point in points for arming in point.armings]
    try:
        yield
    finally:
        failpoints.armed = before
