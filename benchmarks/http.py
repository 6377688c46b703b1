"""How many POSTs a second does one server process answer, against a bare route that calls `task.delay()`?"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import perf_counter
from uuid import uuid4

from benchmarks.laboratory import Laboratory, say
from benchmarks.report import Table
from oncelery.embedded.process import eventually
from oncelery.testing.servers import ValkeyServer

#: Requests in a block, and clients that send them, each over one connection: a second's work or less.
BLOCK = 480
CLIENTS = 16

BARE = "/bare"
OURS = "/jobs/guarded"


def ask(laboratory: Laboratory) -> Table:
    """Compare routes of one and the same server process, in blocks that take turns."""
    table = Table(
        title=f"POSTs answered by one process of uvicorn, {CLIENTS} clients; broker and ledger on Valkey",
        note="Ratio: rate to that of a bare `def` route that calls delay() of a plain task, in the neighbouring block;"
        " more is better.",
    )
    pairs, block = (15, BLOCK) if laboratory.effort.pairs > 10 else (1, CLIENTS)
    with ValkeyServer() as valkey, _server(valkey) as port:
        load = Load(port)
        known = [str(uuid4())] * block
        questions: dict[str, Callable[[], float]] = {
            "a bare route that blocks the loop": lambda: load.rate("/blocking", _new(block)),
            "a new job": lambda: load.rate(OURS, _new(block)),
            "a new job, under an Idempotency-Key": lambda: load.rate(OURS, _new(block), keyed=True),
            "a duplicate of a live job": lambda: load.rate(OURS, known),
        }
        load.rate(BARE, _new(block))
        for name, rate in questions.items():
            say(f"http: {name}")
            rate()
            blocks = [(rate(), load.rate(BARE, _new(block))) for _ in range(pairs)]
            ratios = [ours / bare for ours, bare in blocks]
            low, middle, high = quantiles(ratios, n=4, method="inclusive") if pairs > 1 else ratios * 3
            table.rows.append(
                {
                    "POST": name,
                    "per second": median(ours for ours, _ in blocks),
                    "bare per second": median(bare for _, bare in blocks),
                    "ratio": middle,
                    "Q1": low,
                    "Q3": high,
                }
            )
    return table


def _new(number: int) -> list[str]:
    return [str(uuid4()) for _ in range(number)]


class Load:
    """Sends requests that are written beforehand, and reads no more of the answers than it must."""

    def __init__(self, port: int) -> None:
        self._port = port

    def rate(self, path: str, orders: Sequence[str], *, keyed: bool = False) -> float:
        """Send a POST for each order, over some connections at once, and give how many were answered in a second."""
        requests = [_request(path, order, keyed=keyed) for order in orders]
        return len(requests) / asyncio.run(self._seconds(requests))

    async def _seconds(self, requests: list[bytes]) -> float:
        connections = [await asyncio.open_connection("127.0.0.1", self._port) for _ in range(CLIENTS)]
        started = perf_counter()
        await asyncio.gather(*(_send(*each, requests) for each in connections))
        seconds = perf_counter() - started
        for _, writer in connections:
            writer.close()
        return seconds


async def _send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, requests: list[bytes]) -> None:
    while requests:
        writer.write(requests.pop())
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 202"), head
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))


def _request(path: str, order: str, *, keyed: bool) -> bytes:
    body = f'{{"order_id":"{order}","amount":500}}'
    key = f"Idempotency-Key: {order}\r\n" if keyed else ""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{key}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


@contextmanager
def _server(valkey: ValkeyServer) -> Iterator[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    environment = os.environ | {"BENCH_BROKER": valkey.url, "BENCH_STORE": f"{valkey.url.rpartition('/')[0]}/1"}
    command = [
        sys.executable,
        "-m",
        "uvicorn",
        "benchmarks.http_app:app",
        "--port",
        str(port),
        "--log-level",
        "warning",
    ]
    with TemporaryDirectory() as folder, (Path(folder) / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            eventually(lambda: _is_open(port), 60)
            yield port
        finally:
            process.kill()
            process.wait()


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
