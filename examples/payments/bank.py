"""A bank that honours idempotency keys, as payment providers do. It can be busy, refuse a card, keep one waiting."""

from __future__ import annotations

import json
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Any, Self

#: The card that the bank refuses.
STOLEN = "4000-0000-0000-0002"


class Bank(ThreadingHTTPServer):
    """Charges once for each key, and keeps a book of it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Counter)
        self.charges: dict[str, dict[str, Any]] = {}
        #: The orders of all requests, in their order.
        self.asked: list[str] = []
        #: How often it says that it is busy before it charges an order.
        self.busy: dict[str, int] = {}
        #: The orders whose charge it makes, and does not answer until it may.
        self.silent: dict[str, Event] = {}
        self.lock = Lock()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.server_port}"

    def charged(self, order: str) -> int:
        """Count the charges of an order."""
        return sum(charge["order"] == order for charge in list(self.charges.values()))

    def charge(self, key: str, charge: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Charge, unless this key has been charged before: then give the same answer."""
        order = charge["order"]
        with self.lock:
            self.asked.append(order)
            if self.busy.get(order):
                self.busy[order] -= 1
                return 503, {"error": "too many requests"}
            if charge["card"] == STOLEN:
                return 402, {"error": "the card is stolen"}
            receipt = self.charges.setdefault(key, {"receipt": f"r-{len(self.charges) + 1}", **charge})
        if order in self.silent:
            self.silent[order].wait()
        return 200, receipt

    def __enter__(self) -> Self:
        Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class Counter(BaseHTTPRequestHandler):
    """Where requests are taken."""

    server: Bank

    def do_POST(self) -> None:
        """Charge, and answer if anybody still listens."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, answer = self.server.charge(self.headers["Idempotency-Key"], body)
        with suppress(ConnectionError):
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""
