"""What keeps the ledger. `open_store(url)` finds the store; only a store's own folder imports its driver."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from oncelery.errors import ConfigurationError
from oncelery.job import DEFAULT_NAMESPACE

if TYPE_CHECKING:
    from oncelery.stores.base import Clock, Store

_REDIS = {"redis", "rediss", "valkey", "valkeys", "unix"}
_POSTGRES = {"postgresql", "postgres"}


def open_store(url: str, *, namespace: str = DEFAULT_NAMESPACE, clock: Clock | None = None) -> Store:
    """Open the store a URL names: `redis://` and its kin, `postgresql://` or `memory://`."""
    scheme = urlsplit(url).scheme
    try:
        if scheme in _REDIS:
            from oncelery.stores.redis import RedisStore  # noqa: PLC0415 - the driver is an extra

            return RedisStore(url, namespace=namespace, clock=clock)
        if scheme in _POSTGRES:
            from oncelery.stores.postgres import PostgresStore  # noqa: PLC0415 - the driver is an extra

            return PostgresStore(url, namespace=namespace, clock=clock)
    except ModuleNotFoundError as error:
        extra = "redis" if scheme in _REDIS else "postgres"
        raise ConfigurationError(
            f"{scheme}:// needs the package {error.name!r}: pip install 'oncelery[{extra}]'"
        ) from error
    if scheme == "memory":
        from oncelery.stores.memory import MemoryStore  # noqa: PLC0415 - seldom wanted

        return MemoryStore(clock=clock)
    # Only the scheme is shown: the rest of a URL may hold a password.
    raise ConfigurationError(
        f"no store for {scheme or 'a URL without a scheme'!r}: "
        "use redis://, rediss://, valkey://, valkeys://, unix://, postgresql:// or memory://"
    )
