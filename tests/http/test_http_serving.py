"""The promises that need real processes: several servers, kills, a store that is gone."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from faults.brokers import Broker, broker_on
from faults.journal import Journal
from faults.shop import GRACE_VARIABLE
from faults.workers import Workers
from guarded import served_shop
from guarded.serving import WebServer

from oncelery.embedded.process import eventually
from oncelery.job import Query
from oncelery.ledger import Ledger
from oncelery.stores import open_store
from oncelery.testing.failpoints import Failpoint, environment
from oncelery.testing.servers import ValkeyServer

#: Longer than anything here takes on a busy machine; reached only by a test that fails.
SOON = 60.0

SERVED = "guarded.served_shop:app"


class Service:
    """Two servers of one shop on one ledger, and where its effects go."""

    def __init__(self, folder: Path, broker: Broker, store: str) -> None:
        self.namespace = secrets.token_hex(4)
        self.broker = broker
        self.settings = broker.settings | {"result_backend": store}
        self.environment = {"ONCELERY_STORE": store, "ONCELERY_NAMESPACE": self.namespace, GRACE_VARIABLE: "1"}
        self.served = self.environment | served_shop.environment(self.settings)
        self.servers = [WebServer(folder / f"server-{number}", SERVED, self.served) for number in (1, 2)]
        self.journal = Journal(folder / "journal")
        self.ledger = Ledger(open_store(store, namespace=self.namespace))

    def start_worker(self, workers: Workers) -> None:
        env = self.environment | self.journal.environment
        workers.start("faults.shop", broker=self.broker, env=env, settings=self.settings)

    def jobs(self, order: str) -> list[Any]:
        """Give the jobs of an order."""
        found = [self.ledger.get(job.id) for job in self.ledger.find(Query(limit=500)).items]
        return [job for job in found if job and (order in str(job.body) or not order)]

    def charged(self, order: str) -> int:
        """Count how often an order was charged."""
        return sum(entry.key == order for entry in self.journal.entries(what="effect"))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, valkey: ValkeyServer, crew: Workers) -> Iterator[Service]:
    """Give a service with a worker."""
    service = Service(tmp_path_factory.mktemp("service"), broker_on(valkey), valkey.url)
    with ExitStack() as running:
        for server in service.servers:
            running.enter_context(server)
        service.start_worker(crew)
        yield service
        for server in service.servers:
            print(server.log_file.read_text())  # noqa: T201 - shown if a test failed


async def _post_at_once(urls: list[str], body: dict[str, Any], number: int, **headers: str) -> list[httpx2.Response]:
    limits = httpx2.Limits(max_connections=number)
    async with httpx2.AsyncClient(limits=limits, timeout=SOON) as client:
        posts = (client.post(urls[each % len(urls)], json=body, headers=headers) for each in range(number))
        return await asyncio.gather(*posts)


def order_of(test: str) -> str:
    return f"{test}-{secrets.token_hex(4)}"


@pytest.mark.parametrize("key", ["", "evt-1"], ids=["by the task's key", "by an Idempotency-Key"])
def test_200_simultaneous_posts_to_two_servers_make_one_job(service: Service, key: str) -> None:
    order = order_of("at-once")
    urls = [f"{server.url}/jobs/charge" for server in service.servers]
    headers = {"Idempotency-Key": f"{key}-{order}"} if key else {}

    answers = asyncio.run(_post_at_once(urls, {"order": order}, 200, **headers))

    assert {answer.status_code for answer in answers} <= {200, 202}, Counter(answer.status_code for answer in answers)
    assert len({answer.json()["id"] for answer in answers}) == 1
    job_id = answers[0].json()["id"]
    assert eventually(lambda: service.charged(order) == 1, SOON)
    done = httpx2.get(f"{service.servers[0].url}/jobs/{job_id}?wait=30", timeout=SOON).json()
    assert (done["state"], done["result"], done["duplicates"]) == ("completed", {"paid": order}, 199)
    assert service.charged(order) == 1


def test_a_job_that_was_answered_202_just_before_the_server_is_killed_runs(service: Service) -> None:
    server, other = service.servers
    orders = [order_of("answered") for _ in range(2)]

    for order in orders:
        answer = httpx2.post(f"{server.url}/jobs/charge", json={"order": order}, timeout=SOON)
        server.kill()
        assert answer.status_code == 202
        server.restart()

    assert eventually(lambda: all(service.charged(order) == 1 for order in orders), SOON)
    assert httpx2.get(f"{other.url}/readyz", timeout=SOON).json() == {"store": "up", "broker": "up"}


@pytest.mark.parametrize("place", ["before-publish", "before-answer"])
def test_a_post_that_saw_no_answer_is_sent_again_and_makes_exactly_one_job(
    service: Service, tmp_path: Path, place: str
) -> None:
    order = order_of(place)
    body, headers = {"order": order}, {"Idempotency-Key": order}
    killed = Failpoint(place, "kill", folder=tmp_path)

    with WebServer(tmp_path / "server", SERVED, service.served | environment(killed)) as server:
        with pytest.raises(httpx2.TransportError):
            httpx2.post(f"{server.url}/jobs/charge", json=body, headers=headers, timeout=SOON)
        again = httpx2.post(f"{service.servers[0].url}/jobs/charge", json=body, headers=headers, timeout=SOON)

    assert killed.fired == 1
    assert again.status_code in (200, 202)
    done = httpx2.get(f"{service.servers[0].url}/jobs/{again.json()['id']}?wait=30", timeout=SOON)
    assert done.json()["state"] == "completed"
    assert service.charged(order) == 1


def test_a_stream_goes_on_at_another_server_when_its_own_is_killed(service: Service, tmp_path: Path) -> None:
    server, other = service.servers
    order, sign = order_of("watched"), tmp_path / "sign"
    body = {"order": order, "sign": str(sign)}
    job_id = httpx2.post(f"{server.url}/jobs/charge_when_told", json=body, timeout=SOON).json()["id"]
    assert eventually(lambda: httpx2.get(f"{server.url}/jobs/{job_id}").json()["state"] == "running", SOON)

    with httpx2.stream("GET", f"{server.url}/jobs/{job_id}/events", timeout=SOON) as stream:
        seen = next(line for line in stream.iter_lines() if line.startswith("id: ")).removeprefix("id: ")
        server.kill()
    sign.touch()
    rest = httpx2.get(f"{other.url}/jobs/{job_id}/events", headers={"Last-Event-ID": seen}, timeout=SOON)
    server.restart()

    events = [json.loads(line.removeprefix("data: ")) for line in rest.text.split("\n") if line.startswith("data: ")]
    assert events[-1]["state"] == "completed"
    assert all(f"id: {seen}" not in block for block in rest.text.split("\n\n"))


def test_while_the_store_is_gone_posts_are_refused_and_afterwards_each_makes_one_job(
    tmp_path: Path, valkey: ValkeyServer, private_valkey: ValkeyServer
) -> None:
    service = Service(tmp_path, broker_on(valkey), private_valkey.url)
    order = {"order": order_of("refused")}

    with service.servers[0] as server:
        url = f"{server.url}/jobs/charge"
        assert httpx2.post(url, json={"order": order_of("before")}, timeout=SOON).status_code == 202
        private_valkey.kill()
        refused = [httpx2.post(url, json=order, timeout=SOON) for _ in range(3)]
        not_ready = httpx2.get(f"{server.url}/readyz", timeout=SOON)
        alive = httpx2.get(f"{server.url}/healthz", timeout=SOON)
        private_valkey.restart()
        assert eventually(lambda: httpx2.get(f"{server.url}/readyz", timeout=SOON).status_code == 200, SOON)
        accepted = [httpx2.post(url, json=order, timeout=SOON) for _ in range(2)]

    assert {(each.status_code, each.headers["retry-after"]) for each in refused} == {(503, "1")}
    assert (not_ready.status_code, not_ready.json()["store"], alive.status_code) == (503, "down", 200)
    assert {each.status_code for each in accepted} == {202}
    assert len({each.json()["id"] for each in accepted}) == 1
    assert len(service.jobs(order["order"])) == 1
