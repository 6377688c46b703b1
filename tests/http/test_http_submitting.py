from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, MutableMapping
from datetime import date
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient
from guarded.hand import Hand
from guarded.web import HERE, client_of, problem

from oncelery import ConfigurationError, StoreUnavailableError
from oncelery.http import body, create_app
from oncelery.job import State

# A submission and its duplicates


def test_a_submission_is_accepted_and_says_where_its_job_is(client: TestClient, hand: Hand) -> None:
    answer = client.post("/jobs/joining", json={"name": hand.name(), "payload": 7})

    assert answer.status_code == 202
    assert answer.json()["state"] == "queued"
    assert answer.json()["task"] == "joining"
    assert answer.headers["location"] == f"/jobs/{answer.json()['id']}"
    assert client.get(answer.headers["location"]).json() == answer.json()
    assert hand.waiting() == 1


def test_a_duplicate_of_a_live_job_is_answered_with_that_job(client: TestClient, hand: Hand) -> None:
    order = {"name": hand.name()}

    first, second = (client.post("/jobs/joining", json=order) for _ in range(2))

    assert (first.status_code, second.status_code) == (202, 202)
    assert first.json()["id"] == second.json()["id"]
    assert "idempotent-replayed" not in second.headers
    assert hand.waiting() == 1


def test_a_duplicate_of_a_completed_job_is_answered_with_its_result(client: TestClient, hand: Hand) -> None:
    name = hand.name()
    order = {"name": name, "payload": {"paid": [1, 2.5, None]}}
    first = client.post("/jobs/joining", json=order)
    hand.deliver_all()

    again = client.post("/jobs/joining", json=order)

    assert again.status_code == 200
    assert again.headers["idempotent-replayed"] == "true"
    assert (again.json()["id"], again.json()["result"]) == (first.json()["id"], {"paid": [1, 2.5, None]})
    assert len(hand.told(name)) == 1


def test_a_duplicate_whose_result_was_not_kept_is_answered_with_the_reason(client: TestClient, hand: Hand) -> None:
    name = hand.name()
    client.post("/jobs/returns", json={"name": name, "kind": "large"})
    hand.deliver_all()

    again = client.post("/jobs/returns", json={"name": name, "kind": "large"})

    assert (again.status_code, again.json()["state"], again.json()["result"]) == (200, "completed", None)
    assert again.json()["result_omitted"].startswith("the result has 2,097,154 bytes")
    assert client.get(f"/jobs/{again.json()['id']}").json() == again.json()
    assert len(hand.told(name)) == 1


def test_a_payload_that_comes_back_as_the_result_runs_no_other_task(client: TestClient, hand: Hand) -> None:
    name, forged = hand.name(), hand.name()
    signature = {"task": "plain-increment", "args": [1, forged], "kwargs": {}, "options": {}, "immutable": True}
    order = {"name": name, "payload": {"oncelery_replaced_by": signature}}
    client.post("/jobs/joining", json=order)
    hand.deliver_all()

    again = client.post("/jobs/joining", json=order)
    # As a duplicate comes to a worker whose callers are answered over rpc://: under its own id.
    hand.once.send_unguarded("joining", (), order)
    hand.deliver_all()

    assert (again.json()["result"], again.json()["result_omitted"]) == (order["payload"], "")
    assert hand.told(forged, "increment") == []


def test_a_call_of_the_task_itself_and_a_post_are_one_job(client: TestClient, hand: Hand) -> None:
    name = hand.name()

    called = hand.tasks.joining.delay(name)
    posted = client.post("/jobs/joining", json={"name": name})

    assert posted.json()["id"] == called.id


@pytest.mark.parametrize("name", ["caf\u00e9", "pay out", "shop/charge", "50%", "a?b#c"])
def test_a_task_of_any_name_is_submitted_under_it(hand: Hand, name: str) -> None:
    def work(order: str) -> str:
        return order

    task = hand.once.task(name=name)(work)
    client = client_of(create_app(hand.once, tasks=[task]))

    answer = client.post(f"/jobs/{quote(name, safe='')}", json={"order": "o-1"})

    assert (answer.status_code, answer.json()["task"]) == (202, name)
    assert client.get(answer.headers["location"]).json() == answer.json()


def test_a_rejecting_task_answers_a_duplicate_with_the_id_the_state_and_the_link_of_the_job(
    client: TestClient, hand: Hand
) -> None:
    order = {"name": hand.name()}
    first = client.post("/jobs/rejecting", json=order)

    second = client.post("/jobs/rejecting", json=order)

    assert (second.status_code, problem(second)) == (409, "duplicate")
    told = second.json()
    assert (told["job_id"], told["state"], told["location"]) == (
        first.json()["id"],
        "queued",
        first.headers["location"],
    )
    assert int(second.headers["retry-after"]) >= 1


# What is refused


