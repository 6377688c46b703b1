"""Who may do what: every route asks `access(role)` for its caller, and does nothing if it is refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address

from fastapi import Request

from oncelery.http.problems import FORBIDDEN, ProblemError


class Role(StrEnum):
    """What a caller may do."""

    #: Submit jobs.
    SUBMIT = "submit"
    #: Look at jobs, dead letters and duplicates.
    READ = "read"
    #: Cancel, revive and discard.
    OPERATE = "operate"


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


#: Everybody, where no keys are configured and only this machine is answered.
ANYONE = Caller(name="")


class Access:
    """Gives the dependencies that let callers in: `Depends(access(Role.READ))`."""

    def __call__(self, _role: Role) -> Callable[[Request], Awaitable[Caller]]:
        """Answer who calls, if that one has this role."""
        return self._local

    async def _local(self, request: Request) -> Caller:
        # None: over a Unix socket, which has its own permissions.
        if request.client is None or _is_loopback(request.client.host):
            return ANYONE
        raise ProblemError(FORBIDDEN, "no API keys are configured, so only this machine itself is answered")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
