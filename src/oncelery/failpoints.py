"""Named places where a test can break this process. All are off until `oncelery.testing.failpoints` arms some."""

import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

#: Such as "after-begin=kill,before-settle=raise@/tmp/t/marker": with a marker, once, for whoever makes the file.
VARIABLE = "ONCELERY_FAILPOINTS"

#: The actions that are signals, by name: not every platform has them.
SIGNALS = {"kill": "SIGKILL", "stop": "SIGSTOP", "limit": "SIGUSR1"}


class FailpointError(Exception):
    """What the action `raise` raises. It is none of the library's own errors, so that no part of it expects this."""


def failpoint(name: str) -> None:
    """Do nothing, as fast as an empty function, unless a test has armed this place."""
    if armed:
        _fire(name)


def _fire(name: str) -> None:
    for action, marker in (point[1:] for point in armed if point[0] == name):
        with suppress(FileExistsError):
            if marker:  # a link, because only that comes into being together with what it says
                Path(marker).symlink_to(str(os.getpid()))
            if action == "raise":
                raise FailpointError(name)
            if action == "exit":
                os._exit(1)
            if action in SIGNALS:
                signal.raise_signal(signal.Signals[SIGNALS[action]])
            while action == "wait" and not Path(f"{marker}.released").exists():
                time.sleep(0.01)  # for a test that lets go by making a file
            return


armed: list[tuple[str, str, str]] = re.findall(r"([\w-]+)=(\w+)(?:@([^,]+))?", os.environ.get(VARIABLE, ""))
