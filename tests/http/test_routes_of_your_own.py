from __future__ import annotations

import asyncio
from typing import Annotated
from unittest.mock import Mock

import pytest
from fastapi import Depends, FastAPI, Response
from fastapi.testclient import TestClient
from guarded.hand import Hand
from guarded.web import client_of, problem

from oncelery import ConfigurationError, DuplicateTaskError, PayloadMismatchError, StoreUnavailableError
from oncelery.http import create_router, idempotency_key, map_errors, submit


@pytest.fixture
def own(hand: Hand) -> TestClient:
    """Give a client of an app that uses the parts by itself."""
    app = FastAPI()
    app.include_router(create_router(hand.once, tasks=["joining"]), prefix="/api")
    map_errors(app, jobs_url="/api/jobs")

    @app.post("/orders/{name}")
    async def order(name: str, key: Annotated[str, Depends(idempotency_key)]) -> Response:
        return await submit(hand.tasks.rejecting, [name], idempotency_key=key, jobs_url="/api/jobs")

    @app.post("/by-hand/{name}")
    def by_hand(name: str) -> dict[str, str]:
        return {"id": hand.tasks.rejecting.delay(name).id}

    @app.get("/fails/{kind}")
    def fails(kind: str) -> None:
        raise {
            "store": StoreUnavailableError(),
            "payload": PayloadMismatchError(),
            "politely": DuplicateTaskError("Thank you, we have it."),
        }[kind]

    return client_of(app)


def test_a_route_of_your_own_submits_as_ours_do(own: TestClient, hand: Hand) -> None:
    name, key = hand.name(), {"Idempotency-Key": "evt-1"}

    first = own.post(f"/orders/{name}", headers=key)
    second = own.post(f"/orders/{name}", headers=key)
    hand.deliver_all()
    third = own.post(f"/orders/{name}", headers=key)
    without = own.post(f"/orders/{name}")

    assert [each.status_code for each in (first, second, third, without)] == [202, 202, 200, 400]
    assert first.headers["location"] == second.headers["location"] == third.headers["location"]
    assert own.get(first.headers["location"]).json()["state"] == "completed"
    assert problem(without) == "idempotency-key-missing"


def test_an_error_of_ours_that_your_route_raises_is_answered_as_a_problem(own: TestClient, hand: Hand) -> None:
    name = hand.name()
    first = own.post(f"/by-hand/{name}")

    second = own.post(f"/by-hand/{name}")

    assert (second.status_code, problem(second)) == (409, "duplicate")
    assert second.json()["job_id"] == first.json()["id"]
    assert second.json()["location"] == f"/api/jobs/{first.json()['id']}"
    assert problem(own.get("/fails/store")) == "store-unavailable"
    assert problem(own.get("/fails/payload")) == "payload-mismatch"


def test_a_fault_of_the_service_is_raised_as_it_is(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = ConfigurationError("mend it")
    monkeypatch.setattr(hand.tasks.joining, "apply_async", Mock(side_effect=fault))

    with pytest.raises(ConfigurationError, match="mend it") as raised:
        asyncio.run(submit(hand.tasks.joining, [hand.name()]))

    assert raised.value.__cause__ is None


def test_the_schema_of_your_route_says_that_it_must_have_a_key(own: TestClient) -> None:
    (name, key) = own.get("/openapi.json").json()["paths"]["/orders/{name}"]["post"]["parameters"]

    assert name["name"] == "name"
    assert (key["name"], key["in"], key["required"]) == ("Idempotency-Key", "header", True)


def test_words_for_those_who_declare_the_task_are_not_told_to_callers_and_words_of_yours_are(
    own: TestClient, hand: Hand
) -> None:
    name, key = hand.name(), {"Idempotency-Key": "evt-1"}
    own.post(f"/orders/{name}", headers=key)

    duplicate = own.post(f"/orders/{name}", headers={"Idempotency-Key": "evt-2"}).json()["detail"]
    mismatch = own.post(f"/orders/{hand.name()}", headers=key).json()["detail"]

    assert "follow that job" in duplicate
    assert "under a new key" in mismatch
    assert not [word for word in ("on_duplicate", "key=", "`") if word in duplicate + mismatch]
    assert own.get("/fails/politely").json()["detail"] == "Thank you, we have it."


def test_without_the_mapping_a_missing_key_is_still_a_bad_request() -> None:
    app = FastAPI()

    @app.post("/")
    async def route(_key: Annotated[str, Depends(idempotency_key)]) -> None:
        pass

    assert client_of(app).post("/").status_code == 400


def test_nothing_in_the_path_of_a_request_can_end_the_header_that_links_to_its_job(hand: Hand) -> None:
    app = FastAPI()
    app.include_router(create_router(hand.once, tasks=["joining"]), prefix="/{tenant}")
    client = client_of(app)

    answer = client.post("/a%0d%0aX-Evil: \u017e/jobs/joining", json={"name": hand.name()})

    assert answer.status_code == 202
    assert answer.headers["location"] == f"/a%0D%0AX-Evil:%20%C5%BE/jobs/{answer.json()['id']}"
    assert client.get(answer.headers["location"]).json() == answer.json()


def test_a_mounted_router_links_to_where_it_is_mounted(own: TestClient, hand: Hand) -> None:
    answer = own.post("/api/jobs/joining", json={"name": hand.name()})

    assert answer.headers["location"] == f"/api/jobs/{answer.json()['id']}"
    assert own.get(answer.headers["location"]).status_code == 200


def test_the_errors_of_a_mounted_router_are_problems_without_any_mapping(hand: Hand) -> None:
    app = FastAPI()
    app.include_router(create_router(hand.once, tasks=["rejecting"]))
    client, order = client_of(app), {"name": hand.name()}
    client.post("/jobs/rejecting", json=order)

    assert problem(client.post("/jobs/rejecting", json=order)) == "duplicate"
    assert problem(client.get("/jobs?limit=0")) == "invalid-request"
    assert problem(client.get("/jobs/nobody")) == "unknown-job"
