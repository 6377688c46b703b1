"""A proxy on loopback that counts round trips, whatever the protocol: how often a client asks and has to wait."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Self, TypeVar

from benchmarks.sites import Site
from oncelery.embedded.process import LOOPBACK

T = TypeVar("T")
R = TypeVar("R")


class CountingProxy:
    """Stands before a site's server. A client that speaks after the server has spoken begins a round trip."""

    def __init__(self, site: Site) -> None:
        self.round_trips = 0
        self._site = site
        self._listener = socket.create_server((LOOPBACK, 0))

    @property
    def url(self) -> str:
        """Where clients connect."""
        return self._site.tcp.replace(f":{self._site.port}/", f":{self._listener.getsockname()[1]}/")

    def observe(self, act: Callable[[T], R], given: Sequence[T]) -> tuple[float, list[R]]:
        """Do it with each that is given; answer the mean number of round trips, and what came of each."""
        before = self.round_trips
        results = [act(each) for each in given]
        return (self.round_trips - before) / len(given), results

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        # Closing alone would not wake the thread that waits for clients.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._relay, args=[client], daemon=True).start()

    def _relay(self, client: socket.socket) -> None:
        with client, socket.create_connection((LOOPBACK, self._site.port)) as server:
            asking = False
            while True:
                for source in select.select([client, server], [], [])[0]:
                    try:
                        chunk = source.recv(1 << 16)
                    except ConnectionError:
                        return
                    if not chunk:
                        return
                    if source is client and not asking:
                        self.round_trips += 1
                    asking = source is client
                    (server if asking else client).sendall(chunk)
