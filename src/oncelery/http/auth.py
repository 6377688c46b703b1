"""Who may do what: every route asks `access(role)` for its caller, and does nothing if it is refused."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from fastapi import Depends, Request
from fastapi.security import APIKeyHeader
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from oncelery.http.keys import ApiKey, Keys, KeySource, Role
from oncelery.http.problems import FORBIDDEN, UNAUTHENTICATED, ProblemError, answer

__all__ = ["ANYONE", "Access", "ApiKey", "Caller", "LocalOnly", "Role"]

_logger = logging.getLogger("oncelery")

#: The header that carries a key.
HEADER: Final = "X-API-Key"

#: What a proxy adds that speaks for somebody else.
_FORWARDED: Final = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")

_header: Final = APIKeyHeader(name=HEADER, auto_error=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who calls: its name for the audit, its tenant, and what it may do."""

    name: str
    #: The tenant whose jobs it sees and collides with; empty: those of all.
    scope: str = ""
    roles: frozenset[Role] = frozenset(Role)

    def sees(self, scope: str) -> bool:
        """Whether what belongs to this scope is there for the caller."""
        return self.scope in ("", scope)

    def within(self, asked: str) -> str:
        """Answer the scope to look into: that asked for, within what the caller sees."""
        if not asked or self.sees(asked):
            return asked or self.scope
        raise ProblemError(FORBIDDEN, f"this caller is bound to scope {self.scope!r}")


#: Everybody, where no keys are configured and only this machine is answered.
ANYONE = Caller(name="")


class Access:
    """Gives the dependencies that let callers in: `Depends(access(Role.READ))`.

    With keys, whoever has one with the role; an empty list of keys lets nobody in. Without, this machine alone.
    """

    def __init__(self, keys: KeySource | None = None) -> None:
        self._keys = None if keys is None else Keys(keys)

    def __call__(self, role: Role) -> Callable[..., Awaitable[Caller]]:
        """Answer who calls, if that one has this role."""
        keys = self._keys
        if keys is None:
            return _local

        async def admit(request: Request, _described: str | None = Depends(_header)) -> Caller:
            caller = await _known(keys, request)
            if role not in caller.roles:
                raise ProblemError(FORBIDDEN, f"API key {caller.name!r} lacks the role {role.value!r}")
            return caller

        return admit


class LocalOnly:
    """Middleware that answers callers on this machine only, whatever they ask for: the documentation as well."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        # Its first scope is that of a server which starts.
        tell_local()
        if scope["type"] in ("http", "websocket"):
            try:
                require_local(HTTPConnection(scope))
            except ProblemError as error:
                await answer(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def require_local(request: HTTPConnection) -> None:
    """Refuse a caller that is not on this machine, or speaks for one that is not.

    Raises:
        ProblemError: by the peer's address, by a proxy's headers, or because a page from elsewhere is asking: a browser
            on this machine would carry its question here, and by DNS rebinding even the answer back.
    """
    # None: over a Unix socket, which has its own permissions.
    if request.client is not None and not _is_loopback(request.client.host):
        raise _elsewhere()
    # HTTP/1.0 is what nginx speaks to those behind it unless it is told otherwise, and adds no header either.
    if request.scope.get("http_version") == "1.0" or any(name in request.headers for name in _FORWARDED):
        raise _elsewhere(", and this comes through a proxy")
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    if not _is_here(host):
        raise _elsewhere(f", and that under its own name: localhost or 127.0.0.1, not {host!r}")
    if origin is not None and not is_same_origin(origin, host, request.scope["scheme"]):
        raise _elsewhere(f", and no page of another host or port: {origin!r} is not {host!r}")


@lru_cache(maxsize=256)
def is_same_origin(origin: str, host: str, scheme: str = "") -> bool:
    """Whether a page of this origin is one of the host that it calls: the same name and the same port.

    Without a scheme, as behind a proxy that ends TLS, a host that names no port has the origin's.
    """
    try:
        asking = urlsplit(origin)
        called = urlsplit(f"//{host}")
        ports = (asking.port or _PORTS[asking.scheme], called.port or _PORTS[scheme or asking.scheme])
    except (ValueError, KeyError):
        return False
    return bool(asking.hostname) and asking.hostname == called.hostname and ports[0] == ports[1]


_PORTS: Final = {"http": 80, "https": 443, "ws": 80, "wss": 443}


# Once: an app asks in more than one place, and so may several apps. And not when they are made: a worker and every
# command import them as well, and answer nobody.
@cache
def tell_local() -> None:
    """Say in the log of this process whom it answers."""
    _logger.warning("Oncelery has no API keys (`keys=`): only callers on this machine are answered")


def _elsewhere(more: str = "") -> ProblemError:
    why = f"no API keys are configured, so only this machine itself is answered{more}"
    return ProblemError(FORBIDDEN, f"{why}; give `keys=` to create_router or create_app")


async def _local(request: Request) -> Caller:
    tell_local()
    require_local(request)
    return ANYONE


async def _known(keys: Keys, request: Request) -> Caller:
    given = request.headers.getlist(HEADER)
    key = await keys.find(given[0]) if len(given) == 1 else None
    if key is None:
        detail = f"the API key is missing or unknown: send it in one {HEADER} header"
        raise ProblemError(UNAUTHENTICATED, detail, headers=_CHALLENGE)
    return Caller(name=key.name, scope=key.scope, roles=key.roles)


_CHALLENGE: Final[Mapping[str, str]] = {"WWW-Authenticate": "APIKey"}


# Asked at every request, of few hosts.
@lru_cache(maxsize=256)
def _is_here(host: str) -> bool:
    """Whether a Host header names this machine as only this machine does."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return name == "localhost" or name.endswith(".localhost") or _is_loopback(name)


@lru_cache(maxsize=256)
def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
