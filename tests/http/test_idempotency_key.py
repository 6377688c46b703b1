from __future__ import annotations

from datetime import timedelta

import pytest
from fastapi.testclient import TestClient
from guarded.hand import Hand
from guarded.web import client_of, problem
from httpx2 import Response

from oncelery.http import create_app, new_key


def post(client: TestClient, task: str, order: object, key: str) -> Response:
    """Submit under a key."""
    return client.post(f"/jobs/{task}", json=order, headers={"Idempotency-Key": key})


# The header names the request, the task's key names the work: both hold


def test_three_requests_for_one_project_are_one_plan_and_two_refusals(client: TestClient, hand: Hand) -> None:
    name = hand.name()

    answers = [post(client, "rejecting", {"name": name, "payload": n}, f"click-{n}") for n in range(3)]
    hand.deliver_all()

    assert [answer.status_code for answer in answers] == [202, 409, 409]
    assert {answer.json()["job_id"] for answer in answers[1:]} == {answers[0].json()["id"]}
    assert len(hand.told(name, "effect")) == 1


@pytest.mark.parametrize("finished", [False, True])
def test_two_requests_for_one_order_are_one_charge(client: TestClient, hand: Hand, finished: bool) -> None:  # noqa: FBT001
    name = hand.name()
    first = post(client, "joining", {"name": name}, "click-1")
    if finished:
        hand.deliver_all()

    second = post(client, "joining", {"name": name}, "click-2")
    again = post(client, "joining", {"name": name}, "click-2")
    hand.deliver_all()

    assert first.json()["id"] == second.json()["id"] == again.json()["id"]
    assert second.status_code == again.status_code == (200 if finished else 202)
    assert len(hand.told(name, "effect")) == 1


def test_a_request_that_is_sent_again_is_no_duplicate_for_a_task_that_rejects_them(
    client: TestClient, hand: Hand
) -> None:
    order = {"name": hand.name()}

    answers = [post(client, "rejecting", order, "click-1") for _ in range(2)]
    hand.deliver_all()
    answers.append(post(client, "rejecting", order, "click-1"))

    assert [answer.status_code for answer in answers] == [202, 202, 200]
    assert len({answer.json()["id"] for answer in answers}) == 1


def test_a_request_that_was_refused_is_accepted_when_the_work_is_free(client: TestClient, hand: Hand) -> None:
    name = hand.name()
    first = post(client, "rejecting", {"name": name}, "click-1")
    assert post(client, "rejecting", {"name": name}, "click-2").status_code == 409
    hand.once.jobs.cancel(first.json()["id"])

    second = post(client, "rejecting", {"name": name}, "click-2")

    assert second.status_code == 202
    assert second.json()["id"] != first.json()["id"]


def test_another_payload_under_one_header_is_refused_though_the_work_is_the_same(
    client: TestClient, hand: Hand
) -> None:
    name = hand.name()
    post(client, "joining", {"name": name, "payload": 500}, "click-1")

    other = post(client, "joining", {"name": name, "payload": 700}, "click-1")

    assert (other.status_code, problem(other)) == (422, "payload-mismatch")


def test_a_request_gets_its_job_back_for_a_day_even_if_the_task_keeps_no_results(
    client: TestClient, hand: Hand
) -> None:
    order = {"name": hand.name()}
    first = post(client, "excluding", order, "click-1").json()["id"]
    hand.deliver_all()

    hand.clock.now += timedelta(hours=24) - timedelta(microseconds=1)
    within = post(client, "excluding", order, "click-1")
    other = post(client, "excluding", order, "click-2")
    hand.clock.now += timedelta(microseconds=1)
    hand.deliver_all()
    after = post(client, "excluding", order, "click-1")

    assert (within.status_code, within.json()["id"]) == (200, first)
    assert len({first, other.json()["id"], after.json()["id"]}) == 3


@pytest.mark.parametrize("key", [None, "order"])
@pytest.mark.parametrize("end", ["buried", "cancelled"])
def test_after_a_failure_the_same_request_is_a_new_job(hand: Hand, end: str, key: str | None) -> None:
    @hand.once.task(name="charge", key=key, shared=False)
    def charge(order: str) -> None:
        raise ValueError(order)

    client, order = client_of(create_app(hand.once, tasks=[charge])), {"order": "o-1"}
    first = post(client, "charge", order, "click-1").json()["id"]
    if end == "buried":
        hand.deliver_all()
    else:
        hand.once.jobs.cancel(first)
    assert hand.job(first).state == end

    second = post(client, "charge", order, "click-1").json()["id"]

    assert second != first
    assert post(client, "charge", order, "click-1").json()["id"] == second


def test_without_a_key_of_the_task_the_header_is_the_key(hand: Hand) -> None:
    ran: list[int] = []

    @hand.once.task(name="print", on_duplicate="reject", retention=0, shared=False)
    def print_page(page: int) -> None:
        ran.append(page)

    client = client_of(create_app(hand.once, tasks=[print_page]))
    # Two equal payloads, sent on purpose; and one of them sent again.
    answers = [post(client, "print", {"page": 1}, key) for key in ("a", "b", "a")]
    hand.deliver_all()
    answers += [post(client, "print", {"page": 1}, "a"), post(client, "print", {"page": 2}, "b")]
    hand.deliver_all()

    assert ran == [1, 1]
    assert [answer.status_code for answer in answers] == [202, 202, 202, 200, 422]


