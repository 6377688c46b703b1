"""A broker or a store that takes connections and says nothing: it takes nothing else along."""

from __future__ import annotations

import asyncio
import secrets
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Self

import httpx2
import pytest
from faults.brokers import broker_on
from faults.journal import Journal
from faults.shop import GRACE_VARIABLE
from faults.workers import Workers
from guarded import served_shop
from guarded.serving import WebServer

from oncelery.embedded.process import LOOPBACK, ServerProcess, eventually
from oncelery.testing.proxy import FaultProxy
from oncelery.testing.servers import ValkeyServer

#: Longer than anything here takes on a busy machine; reached only by a test that fails.
SOON = 60.0

#: The most that one answer may take: the service's own limits, and more for a busy machine. Before, 49 calls took 30 s.
PROMPT = 15.0

#: The most that the quickest of some answers may take for which nobody need be waited for.
AT_ONCE = 2.0

#: More than the service has threads.
MANY = 48


class SilentServer:
    """Listens on loopback, takes every connection, and never says a word."""

    def __init__(self) -> None:
        self._listener = socket.create_server((LOOPBACK, 0))
        self._taken: list[socket.socket] = []
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._take, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(SOON)
        for each in self._taken:
            each.close()

    def _take(self) -> None:
        try:
            while True:
                self._taken.append(self._listener.accept()[0])
        except OSError:
            return


@pytest.fixture(params=["redis://127.0.0.1:{}/0", "amqp://guest:guest@127.0.0.1:{}//"], ids=["redis", "amqp"])
def silent_broker(request: pytest.FixtureRequest) -> Iterator[str]:
    """Give the URL of a broker that never answers."""
    with SilentServer() as server:
        yield request.param.format(server.port)


def served(folder: Path, broker: str, store: str, *, app: str = "app", **environment: str) -> WebServer:
    """Make a server of the shop, with these peers."""
    settings = {"broker_url": broker, "result_backend": "cache+memory://"}
    ledger = {"ONCELERY_STORE": store, "ONCELERY_NAMESPACE": f"n{secrets.token_hex(4)}", GRACE_VARIABLE: "1"}
    return WebServer(folder, f"guarded.served_shop:{app}", ledger | served_shop.environment(settings) | environment)


#: A request: its method, its URL, and its body if it has one.
Call = tuple[str, str, object]


async def _ask(client: httpx2.AsyncClient, call: Call) -> tuple[int, float]:
    method, url, body = call
    started = monotonic()
    try:
        answer = await client.request(method, url, json=body)
    except httpx2.TimeoutException:
        return 0, monotonic() - started
    return answer.status_code, monotonic() - started


def at_once(*calls: Call, timeout: float = SOON) -> list[tuple[int, float]]:
    """Make all calls at once; give each one's status (0: none within the time) and seconds."""

    async def scene() -> list[tuple[int, float]]:
        limits = httpx2.Limits(max_connections=len(calls))
        async with httpx2.AsyncClient(limits=limits, timeout=timeout) as client:
            return await asyncio.gather(*(_ask(client, call) for call in calls))

    return asyncio.run(scene())


def get(server: WebServer, *paths: str) -> list[Call]:
    return [("GET", server.url + path, None) for path in paths]


def orders(server: WebServer, *names: str) -> list[Call]:
    return [("POST", f"{server.url}/jobs/charge", {"order": name}) for name in names]


# The broker says nothing


def test_while_the_broker_says_nothing_jobs_are_accepted_and_all_routes_answer_in_time(
    tmp_path: Path, valkey: ValkeyServer, silent_broker: str
) -> None:
    with served(tmp_path, silent_broker, valkey.url) as server:
        accepted = at_once(*orders(server, *map(str, range(MANY))))
        # By now it is known to be silent.
        later = at_once(*orders(server, "a", "b", "c"))
        jobs = httpx2.get(f"{server.url}/jobs?limit=200", timeout=SOON).json()["items"]

        # Anybody may ask this, and go away.
        at_once(*get(server, "/readyz") * MANY, timeout=0.5)
        ((listed, listed_in),) = at_once(*get(server, "/jobs"))
        ready = at_once(*get(server, "/readyz") * MANY)
        told = httpx2.get(f"{server.url}/readyz", timeout=SOON).json()

    assert Counter(status for status, _ in accepted) == {202: MANY}
    assert max(seconds for _, seconds in accepted) < PROMPT
    assert Counter(status for status, _ in later) == {202: 3}
    assert min(seconds for _, seconds in later) < AT_ONCE
    assert Counter(each["state"] for each in jobs) == {"queued": MANY + 3}
    assert (listed, listed_in < PROMPT) == (200, True)
    assert {status for status, _ in ready} == {503}
    assert max(seconds for _, seconds in ready) < PROMPT
    assert told == {"store": "up", "broker": "down"}


