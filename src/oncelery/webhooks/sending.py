"""One call-back over the wire: to the address that was checked, with no redirect, within a time."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from time import monotonic

from oncelery.errors import DeliveryError, WebhookTargetError
from oncelery.webhooks.target import Address, Target

#: How long all of it may take once the host is found, in seconds: to connect, to send, and to be answered.
SECONDS = 15.0

#: How many of a host's addresses are tried.
ADDRESSES_TRIED = 3

#: The receiver wants no more call-backs, ever.
GONE = 410

_SUCCESS = range(200, 300)


def send(target: Target, payload: bytes, headers: Mapping[str, str], *, seconds: float = SECONDS) -> int:
    """Post a call-back and return the status if it was taken: 2xx. DeliveryError if it may be later.

    A redirect counts as a refusal: the URL was checked, and not where it leads to. Of the answer nothing is read but
    its status, nor told: whoever chose the URL learns nothing of what stands behind it.
    """
    addresses = target.addresses()[:ADDRESSES_TRIED]
    deadline = monotonic() + seconds
    connection = _connect(target, addresses, deadline)
    try:
        with _cut(connection.sock, deadline):
            connection.request("POST", target.path, body=payload, headers=dict(headers))
            status = connection.getresponse().status
    except (OSError, HTTPException) as error:
        raise DeliveryError(f"{target.host!r} did not answer: {type(error).__name__}") from error
    finally:
        connection.close()
    if status == GONE:
        raise WebhookTargetError(f"{target.host!r} answered {GONE}: it wants no more call-backs")
    if status not in _SUCCESS:
        raise DeliveryError(f"{target.host!r} answered {status}")
    return status


def _connect(target: Target, addresses: list[Address], deadline: float) -> HTTPConnection:
    problem = ""
    for address in addresses:
        connection = _Pinned(target, address, deadline)
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            problem = type(error).__name__
        else:
            return connection
    raise DeliveryError(f"{target.host!r} cannot be connected to: {problem}")


class _Pinned(HTTPConnection):
    """A connection to one address, under the name of its host: for `Host`, SNI and the certificate."""

    def __init__(self, target: Target, address: Address, deadline: float) -> None:
        super().__init__(target.host, target.port, timeout=max(0.1, deadline - monotonic()))
        self._target = target
        self._deadline = deadline
        self._address = str(address)
        if target.tls:
            # So that `Host` names no port that https has anyway.
            self.default_port = 443

    def connect(self) -> None:
        """Connect to the address that was checked, and to no other that the name may have by now."""
        self.sock = socket.create_connection((self._address, self.port), self.timeout)
        if self._target.tls:
            # What is left, and for the handshake as a whole: there no byte starts the time anew.
            self.sock.settimeout(max(0.1, self._deadline - monotonic()))
            self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self._target.host)


@contextmanager
def _cut(connection: socket.socket, deadline: float) -> Iterator[None]:
    """Cut the connection at the deadline: a socket's own time starts anew with every byte."""

    def cut() -> None:
        # Past what TLS makes of it: that would first take the encryption off, while we may still be sending.
        with suppress(OSError):
            socket.socket.shutdown(connection, socket.SHUT_RDWR)

    timer = threading.Timer(max(0.0, deadline - monotonic()), cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
