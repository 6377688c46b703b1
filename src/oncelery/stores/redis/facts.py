"""What a Redis or Valkey says of itself, as far as it lets us ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from redis.exceptions import ResponseError

from oncelery.stores.facts import ServerFacts
from oncelery.stores.redis.records import EPOCH
from oncelery.stores.redis.scripts import command


def server_facts(ask: Callable[[bytes], Any], *, replicas: int) -> ServerFacts:
    """Ask the server that answers here."""
    says = _read(ask(command(b"INFO"))) | _setting(ask, "appendfsync")
    seconds, microseconds = (int(part) for part in ask(command(b"TIME")))
    version = says.get("valkey_version") or says["redis_version"]
    return ServerFacts(
        kind="redis",
        version=tuple(int(number) for number in version.split(".")[:2]),
        now=EPOCH + timedelta(seconds=seconds, microseconds=microseconds),
        says=says,
        replica=says.get("role") == "slave",
        replicas=replicas,
    )


def _read(told: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in told.decode().splitlines())
    return {name: value for name, _, value in lines}


def _setting(ask: Callable[[bytes], Any], name: str) -> dict[str, str]:
    try:
        told = ask(command(b"CONFIG", b"GET", name))
    except ResponseError:
        return {}  # a hosted server may hide its settings
    pairs = told.items() if isinstance(told, Mapping) else [tuple(told)]
    return {key.decode(): value.decode() for key, value in pairs}
