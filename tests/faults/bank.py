"""Bank: a receiver that honours idempotency keys and fences, and that remembers whatever it was asked.

with Bank() as bank:
    worker = start(env=bank.environment)    # its tasks call `ask("charge", "order-1", ...)`
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from types import TracebackType
from typing import Literal, Self
from urllib.request import Request, urlopen

#: Tells a worker where the bank is.
VARIABLE = "BANK_URL"

#: Longer than the bank ever takes to answer.
PATIENCE_SECONDS = 30.0

Receipt = dict[str, str]

#: It was done; it had been done before, here is the same receipt; a later run has been here, go away.
Answer = Literal["taken", "known", "superseded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the bank was asked once, and what it answered."""

    what: str
    order: str
    key: str
    fence: int
    attempt: int
    answer: Answer


class Bank:
    """Does each thing once for each key, and nothing for a run that was overtaken by one with a higher fence."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        #: By key.
        self.receipts: dict[str, Receipt] = {}
        self._fences: dict[str, int] = {}
        self._lock = Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _counter_of(self))
        self._thread = ThreadPoolExecutor(1)

    @property
    def port(self) -> int:
        """Where it listens on loopback."""
        return self._server.server_port

    @property
    def environment(self) -> dict[str, str]:
        """What to add to a worker's environment."""
        return {VARIABLE: f"http://127.0.0.1:{self.port}"}

    def of(self, order: str, what: str) -> list[Asked]:
        """Give all that the bank was asked to do for an order."""
        return [asked for asked in self.asked if (asked.order, asked.what) == (order, what)]

    def receive(self, what: str, order: str, headers: Message) -> tuple[Answer, Receipt]:
        """Do what is asked, unless it was done before or the asker was overtaken."""
        key, fence, attempt = headers["Idempotency-Key"], int(headers["Fence"]), int(headers["Attempt"])
        with self._lock:
            answer: Answer = "known" if key in self.receipts else "taken"
            if fence < self._fences.get(order, 0):
                answer = "superseded"
            self._fences[order] = max(fence, self._fences.get(order, 0))
            if answer == "taken":
                self.receipts[key] = {"what": what, "order": order, "number": str(len(self.receipts) + 1)}
            self.asked.append(Asked(what=what, order=order, key=key, fence=fence, attempt=attempt, answer=answer))
            return answer, self.receipts.get(key, {})

    def __enter__(self) -> Self:
        self._thread.submit(self._server.serve_forever, poll_interval=0.05)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.shutdown()


def ask(what: str, order: str, *, key: str, fence: int, attempt: int) -> Receipt:
    """Ask the bank that this process knows of; HTTPError if a later run has been there."""
    headers = {"Idempotency-Key": key, "Fence": str(fence), "Attempt": str(attempt)}
    asking = Request(f"{os.environ[VARIABLE]}/{what}", order.encode(), headers, method="POST")  # noqa: S310 - loopback
    with urlopen(asking, timeout=PATIENCE_SECONDS) as reply:  # noqa: S310 - the same
        receipt: Receipt = json.load(reply)
        return receipt


def _counter_of(bank: Bank) -> type[BaseHTTPRequestHandler]:
    class Counter(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            order = self.rfile.read(int(self.headers["Content-Length"])).decode()
            answer, receipt = bank.receive(self.path.strip("/"), order, self.headers)
            body = json.dumps(receipt).encode()
            self.send_response(HTTPStatus.CONFLICT if answer == "superseded" else HTTPStatus.OK)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing: the bank remembers."""

    return Counter
