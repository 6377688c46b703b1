"""Where the server is and how to speak to it, from the store's URL."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import redis
from redis.connection import AbstractConnection

from oncelery.errors import ConfigurationError

#: How long a connection may take to be made, unless the URL says `socket_connect_timeout`.
CONNECT_SECONDS = 2.0

#: How long a reply may take, unless the URL says `socket_timeout`.
REPLY_SECONDS = 5.0

#: The schemes as redis-py knows them.
SCHEMES = {"redis": "redis", "valkey": "redis", "rediss": "rediss", "valkeys": "rediss", "unix": "unix"}


class Address:
    """A server's address. Beside redis-py's own options, a URL may say `replicas=n` (see durability.py)."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in SCHEMES:
            raise ConfigurationError(f"no Redis URL: {parts.scheme!r}; use redis://, rediss://, valkey:// or unix://")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        self.replicas = _count("replicas", options.pop("replicas", "0"))
        # By hand: urlunsplit makes unix:/path of unix:///path.
        own = f"{SCHEMES[parts.scheme]}://{parts.netloc}{parts.path}?{urlencode(options)}"
        try:
            pool = redis.ConnectionPool.from_url(own)
            self._kind: type[AbstractConnection] = pool.connection_class
            self._options: dict[str, Any] = {
                "socket_connect_timeout": CONNECT_SECONDS,
                "socket_timeout": REPLY_SECONDS,
                **pool.connection_kwargs,
                # HELLO 3 tells the server's version with the greeting.
                "protocol": 3,
                "decode_responses": False,
            }
            self.open()
        except (TypeError, ValueError, redis.RedisError) as error:
            # Not the URL itself: it may hold a password.
            raise ConfigurationError(f"the store's URL is not understood: {error}") from error

    def open(self, host: str = "", port: int = 0) -> AbstractConnection:
        """Make a connection, to another node of the same cluster if one is named; it connects when it is used."""
        node = {"host": host, "port": port} if host else {}
        return self._kind(**self._options | node)


def _count(option: str, value: str) -> int:
    if not value.isdigit():
        raise ConfigurationError(f"{option} in the store's URL must be a whole number, such as {option}=1, not {value!r}")
    return int(value)
