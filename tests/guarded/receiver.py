"""Receiver: an HTTP server that takes call-backs, or refuses the first ones."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from oncelery import verify_webhook

#: 32 bytes each.
SECRET = "whsec_" + "c2VjcmV0IG51bWJlciBvbmUsIDMyIGJ5dGVzIGxvbmc="
OLD_SECRET = "whsec_" + "c2VjcmV0IG51bWJlciB0d28sIDMyIGJ5dGVzIGxvbmc="


@dataclass(frozen=True, slots=True)
class Call:
    """One request, as it came."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        """What it is known by, however often it comes."""
        return self.headers["webhook-id"]

    def verified(self, secret: str = SECRET) -> Any:
        """Read it, if it is signed."""
        return verify_webhook(self.body, self.headers, secret)


@dataclass(slots=True)
class Receiver:
    """Keeps what it is sent, and answers with these statuses; the last one for good."""

    port: int
    statuses: list[int]
    calls: list[Call] = field(default_factory=list)

    def url(self, path: str = "/hook") -> str:
        """Where to send it."""
        return f"http://127.0.0.1:{self.port}{path}"

    def of(self, job_id: str) -> list[Call]:
        """Give what came about one job."""
        return [call for call in self.calls if call.id.startswith(job_id)]


class Server(ThreadingHTTPServer):
    """A server that says nothing of clients that hang up."""

    def handle_error(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def receiving(
    statuses: Sequence[int] = (204,), location: str = "", certificate: tuple[Path, Path] | None = None
) -> Iterator[Receiver]:
    """Serve on loopback while the block runs; over TLS with a certificate and its key."""
    receiver = Receiver(0, list(statuses))

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.calls.append(Call(self.path, headers, self.rfile.read(int(headers["content-length"]))))
            self.send_response(receiver.statuses.pop(0) if len(receiver.statuses) > 1 else receiver.statuses[0])
            if location:
                self.send_header("Location", location)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = Server(("127.0.0.1", 0), Answer)
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        # The handshake is that of the connection's own thread: one that fails must not end the server.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def resolve_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[str]:
    """Let every name lead to these addresses; give the names that are asked for."""
    asked: list[str] = []

    def answer(host: str, port: int, *_: object, **__: object) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    return asked
