"""Where it is measured: private servers on loopback, each reached by TCP and by a Unix socket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from urllib.parse import quote

import psycopg
import redis

from benchmarks.handwritten import Handwritten
from benchmarks.recipe import Recipe
from oncelery.testing.servers import PostgresServer, RedisServer, ValkeyServer


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A server that runs, the two ways to it, and the guard that Oncelery is compared with there."""

    name: str
    port: int
    tcp: str
    unix: str
    rival: type[Recipe | Handwritten]

    @property
    def ways(self) -> Iterator[tuple[str, str]]:
        """Give the ways to the server, each with its URL."""
        yield "TCP", self.tcp
        yield "Unix", self.unix


@contextmanager
def valkey() -> Iterator[Site]:
    """Start the Valkey of the wheel."""
    with _redis_protocol(ValkeyServer()) as site:
        yield site


@contextmanager
def redis7() -> Iterator[Site]:
    """Start the system's Redis."""
    with _redis_protocol(RedisServer()) as site:
        yield site


@contextmanager
def postgres() -> Iterator[Site]:
    """Start a PostgreSQL. It does not wait for the disk, so that a disk's pace does not hide what statements cost."""
    server = PostgresServer()
    server.options["unix_socket_directories"] = str(server.folder)
    with server:
        with psycopg.connect(server.url) as connection:
            version = connection.info.server_version
        tcp = server.create_database()
        database = tcp.rpartition("/")[2]
        yield Site(
            name=f"PostgreSQL {version // 10_000}.{version % 10_000}",
            port=server.port,
            tcp=tcp,
            unix=f"postgresql://postgres:{server.password}@/{database}?host={quote(str(server.folder))}&port={server.port}",
            rival=Handwritten,
        )


Kind = Callable[[], AbstractContextManager[Site]]

KINDS: tuple[Kind, ...] = (valkey, redis7, postgres)


@contextmanager
def _redis_protocol(server: ValkeyServer | RedisServer) -> Iterator[Site]:
    socket = server.folder / "socket"
    server.options["unixsocket"] = str(socket)
    with server:
        with redis.Redis.from_url(server.url) as client:
            facts = client.info("server")
        name = f"Valkey {facts['valkey_version']}" if "valkey_version" in facts else f"Redis {facts['redis_version']}"
        yield Site(name=name, port=server.port, tcp=server.url, unix=f"unix://{quote(str(socket))}?db=0", rival=Recipe)
