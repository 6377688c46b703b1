"""Where the server is and how to speak to it, from the store's URL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import redis
from redis.sentinel import Sentinel

from oncelery.errors import ConfigurationError
from oncelery.stores.redis.wire import Connection, Wire

#: How long a connection may take to be made, unless the URL says `socket_connect_timeout`.
CONNECT_SECONDS = 2.0

#: How long a reply may take, unless the URL says `socket_timeout`.
REPLY_SECONDS = 5.0

#: The schemes as redis-py knows them.
SCHEMES = {"redis": "redis", "valkey": "redis", "rediss": "rediss", "valkeys": "rediss", "unix": "unix"}

SENTINEL_PORT = 26379


class Address:
    """A server's address.

    Beside redis-py's own options a URL may say `replicas=n` (see durability.py), and `sentinel=name`: then its hosts,
    `redis://one:26379,two:26379/0?sentinel=name`, are Sentinels that know where the primary of that name is.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in SCHEMES:
            raise ConfigurationError(f"no Redis URL: {parts.scheme!r}; use redis://, rediss://, valkey:// or unix://")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        self.replicas = _count("replicas", options.pop("replicas", "0"))
        self._primary = options.pop("sentinel", "")
        credentials, at, hosts = parts.netloc.rpartition("@")
        self._hosts = hosts.split(",")
        # By hand: urlunsplit makes unix:/path of unix:///path.
        place = f"{credentials}{at}{self._hosts[0]}{parts.path}"
        try:
            pool = redis.ConnectionPool.from_url(f"{SCHEMES[parts.scheme]}://{place}?{urlencode(options)}")
            self._connection: Callable[..., Connection] = pool.connection_class
            self._options: dict[str, Any] = {
                "socket_connect_timeout": CONNECT_SECONDS,
                "socket_timeout": REPLY_SECONDS,
                **pool.connection_kwargs,
                # The greeting of protocol 3 tells the server's version.
                "protocol": 3,
                "decode_responses": False,
            }
            self._connection(**self._options)
        except (TypeError, ValueError, redis.RedisError) as error:
            # Not the URL itself: it may hold a password.
            raise ConfigurationError(f"the store's URL is not understood: {error}") from error
        if len(self._hosts) > 1 and not self._primary:
            raise ConfigurationError("the store's URL has several hosts: add ?sentinel=<name>, or leave one")

    @property
    def reply_seconds(self) -> float:
        """How long a reply may take."""
        return float(self._options["socket_timeout"])

    def open(self, node: tuple[str, int] | None = None) -> Wire:
        """Connect: to the server, the primary that the Sentinels name, or another node of the same cluster."""
        if node is None and self._primary:
            node = self._ask_sentinels()
        place = {"host": node[0], "port": node[1]} if node else {}
        return Wire(self._connection(**self._options | place))

    def _ask_sentinels(self) -> tuple[str, int]:
        sentinels = [urlsplit(f"//{host}") for host in self._hosts]
        asked: Any = Sentinel(  # type: ignore[no-untyped-call]
            [(sentinel.hostname, sentinel.port or SENTINEL_PORT) for sentinel in sentinels],
            socket_timeout=CONNECT_SECONDS,
            socket_connect_timeout=CONNECT_SECONDS,
        )
        try:
            host, port = asked.discover_master(self._primary)
        finally:
            for client in asked.sentinels:
                client.close()
        return str(host), int(port)


def _count(option: str, value: str) -> int:
    if not value.isdigit():
        raise ConfigurationError(f"{option} in the store's URL is a whole number, such as {option}=1, not {value!r}")
    return int(value)