@pytest.mark.parametrize(
    "payload",
    [
        {"__type__": "bytes", "__value__": "abc"},
        {"__type__": "decimal", "__value__": "1.5"},
        {"__type__": "uuid", "__value__": "no uuid"},
        [{"deep": [{"__type__": "unknown", "__value__": 1}]}],
        {"__type__": "alone"},
    ],
)
def test_an_argument_that_the_broker_would_turn_into_another_type_is_refused(
    client: TestClient, hand: Hand, payload: object
) -> None:
    answer = client.post("/jobs/joining", json={"name": hand.name(), "payload": payload})

    assert (answer.status_code, problem(answer)) == (400, "invalid-arguments")
    assert "__type__" in answer.json()["detail"]
    assert hand.waiting() == 0


def test_a_task_that_takes_any_name_is_not_called_with_the_broker_s_tags(hand: Hand) -> None:
    @hand.once.task(name="takes-any-name")
    def takes_any(**names: object) -> list[str]:
        return list(names)

    client = client_of(create_app(hand.once, tasks=[takes_any]))

    assert client.post("/jobs/takes-any-name", json={"__type__": "bytes", "__value__": "abc"}).status_code == 400
    assert client.post("/jobs/takes-any-name", json={"__value__": "abc", "type": "__type__"}).status_code == 202
    assert [each.value for each in hand.deliver_all()] == [["__value__", "type"]]


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        ({}, "name"),
        ({"name": 1}, "name"),
        ({"name": "a", "surprise": 1}, "surprise"),
        ([], "body"),
        ("text", "body"),
    ],
)
def test_arguments_that_the_task_does_not_take_are_refused_by_their_names(
    client: TestClient, hand: Hand, body: object, wrong: str
) -> None:
    answer = client.post("/jobs/joining", json=body)

    assert (answer.status_code, problem(answer)) == (400, "invalid-arguments")
    assert wrong in answer.json()["detail"]
    assert hand.jobs() == []


def test_a_refusal_does_not_repeat_the_value_which_may_be_a_secret(client: TestClient) -> None:
    answer = client.post("/jobs/joining", json={"name": ["hunter2"]})

    assert answer.status_code == 400
    assert "hunter2" not in answer.text


@pytest.mark.parametrize("body", [b"", b"{", b'{"name": "\\ud800"}', b'{"name": "a"} x'])
def test_what_is_no_json_is_refused(client: TestClient, body: bytes) -> None:
    answer = client.post("/jobs/joining", content=body, headers={"content-type": "application/json"})

    assert (answer.status_code, problem(answer)) == (400, "invalid-arguments")


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_what_a_form_on_another_page_could_send_is_refused(client: TestClient, hand: Hand, kind: str) -> None:
    answer = client.post("/jobs/joining", content=b'{"name": "a"}', headers={"content-type": kind})

    assert (answer.status_code, problem(answer)) == (415, "not-json")
    assert hand.jobs() == []


def test_a_body_that_is_too_large_is_refused_whether_or_not_it_says_how_large_it_is(hand: Hand) -> None:
    client = client_of(create_app(hand.once, tasks=["joining"], largest_body=100))
    large = json.dumps({"name": "a" * 100}).encode()

    declared = client.post("/jobs/joining", content=large, headers={"content-type": "application/json"})
    streamed = client.post("/jobs/joining", content=iter([large]), headers={"content-type": "application/json"})

    assert [problem(declared), problem(streamed)] == ["too-large"] * 2
    assert (declared.status_code, streamed.status_code) == (413, 413)


@pytest.mark.parametrize("path", ["/jobs/joining", "/dashboard/sign-in"])
@pytest.mark.parametrize(("message", "answered"), [(None, 408), ({"type": "http.disconnect"}, 400)])
def test_a_client_that_does_not_send_its_body_is_not_waited_for_and_leaves_no_job(
    hand: Hand, monkeypatch: pytest.MonkeyPatch, message: dict[str, Any] | None, answered: int, path: str
) -> None:
    monkeypatch.setattr(body, "LONGEST", 0.05)
    app, sent = create_app(hand.once, tasks=["joining"]), []
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": path, "query_string": b""}
    headers = {b"host": b"localhost", b"content-type": b"application/json", b"content-length": b"10"}
    scope |= {"headers": [*headers.items()], "client": HERE}

    async def receive() -> dict[str, Any]:
        if message is None:
            await asyncio.Event().wait()
        return message or {}

    async def send(part: MutableMapping[str, Any]) -> None:
        sent.append(part)

    asyncio.run(asyncio.wait_for(app(scope, receive, send), 30))

    assert sent[0]["status"] == answered
    assert hand.jobs() == []


@pytest.mark.parametrize("name", ["nobody", "notifying", "celery.chord", "plain-increment", "..", "joining/x"])
def test_only_exposed_tasks_can_be_submitted(client: TestClient, hand: Hand, name: str) -> None:
    answer = client.post(f"/jobs/{name}", json={"name": "a"})

    assert answer.status_code in (404, 405)
    assert hand.jobs() == []


