"""Where the server is and how to speak to it, from the store's URL."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

import redis

from oncelery.errors import ConfigurationError
from oncelery.stores.redis.wire import Connection, Wire

#: How long a connection may take to be made, unless the URL says `socket_connect_timeout`; and a Sentinel to answer.
CONNECT_SECONDS = 2.0

#: How long a reply may take, unless the URL says `socket_timeout`, or less `patience`.
REPLY_SECONDS = 5.0

#: The schemes as redis-py knows them.
SCHEMES = {"redis": "redis", "valkey": "redis", "rediss": "rediss", "valkeys": "rediss", "unix": "unix"}

SERVER_PORT = 6379
SENTINEL_PORT = 26379


class Node(NamedTuple):
    """Where one server listens."""

    host: str
    port: int


class Address:
    """Where the servers are, as the store's URL says.

    Beside redis-py's own options a URL may say:
    `replicas=n` (see durability.py);
    `patience=seconds`: how long a verb is sent again while no server can take it;
    `sentinel=name`: the hosts, `redis://one:26379,two:26379/0?sentinel=name`, are Sentinels that know where the primary
    of that name is; `sentinel_username=` and `sentinel_password=` are for them.
    Several hosts without `sentinel=` are nodes of a cluster.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in SCHEMES:
            raise ConfigurationError(f"no Redis URL: {parts.scheme!r}; use redis://, rediss://, valkey:// or unix://")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        self.replicas = _count("replicas", options.pop("replicas", "0"))
        #: None where the URL does not say.
        self.patience = _seconds("patience", options.pop("patience", None))
        #: The name under which Sentinels know the primary; empty without Sentinels.
        self.primary_name = options.pop("sentinel", "")
        login = {name: options.pop(f"sentinel_{name}", None) for name in ("username", "password")}
        credentials, at, hosts = parts.netloc.rpartition("@")
        first, *others = hosts.split(",")
        # By hand: urlunsplit makes unix:/path of unix:///path.
        place = f"{credentials}{at}{first}{parts.path}"
        try:
            pool = redis.ConnectionPool.from_url(f"{SCHEMES[parts.scheme]}://{place}?{urlencode(options)}")
            self._connection: Callable[..., Connection] = pool.connection_class
            self._options: dict[str, Any] = {
                "socket_connect_timeout": CONNECT_SECONDS,
                "socket_timeout": min(REPLY_SECONDS, self.patience or REPLY_SECONDS),
                **pool.connection_kwargs,
                # The greeting of protocol 3 tells the server's version.
                "protocol": 3,
                "decode_responses": False,
            }
            self._connection(**self._options)
            port = SENTINEL_PORT if self.primary_name else SERVER_PORT
            #: The Sentinels, or the nodes of a cluster by which the others are found, or the one server.
            self.hosts = tuple(_node(host, port) for host in (first, *others))
        except (TypeError, ValueError, redis.RedisError) as error:
            # Not the URL itself: it may hold a password.
            raise ConfigurationError(f"the store's URL is not understood: {error}") from error
        if others and not self.primary_name and self._options.get("db"):
            raise ConfigurationError("a cluster has database 0 only: end the store's URL in /0")
        self._sentinel_options = self._options | login | {"db": 0, "socket_timeout": CONNECT_SECONDS}

    @property
    def reply_seconds(self) -> float:
        """How long a reply may take."""
        return float(self._options["socket_timeout"])

    def open(self, node: Node | None = None) -> Wire:
        """Connect to the one server, or to a node of several."""
        place = node._asdict() if node else {}
        return Wire(self._connection(**self._options | place))

    def open_sentinel(self, node: Node) -> Wire:
        """Connect to a Sentinel."""
        return Wire(self._connection(**self._sentinel_options | node._asdict()))


def _node(host: str, port: int) -> Node:
    parts = urlsplit(f"//{host}")
    return Node(parts.hostname or "localhost", parts.port or port)


def _count(option: str, value: str) -> int:
    if not value.isdigit():
        raise ConfigurationError(f"{option} in the store's URL is a whole number, such as {option}=1, not {value!r}")
    return int(value)


def _seconds(option: str, value: str | None) -> float | None:
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ConfigurationError(
            f"{option} in the store's URL is a number of seconds, such as {option}=15, not {value!r}"
        )
    return seconds
