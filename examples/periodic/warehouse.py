"""A warehouse that answers when it likes, and counts how many ask for the same thing at the same time."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Self


class Warehouse(ThreadingHTTPServer):
    """Answers while it is `open`, and keeps who asks waiting while it is not."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Gate)
        self.open = Event()
        #: How often each thing was asked for, by how many at this moment, and by how many at most at one moment.
        self.asked: Counter[str] = Counter()
        self.asking: Counter[str] = Counter()
        self.at_most: Counter[str] = Counter()
        self.lock = Lock()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.server_port}"

    def serve(self, what: str) -> None:
        """Count, and wait until it is open."""
        with self.lock:
            self.asked[what] += 1
            self.asking[what] += 1
            self.at_most[what] = max(self.at_most[what], self.asking[what])
        self.open.wait()
        with self.lock:
            self.asking[what] -= 1

    def __enter__(self) -> Self:
        Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class Gate(BaseHTTPRequestHandler):
    """Where requests are taken."""

    server: Warehouse

    def do_GET(self) -> None:
        """Answer, if anybody still listens."""
        self.server.serve(self.path.strip("/"))
        with suppress(ConnectionError):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"42")

    def log_message(self, *_: object) -> None:
        """Say nothing."""
