from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from guarded.hand import Hand, Runner
from guarded.web import HERE
from httpx2 import ASGITransport, AsyncClient, Response

from oncelery import StoreUnavailableError
from oncelery.breaker import Breaker
from oncelery.embedded.process import eventually
from oncelery.http import create_app, jobs, service, watching
from oncelery.http import keys as keys_module
from oncelery.http.keys import new_key
from oncelery.http.threads import Peers
from oncelery.http.watching import Watcher
from oncelery.job import Job

#: Longer than anything here takes on a busy machine; reached only by a test that fails.
SOON = 40.0


@pytest.fixture
def watcher(hand: Hand) -> Watcher:
    return Watcher(hand.once.jobs.get, store=Peers.of(hand.once).store)


@pytest.fixture
def app(hand: Hand, watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> FastAPI:
    monkeypatch.setattr(service, "Watcher", lambda *_, **__: watcher)
    return create_app(hand.once, tasks=["joining"])


@pytest.fixture
def job(hand: Hand) -> Job:
    return hand.job(hand.tasks.joining.delay(hand.name()))


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the watcher look as often as it can."""
    monkeypatch.setattr(watching, "LOOK_EVERY", 0.01)


@asynccontextmanager
async def calling(app: FastAPI) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(transport=ASGITransport(app, client=HERE), base_url="http://localhost") as client:
        yield client


async def until(condition: Callable[[], bool]) -> None:
    assert await asyncio.to_thread(eventually, condition, SOON)


# Long polls


async def _waits_for_the_end(app: FastAPI, watcher: Watcher, hand: Hand, job: Job) -> dict[str, Any]:
    async with calling(app) as client:
        answer = asyncio.create_task(client.get(f"/jobs/{job.id}?wait=30"))
        await until(lambda: watcher.watched == 1)
        runner = await asyncio.to_thread(Runner, hand, job)
        await asyncio.to_thread(runner.reports, 1, "first")
        assert not answer.done()
        await asyncio.to_thread(runner.completes)
        seen: dict[str, Any] = (await asyncio.wait_for(answer, SOON)).json()
        return seen


@pytest.mark.usefixtures("often")
def test_a_long_poll_is_answered_when_the_job_has_ended(app: FastAPI, watcher: Watcher, hand: Hand, job: Job) -> None:
    seen = asyncio.run(_waits_for_the_end(app, watcher, hand, job))

    assert (seen["state"], seen["result"]) == ("completed", "paid")
    assert eventually(lambda: watcher.watched == 0, SOON)


def test_a_long_poll_that_names_what_it_has_seen_is_answered_by_the_next_change(
    app: FastAPI, watcher: Watcher, hand: Hand, job: Job
) -> None:
    async def scene() -> tuple[Response, Response]:
        async with calling(app) as client:
            seen = await client.get(f"/jobs/{job.id}")
            same = await client.get(f"/jobs/{job.id}", headers={"If-None-Match": seen.headers["etag"]})
            waits = client.get(f"/jobs/{job.id}?wait=30", headers={"If-None-Match": seen.headers["etag"]})
            answer = asyncio.create_task(waits)
            await until(lambda: watcher.watched == 1)
            await asyncio.to_thread(Runner, hand, job)
            return same, await asyncio.wait_for(answer, SOON)

    same, changed = asyncio.run(scene())

    assert (same.status_code, same.content) == (304, b"")
    assert (changed.status_code, changed.json()["state"]) == (200, "running")


@pytest.mark.parametrize("seen", ["W/{tag}", '"older", {tag}', 'W/"older",W/{tag}', "*"])
def test_what_was_seen_may_be_named_weakly_or_in_a_list(client: TestClient, job: Job, seen: str) -> None:
    tag = client.get(f"/jobs/{job.id}").headers["etag"]

    same = client.get(f"/jobs/{job.id}", headers={"If-None-Match": seen.format(tag=tag)})

    assert (same.status_code, same.headers["etag"]) == (304, tag)
    assert client.get(f"/jobs/{job.id}", headers={"If-None-Match": f'W/"older", "{tag[2:]}'}).status_code == 200


def test_a_long_poll_in_vain_shows_the_job_as_it_is(client: TestClient, job: Job) -> None:
    answer = client.get(f"/jobs/{job.id}?wait=1")

    assert (answer.status_code, answer.json()["state"]) == (200, "queued")


def test_who_does_not_wait_is_not_watched_for(
    client: TestClient, job: Job, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watcher, "watching", None)

    seen = client.get(f"/jobs/{job.id}")

    assert client.get(f"/jobs/{job.id}", headers={"If-None-Match": seen.headers["etag"]}).status_code == 304
    assert watcher.watched == 0


def test_waiting_clients_cost_no_thread_each(app: FastAPI, watcher: Watcher, hand: Hand, job: Job) -> None:
    async def scene() -> tuple[int, list[str]]:
        async with calling(app) as client:
            polls = [asyncio.create_task(client.get(f"/jobs/{job.id}?wait=30")) for _ in range(300)]
            await until(lambda: watcher.watched == 300)
            threads = sum(thread.name == "oncelery-watcher" for thread in threading.enumerate())
            await asyncio.to_thread(Runner(hand, job).completes)
            return threads, [(await poll).json()["state"] for poll in polls]

    threads, states = asyncio.run(scene())

    assert threads == 1
    assert states == ["completed"] * 300


def test_those_who_wait_outlast_a_store_that_goes_away(
    app: FastAPI, watcher: Watcher, hand: Hand, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = threading.Event()
    looked = threading.Event()
    get: Callable[[str], Job | None] = hand.store.get

    def get_or_fail(job_id: str) -> Job | None:
        if away.is_set():
            looked.set()
            raise StoreUnavailableError
        return get(job_id)

    monkeypatch.setattr(hand.store, "get", get_or_fail)

    async def scene() -> dict[str, Any]:
        async with calling(app) as client:
            poll = asyncio.create_task(client.get(f"/jobs/{job.id}?wait=30"))
            await until(lambda: watcher.watched == 1)
            away.set()
            await until(looked.is_set)
            Runner(hand, job).completes()
            away.clear()
            seen: dict[str, Any] = (await asyncio.wait_for(poll, SOON)).json()
            return seen

    assert asyncio.run(scene())["state"] == "completed"


# Streams


def events_of(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Read a stream: ids and jobs."""
    events = []
    for block in text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
        if fields:
            events.append((fields["id"], json.loads(fields["data"])))
    return events


class Stream:
    """A client of the stream, on the ASGI level, for it must be read while it is written."""

    def __init__(self, app: FastAPI, path: str, last_event_id: str = "", key: str = "") -> None:
        self._app = app
        self._path = path
        self._headers = [(b"host", b"localhost")]
        if key:
            self._headers.append((b"x-api-key", key.encode()))
        if last_event_id:
            self._headers.append((b"last-event-id", last_event_id.encode()))
        self.status = 0
        self.text = ""
        self._gone = asyncio.Event()

    async def __call__(self) -> None:
        scope: dict[str, Any] = {"type": "http", "method": "GET", "path": self._path, "raw_path": self._path.encode()}
        scope |= {
            "headers": self._headers,
            "query_string": b"",
            "client": HERE,
            "http_version": "1.1",
            "scheme": "http",
        }
        scope |= {"server": ("localhost", 80), "asgi": {"version": "3.0", "spec_version": "2.4"}, "root_path": ""}
        await self._app(scope, self._receive, self._send)

    def leave(self) -> None:
        self._gone.set()

    async def _receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        if self._gone.is_set():
            raise OSError("the client is gone")
        self.status = message.get("status", self.status)
        self.text += message.get("body", b"").decode()

    def states(self) -> list[str]:
        return [job["state"] for _, job in events_of(self.text)] if "\n\n" in self.text else []


@pytest.mark.usefixtures("often")
def test_a_stream_tells_every_change_until_the_job_has_ended(app: FastAPI, hand: Hand, job: Job) -> None:
    async def scene() -> Stream:
        stream = Stream(app, f"/jobs/{job.id}/events")
        streaming = asyncio.create_task(stream())
        await until(lambda: stream.states() == ["queued"])
        runner = Runner(hand, job)
        await until(lambda: stream.states() == ["queued", "running"])
        runner.reports(1, "first")
        await until(lambda: len(stream.states()) == 3)
        runner.completes()
        await asyncio.wait_for(streaming, SOON)
        return stream

    stream = asyncio.run(scene())

    assert stream.states() == ["queued", "running", "running", "completed"]
    events = events_of(stream.text)
    assert [job["progress"] and job["progress"]["stage"] for _, job in events][:3] == [None, None, "first"]
    assert events[-1][1]["result"] == "paid"
    assert len({version for version, _ in events}) == 4


@pytest.mark.usefixtures("often")
def test_a_stream_goes_on_after_the_last_event_that_was_seen(
    app: FastAPI, watcher: Watcher, hand: Hand, job: Job
) -> None:
    async def scene() -> tuple[Stream, Stream, Stream]:
        first = Stream(app, f"/jobs/{job.id}/events")
        streaming = asyncio.create_task(first())
        await until(lambda: first.states() == ["queued"])
        first.leave()
        await asyncio.wait_for(streaming, SOON)
        await until(lambda: watcher.watched == 0)
        ((seen, _),) = events_of(first.text)
        second = Stream(app, f"/jobs/{job.id}/events", seen)
        streaming = asyncio.create_task(second())
        await until(lambda: watcher.watched == 1)
        await asyncio.to_thread(hand.deliver)
        await asyncio.wait_for(streaming, SOON)
        third = Stream(app, f"/jobs/{job.id}/events", events_of(second.text)[-1][0])
        await third()
        return first, second, third

    _, second, third = asyncio.run(scene())

    assert "queued" not in second.states()
    assert second.states()[-1] == "completed"
    # Else a browser would ask for ever.
    assert (third.status, third.text) == (204, "")


def test_a_silent_stream_says_that_it_is_alive(
    app: FastAPI, hand: Hand, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "PING_EVERY", 0.01)

    async def scene() -> Stream:
        stream = Stream(app, f"/jobs/{job.id}/events")
        streaming = asyncio.create_task(stream())
        await until(lambda: ": ping\n\n" in stream.text)
        Runner(hand, job).completes()
        await asyncio.wait_for(streaming, SOON)
        return stream

    assert asyncio.run(scene()).states()[-1] == "completed"


@pytest.mark.parametrize("left", ["nothing", "another tenant's"])
def test_a_stream_ends_when_its_key_is_taken_away(
    hand: Hand, watcher: Watcher, job: Job, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    monkeypatch.setattr(jobs, "PING_EVERY", 0.01)
    monkeypatch.setattr(keys_module, "FRESH", -1.0)
    monkeypatch.setattr(service, "Watcher", lambda *_, **__: watcher)
    text, key = new_key("reader")
    known = [key]
    app = create_app(hand.once, tasks=["joining"], keys=lambda: tuple(known))

    async def scene() -> None:
        stream = Stream(app, f"/jobs/{job.id}/events", key=text)
        streaming = asyncio.create_task(stream())
        await until(lambda: ": ping\n\n" in stream.text)
        known[:] = [] if left == "nothing" else [replace(key, scope="another tenant")]
        await asyncio.wait_for(streaming, SOON)
        assert stream.states() == ["queued"]

    asyncio.run(scene())


async def _sees_a_change(watcher: Watcher, hand: Hand, job: Job) -> None:
    with watcher.watching(job) as watch:
        hand.once.ledger.cancel(job.id)
        assert await watch.changed(SOON)
        assert watch.job
        assert watch.job.state == "cancelled"


@pytest.mark.usefixtures("often")
def test_where_no_thread_can_be_started_the_next_client_is_looked_for(
    watcher: Watcher, hand: Hand, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def is_refused() -> None:
        with pytest.raises(RuntimeError, match="new thread"), watcher.watching(job):
            pass

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as exhausted:
        exhausted.setattr(threading.Thread, "start", refuse)
        asyncio.run(is_refused())

    assert watcher.watched == 0
    asyncio.run(_sees_a_change(watcher, hand, job))


@pytest.mark.usefixtures("often")
def test_a_job_that_cannot_be_read_keeps_nobody_from_seeing_another(hand: Hand, job: Job) -> None:
    unreadable = hand.job(hand.tasks.joining.delay(hand.name()))

    def look(job_id: str) -> Job | None:
        if job_id == unreadable.id:
            raise ValueError("it was written by a later version")
        return hand.once.jobs.get(job_id)

    async def watch_both() -> None:
        watcher = Watcher(look, store=Peers.of(hand.once).store)
        with watcher.watching(unreadable):
            await _sees_a_change(watcher, hand, job)

    asyncio.run(watch_both())


@pytest.mark.usefixtures("often")
def test_while_the_store_is_silent_nobody_looks_and_afterwards_a_change_is_seen(hand: Hand, job: Job) -> None:
    silent, looks = threading.Event(), Counter[str]()

    def answer() -> None:
        if silent.is_set():
            raise StoreUnavailableError

    def look(job_id: str) -> Job | None:
        looks["while silent" if silent.is_set() else "else"] += 1
        return hand.once.jobs.get(job_id)

    store = Breaker(answer, name="store", every=0.01)
    silent.set()
    assert store.looked()

    async def scene() -> None:
        watcher = Watcher(look, store=store)
        with watcher.watching(job) as watch:
            assert not await watch.changed(0.2)
            silent.clear()
            await _sees_a_change(watcher, hand, job)

    asyncio.run(scene())

    assert looks["while silent"] == 0


def test_a_client_that_goes_away_is_waited_for_no_more(app: FastAPI, watcher: Watcher, job: Job) -> None:
    async def scene() -> None:
        stream = Stream(app, f"/jobs/{job.id}/events")
        streaming = asyncio.create_task(stream())
        await until(lambda: watcher.watched == 1)
        stream.leave()
        await asyncio.wait_for(streaming, SOON)

    asyncio.run(scene())

    assert eventually(lambda: watcher.watched == 0, SOON)
    assert eventually(lambda: all(thread.name != "oncelery-watcher" for thread in threading.enumerate()), SOON)