def test_anonymous_callers_stop_nobody_and_where_the_app_wants_that_submissions_are_refused_and_withdrawn(
    tmp_path: Path, valkey: ValkeyServer
) -> None:
    refusing = {"ONCELERY_ON_BROKER_DOWN": "refuse"}
    with (
        SilentServer() as silent,
        served(tmp_path, f"redis://127.0.0.1:{silent.port}/0", valkey.url, **refusing) as server,
    ):
        at_once(*get(server, "/readyz") * MANY, timeout=0.5)
        ((listed, listed_in),) = at_once(*get(server, "/jobs"))
        ((ready, told_in),) = at_once(*get(server, "/readyz"))
        refused = httpx2.post(f"{server.url}/jobs/charge", json={"order": "o-1"}, timeout=SOON)
        (job,) = httpx2.get(f"{server.url}/jobs", timeout=SOON).json()["items"]

    assert (listed, listed_in < PROMPT) == (200, True)
    assert (ready, told_in < PROMPT) == (503, True)
    assert (refused.status_code, refused.json()["type"].rpartition(":")[2]) == (503, "broker-unavailable")
    assert int(refused.headers["Retry-After"]) >= 1
    assert (job["state"], job["reason"]) == ("cancelled", "not published")


def test_what_was_accepted_while_the_broker_froze_is_run_once(
    tmp_path: Path, valkey: ValkeyServer, workers: Workers
) -> None:
    broker, journal = broker_on(valkey), Journal(tmp_path / "journal")
    with FaultProxy(valkey.port) as proxy:
        server = served(tmp_path / "server", proxy.url(broker.url), valkey.url)
        env = {name: value for name, value in server.environment.items() if name != served_shop.SETTINGS}
        settings = broker.settings | {"result_backend": valkey.url}
        with server:
            warm = httpx2.post(f"{server.url}/jobs/charge", json={"order": "warm"}, timeout=SOON)
            proxy.freeze()
            ((frozen, took),) = at_once(*orders(server, "frozen"))
            workers.start("faults.shop", broker=broker, env=env | journal.environment, settings=settings)
            ran = eventually(
                lambda: {"warm", "frozen"} <= {entry.key for entry in journal.entries(what="effect")}, SOON
            )
            proxy.thaw()

    assert warm.status_code == 202
    assert (frozen, took < PROMPT) == (202, True)
    assert ran
    assert Counter(entry.key for entry in journal.entries(what="effect")) == {"warm": 1, "frozen": 1}


# The store says nothing


@pytest.mark.parametrize("kind", ["private_valkey", "private_postgres"])
def test_while_the_store_says_nothing_every_route_answers_in_time_and_afterwards_as_before(
    tmp_path: Path, valkey: ValkeyServer, request: pytest.FixtureRequest, kind: str
) -> None:
    store: ServerProcess = request.getfixturevalue(kind)
    url: str = store.url  # type: ignore[attr-defined]
    with served(tmp_path, broker_on(valkey).url, url) as server:
        job = httpx2.post(f"{server.url}/jobs/charge", json={"order": "o-1"}, timeout=SOON).json()["id"]
        paths = ("/jobs", f"/jobs/{job}", "/duplicates", "/dead-letters", "/dashboard/", "/dashboard/jobs")
        routes = get(server, *paths)
        assert {status for status, _ in at_once(*routes)} == {200}

        store.pause()
        first = at_once(*routes * 7)
        later = at_once(*routes, *orders(server, "o-2"))
        alive, ready = at_once(*get(server, "/healthz", "/readyz"))
        metrics = httpx2.get(f"{server.url}/metrics", timeout=SOON).text
        store.resume()
        back = eventually(lambda: httpx2.get(f"{server.url}/jobs", timeout=SOON).status_code == 200, PROMPT)
        after = at_once(*routes)

    assert Counter(status for status, _ in first) == {503: len(first)}
    assert max(seconds for _, seconds in first) < PROMPT
    assert {status for status, _ in later} == {503}
    assert max(seconds for _, seconds in later) < PROMPT
    assert min(seconds for _, seconds in later) < AT_ONCE
    assert (alive[0], ready[0]) == (200, 503)
    assert "oncelery_up 0.0" in metrics
    assert back
    assert {status for status, _ in after} == {200}
