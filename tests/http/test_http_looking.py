from __future__ import annotations

import pytest
from fastapi.testclient import TestClient
from guarded.hand import Hand, Runner
from guarded.web import problem

from oncelery.errors import ConfigurationError


def test_a_job_shows_its_stage_its_progress_its_attempts_and_its_times(client: TestClient, hand: Hand) -> None:
    job = hand.job(hand.tasks.joining.delay(hand.name()))
    Runner(hand, job).reports(1, "first")

    seen = client.get(f"/jobs/{job.id}").json()

    assert (seen["state"], seen["attempt"], seen["begun_at"] is not None, seen["settled_at"]) == (
        "running",
        1,
        True,
        None,
    )
    assert seen["progress"] == {"stage": "first", "done": 1, "total": 3, "message": "1 of 3"}


def test_a_failed_job_shows_its_error(client: TestClient, hand: Hand) -> None:
    job_id = client.post("/jobs/raises", json={"name": hand.name(), "kind": "refused"}).json()["id"]
    hand.deliver_all()

    seen = client.get(f"/jobs/{job_id}").json()

    assert (seen["state"], seen["reason"]) == ("buried", "failed")
    assert "Refused" in seen["error"]["type"]


@pytest.mark.parametrize("job_id", ["nobody", "a%00b", "ä", "x" * 255])
def test_a_job_that_is_not_there_is_unknown(client: TestClient, job_id: str) -> None:
    assert client.get(f"/jobs/{job_id}").status_code in (400, 404)
    assert client.get(f"/jobs/{job_id}/events").status_code in (400, 404)


def test_jobs_are_listed_by_filters_and_page_after_page(client: TestClient, hand: Hand) -> None:
    for _ in range(5):
        hand.clock.advance(seconds=1)
        hand.tasks.joining.delay(hand.name())
    hand.tasks.rejecting.delay(hand.name())
    hand.deliver()

    first = client.get("/jobs?task=joining&state=queued&limit=3").json()
    second = client.get("/jobs", params={"task": "joining", "state": "queued", "limit": 3, "cursor": first["cursor"]})

    assert [len(first["items"]), len(second.json()["items"]), second.json()["cursor"]] == [3, 1, ""]
    assert [job["task"] for job in client.get("/jobs?state=completed&state=buried").json()["items"]] == ["joining"]
    assert client.get("/jobs", params={"since": hand.clock().isoformat(), "task": "rejecting"}).json()["items"]
    assert not client.get("/jobs", params={"until": "2000-01-01T00:00:00Z"}).json()["items"]


def test_a_fault_of_the_service_is_not_called_the_clients(
    client: TestClient, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ConfigurationError("the schema has no ledger")

    monkeypatch.setattr(hand.store, "find", fail)

    with pytest.raises(ConfigurationError):
        client.get("/jobs")


@pytest.mark.parametrize(
    "query",
    [
        "state=lost",
        "limit=0",
        "limit=201",
        "limit=x",
        "since=yesterday",
        "since=2026-01-01T00:00:00",
        "since=0001-01-01T00:00:00%2B14:00",
        "until=5",
        "task=%00",
    ],
)
def test_a_filter_that_makes_no_sense_is_refused(client: TestClient, query: str) -> None:
    answer = client.get(f"/jobs?{query}")

    assert (answer.status_code, problem(answer)) == (400, "invalid-request")
    assert query.partition("=")[0] in answer.json()["detail"]
