"""What a Redis or Valkey says of itself, as far as it lets us ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from redis.exceptions import ResponseError

from oncelery.job import EPOCH
from oncelery.stores.facts import ServerFacts
from oncelery.stores.redis.wire import command


def server_facts(ask: Callable[[bytes], Any], *, version: tuple[int, ...], replicas: int) -> ServerFacts:
    """Ask the server that answers here; what our user may not ask stays unknown."""
    says = information(ask) | setting(ask, "appendfsync") | setting(ask, "min-replicas-*")
    seconds, microseconds = (int(part) for part in ask(command(b"TIME")))
    return ServerFacts(
        kind="redis",
        version=version,
        now=EPOCH + timedelta(seconds=seconds, microseconds=microseconds),
        says=says,
        replica=says.get("role") == "slave",
        replicas=replicas,
    )


def information(ask: Callable[[bytes], Any], *sections: str) -> dict[str, str]:
    """Read what INFO tells; nothing, if our user may not ask."""
    try:
        told: bytes = ask(command(b"INFO", *sections))
    except ResponseError:
        return {}
    lines = (line.partition(":") for line in told.decode().splitlines())
    return {name: value for name, _, value in lines}


def setting(ask: Callable[[bytes], Any], name: str) -> dict[str, str]:
    """Read one of its settings, or those that a pattern matches; nothing, if it hides them."""
    try:
        told = ask(command(b"CONFIG", b"GET", name))
    except ResponseError:
        return {}  # a hosted server may hide its settings
    pairs = told.items() if isinstance(told, Mapping) else [tuple(told)]
    return {key.decode(): value.decode() for key, value in pairs}