@pytest.mark.parametrize("name", ["plain-increment", "nobody"])
def test_a_task_that_is_not_guarded_cannot_be_exposed(hand: Hand, name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        create_app(hand.once, tasks=[name])


def test_a_path_that_is_not_there_is_a_problem_too(client: TestClient) -> None:
    missing, wrong = client.get("/nowhere"), client.delete("/jobs")

    assert [each.headers["content-type"] for each in (missing, wrong)] == ["application/problem+json"] * 2
    assert (missing.status_code, wrong.status_code, wrong.headers["allow"]) == (404, 405, "GET")


# Store and broker


def test_without_the_store_nothing_is_accepted_and_the_client_is_told_when_to_ask_again(
    client: TestClient, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise StoreUnavailableError

    with monkeypatch.context() as patch:
        for verb in ("reserve", "get", "find", "cancel", "duplicates"):
            patch.setattr(hand.store, verb, away)
        answers = [
            client.post("/jobs/joining", json={"name": "a"}),
            client.get("/jobs/a"),
            client.get("/jobs"),
            client.post("/jobs/a/cancel"),
            client.get("/dead-letters"),
            client.get("/duplicates"),
            client.get("/jobs/a/events"),
        ]

    assert {(each.status_code, problem(each)) for each in answers} == {(503, "store-unavailable")}
    assert all(int(each.headers["retry-after"]) >= 1 for each in answers)
    assert (hand.jobs(), hand.waiting()) == ([], 0)


def test_without_the_broker_a_job_is_accepted_for_the_sweeper(client: TestClient, hand: Hand) -> None:
    with hand.broker_down():
        answer = client.post("/jobs/joining", json={"name": hand.name()})

    assert answer.status_code == 202
    assert hand.job(answer.json()["id"]).state is State.QUEUED
    assert hand.waiting() == 0


def test_without_the_broker_a_job_is_refused_if_the_app_says_so(client: TestClient, hand: Hand) -> None:
    order = {"name": hand.name()}
    hand.app.conf.oncelery_on_broker_down = "refuse"
    vars(hand.once).pop("settings", None)

    with hand.broker_down():
        refused = client.post("/jobs/joining", json=order)
    accepted = client.post("/jobs/joining", json=order)

    assert (refused.status_code, problem(refused)) == (503, "broker-unavailable")
    assert int(refused.headers["retry-after"]) >= 1
    assert accepted.status_code == 202
    assert hand.waiting() == 1


# What arguments are


def test_what_json_has_no_form_for_is_given_to_the_task_as_it_is_annotated(hand: Hand) -> None:
    seen: list[Any] = []

    @hand.once.task(name="report", shared=False)
    def report(day: date, pages: list[int] = []) -> None:  # noqa: B006 - nobody changes it
        seen.append((day, pages))

    client = client_of(create_app(hand.once, tasks=[report]))
    posted = client.post("/jobs/report", json={"day": "2026-11-15"})
    called = report.delay(date(2026, 11, 15))
    wrong = client.post("/jobs/report", json={"day": "yesterday"})
    hand.deliver_all()

    assert posted.json()["id"] == called.id
    assert seen == [(date(2026, 11, 15), [])]
    assert problem(wrong) == "invalid-arguments"


def test_a_parameter_that_is_taken_by_place_alone_is_named_in_the_body(hand: Hand) -> None:
    @hand.once.task(name="by-place", key="order_id")
    def by_place(order_id: str, /, amount: int, *, note: str = "") -> str:
        return f"{order_id} {amount} {note}"

    client = client_of(create_app(hand.once, tasks=[by_place]))
    accepted = client.post("/jobs/by-place", json={"amount": 5, "order_id": "o-1", "note": "n"})
    hand.deliver_all()

    done = client.get(f"/jobs/{accepted.json()['id']}").json()
    assert (accepted.status_code, done["result"]) == (202, "o-1 5 n")
    assert by_place.delay("o-1", 5, note="n").id == done["id"]
    assert problem(client.post("/jobs/by-place", json={"amount": 5})) == "invalid-arguments"


def test_models_are_checked_and_given_as_celery_gives_them(client: TestClient, hand: Hand) -> None:
    name = hand.name()

    wrong = client.post("/jobs/takes-models", json={"order": {"order_id": 1, "amount": 5}, "name": name})
    right = client.post("/jobs/takes-models", json={"order": {"order_id": "o-1", "amount": 5}, "name": name})
    hand.deliver_all()

    assert "order.order_id" in wrong.json()["detail"]
    assert client.get(right.headers["location"]).json()["result"] == {"order_id": "o-1", "amount": 5}


def test_annotations_that_nobody_can_read_take_anything(hand: Hand) -> None:
    @hand.once.task(name="odd", shared=False)
    def odd(thing: "Missing", other: Callable[[], None], /, *rest: int, **more: int) -> None:  # type: ignore[name-defined] # noqa: F821, UP037
        pass

    @hand.once.task(name="open", shared=False)
    def open_(_thing: object, json: object = None, **more: object) -> None:
        pass

    client = client_of(create_app(hand.once, tasks=[odd, open_]))

    assert client.post("/jobs/open", json={"_thing": [1], "json": 1, "extra": "x"}).status_code == 202