def test_of_a_task_known_by_its_message_each_header_is_one_job(client: TestClient, hand: Hand) -> None:
    client = client_of(create_app(hand.once, tasks=["notifying"]))
    name = hand.name()

    ids = [post(client, "notifying", {"name": name}, key).json()["id"] for key in ("a", "b", "a", "b")]
    hand.deliver_all()

    assert (ids[0], ids[1]) == (ids[2], ids[3])
    assert len(hand.told(name, "effect")) == 2


def test_repeated_requests_are_in_the_audit(client: TestClient, hand: Hand) -> None:
    order = {"name": hand.name()}
    for key in ("click-1", "click-1", "click-2"):
        post(client, "rejecting", order, key)
    hand.deliver_all()
    post(client, "rejecting", order, "click-1")

    answers = [duplicate.answer for duplicate in hand.once.duplicates.find().items]
    assert answers == ["replayed", "rejected", "joined"]


# How it is written


@pytest.mark.parametrize(
    ("bare", "quoted"), [("evt-1", '"evt-1"'), ("k", '"k"'), ("a" * 255, f'"{"a" * 255}"'), ("a\\b", r'"a\\b"')]
)
def test_a_key_may_be_bare_or_quoted(client: TestClient, hand: Hand, bare: str, quoted: str) -> None:
    order = {"name": hand.name()}

    ids = {
        client.post("/jobs/joining", json=order, headers={"Idempotency-Key": key}).json()["id"]
        for key in (bare, quoted)
    }

    assert len(ids) == 1


@pytest.mark.parametrize(
    "key", ["", '""', "a" * 256, f'"{"a" * 256}"', "a b", 'a"b', '"a', "a,b", '"a";p=1', "ä", "\t"]
)
def test_a_malformed_key_is_refused(client: TestClient, hand: Hand, key: str) -> None:
    answer = client.post("/jobs/joining", json={"name": "a"}, headers=[(b"Idempotency-Key", key.encode("latin-1"))])

    assert (answer.status_code, problem(answer)) == (400, "idempotency-key-malformed")
    assert hand.jobs() == []


def test_a_key_that_is_sent_twice_is_refused(client: TestClient, hand: Hand) -> None:
    headers = [("Idempotency-Key", "a"), ("Idempotency-Key", "a")]

    answer = client.post("/jobs/joining", json={"name": "a"}, headers=headers)

    assert (answer.status_code, problem(answer)) == (400, "idempotency-key-malformed")
    assert hand.jobs() == []


def test_a_missing_key_is_refused_where_one_is_required(hand: Hand) -> None:
    client = client_of(create_app(hand.once, tasks=["joining"], require_key=True))

    answer = client.post("/jobs/joining", json={"name": "a"})

    assert (answer.status_code, problem(answer)) == (400, "idempotency-key-missing")
    assert client.post("/jobs/joining", json={"name": "a"}, headers={"Idempotency-Key": "a"}).status_code == 202


@pytest.mark.parametrize("finished", [False, True])
def test_another_payload_under_the_same_key_is_refused(client: TestClient, hand: Hand, finished: bool) -> None:  # noqa: FBT001
    key = {"Idempotency-Key": hand.name()}
    client.post("/jobs/joining", json={"name": hand.name()}, headers=key)
    if finished:
        hand.deliver_all()

    answer = client.post("/jobs/joining", json={"name": hand.name()}, headers=key)

    assert (answer.status_code, problem(answer)) == (422, "payload-mismatch")
    assert len(hand.jobs()) == 1


def test_the_key_of_a_completed_job_replays_it(client: TestClient, hand: Hand) -> None:
    order, key = {"name": hand.name(), "payload": "paid"}, {"Idempotency-Key": "evt-1"}
    client.post("/jobs/joining", json=order, headers=key)
    hand.deliver_all()

    again = client.post("/jobs/joining", json=order, headers=key)

    assert (again.status_code, again.headers["idempotent-replayed"], again.json()["result"]) == (200, "true", "paid")


def test_the_same_key_of_two_tenants_is_two_jobs(hand: Hand) -> None:
    secrets, keys = zip(*(new_key(f"{tenant}-web", scope=tenant) for tenant in ("acme", "beta")), strict=True)
    client = client_of(create_app(hand.once, tasks=["joining"], keys=keys))

    answers = [
        client.post("/jobs/joining", json={"name": "a"}, headers={"Idempotency-Key": "evt-1", "X-API-Key": secret})
        for secret in secrets
    ]

    jobs = [answer.json() for answer in answers]
    assert jobs[0]["id"] != jobs[1]["id"]
    assert [(job["scope"], job["caller"]) for job in jobs] == [("acme", "acme-web"), ("beta", "beta-web")]
