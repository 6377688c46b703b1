"""Where a call-back may go: https to public addresses, so that nobody can make us call what only we can reach."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit

from oncelery.errors import DeliveryError, WebhookTargetError

Address = IPv4Address | IPv6Address

#: Longer ones are not for machines to call, but to be stored somewhere.
MOST_CHARACTERS = 2048

#: Where https listens, and where services of one's own may: not where mail, SSH and the like do.
HTTPS, FIRST_UNPRIVILEGED = 443, 1024

_VISIBLE = re.compile(r"[!-~]+")
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?", re.IGNORECASE)
_NUMERIC = re.compile(r"[0-9]+|0x[0-9a-f]*", re.IGNORECASE)

#: IPv6 that carries an IPv4 address, which another machine may unwrap: mapped, compatible, translated, 6to4, Teredo.
_CARRIERS = tuple(
    map(IPv6Network, ("::/96", "::ffff:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32"))
)

#: Public by their number, but the inside of a cloud: what Azure and Oracle tell their virtual machines.
_INSIDE = tuple(map(IPv4Network, ("168.63.129.16/32", "192.0.0.0/24")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A URL that call-backs may be sent to, as far as can be told without asking for its address."""

    tls: bool
    host: str
    port: int
    #: Path and query.
    path: str
    #: Whether addresses are allowed that are not public.
    private: bool

    def addresses(self) -> list[Address]:
        """Resolve the host, once: what is checked here is what is then connected to, whatever DNS says next."""
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise DeliveryError(f"the host {self.host!r} cannot be found: {error}") from error
        addresses = [ip_address(entry[4][0]) for entry in found]
        for address in addresses:
            self.permit(address)
        return list(dict.fromkeys(addresses))

    def permit(self, address: Address) -> None:
        """Refuse an address that must not be called."""
        if is_public(address):
            if not self.tls:
                raise WebhookTargetError("a public address is called over https:// only")
        elif not self.private:
            raise WebhookTargetError(
                f"{self.host!r} is at an address that is not public; allow_private=True permits it"
            )


@lru_cache(maxsize=1024)
def target_of(url: str, *, private: bool = False) -> Target:
    """Read a URL, refusing what must not be called; names are resolved only when a call-back is sent."""
    if len(url) > MOST_CHARACTERS or not _VISIBLE.fullmatch(url) or "\\" in url:
        raise WebhookTargetError(f"a URL for call-backs is up to {MOST_CHARACTERS} visible ASCII characters")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise WebhookTargetError(f"no URL for call-backs: {error}") from None
    tls = parts.scheme == "https"
    if not (tls or (private and parts.scheme == "http")):
        raise WebhookTargetError("call-backs are sent to https:// only")
    if "@" in parts.netloc:
        raise WebhookTargetError("a URL for call-backs has no user and no password; its receiver checks the signature")
    port = (HTTPS if tls else 80) if port is None else port
    if not private and port != HTTPS and port < FIRST_UNPRIVILEGED:
        raise WebhookTargetError(f"call-backs are sent to port {HTTPS}, or {FIRST_UNPRIVILEGED} and up")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    target = Target(tls=tls, host=host, port=port, path=path, private=private)
    if (address := _literal(host)) is not None:
        target.permit(address)
    return target


def is_public(address: Address) -> bool:
    """Whether an address is one on the Internet, and neither a group's, nor the wrapping of another address."""
    if isinstance(address, IPv6Address):
        special = address.scope_id or address.is_site_local or any(address in network for network in _CARRIERS)
    else:
        special = any(address in network for network in _INSIDE)
    return not special and address.is_global and not address.is_multicast and not address.is_reserved


def _literal(host: str) -> Address | None:
    """Read an address that stands for itself; None for a name. One that is neither for sure is refused."""
    try:
        return ip_address(host)
    except ValueError:
        labels = host.split(".")
        # "2130706433", "0x7f.1" and "0177.0.0.1" are 127.0.0.1 to those who connect, and names to those who check.
        if not all(map(_LABEL.fullmatch, labels)) or _NUMERIC.fullmatch(labels[-1]):
            raise WebhookTargetError(f"{host!r} is no name of a host, nor an address in its usual form") from None
        return None
