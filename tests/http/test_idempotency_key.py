from __future__ import annotations

import pytest
from fastapi.testclient import TestClient
from guarded.hand import Hand
from guarded.web import client_of, problem

from oncelery.http import create_app, new_key


def test_the_same_key_is_the_same_job_whatever_the_task_chooses(client: TestClient, hand: Hand) -> None:
    order, key = {"name": hand.name()}, {"Idempotency-Key": "evt-1"}

    keyed = [client.post("/jobs/joining", json=order, headers=key).json()["id"] for _ in range(2)]
    other = client.post("/jobs/joining", json=order, headers={"Idempotency-Key": "evt-2"}).json()["id"]

    assert keyed[0] == keyed[1] != other


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
