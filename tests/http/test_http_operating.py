from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from guarded.hand import Hand
from guarded.web import problem
from kombu.exceptions import OperationalError
from msgspec.structs import replace
from pydantic import TypeAdapter

from oncelery import StoreUnavailableError
from oncelery.celery.message import write
from oncelery.http import views
from oncelery.job import Job
from oncelery.telemetry.logging import log


def bury(hand: Hand, client: TestClient, name: str = "") -> str:
    """Make a dead letter, and give its id."""
    answer = client.post("/jobs/raises", json={"name": name or hand.name(), "kind": "refused"})
    hand.deliver_all()
    job_id: str = answer.json()["id"]
    assert hand.job(job_id).state == "buried"
    return job_id


def away(*_: object, **__: object) -> None:
    raise OperationalError


# Cancelling


def test_a_queued_job_is_cancelled_and_cancelling_it_again_changes_nothing(client: TestClient, hand: Hand) -> None:
    job_id = hand.tasks.joining.delay(hand.name()).id

    first = client.post(f"/jobs/{job_id}/cancel?reason=mistake")
    second = client.post(f"/jobs/{job_id}/cancel?reason=other")

    assert (first.status_code, second.status_code) == (202, 202)
    assert first.json() == second.json()
    assert (first.json()["state"], first.json()["reason"]) == ("cancelled", "mistake")
    assert [each.state for each in hand.deliver_all()] == ["IGNORED"]


def test_a_running_job_is_asked_to_end(client: TestClient, hand: Hand) -> None:
    seen: list[Any] = []

    @hand.once.task(name="asked", shared=False)
    def asked() -> None:
        seen.append(client.post(f"/jobs/{job_id}/cancel"))

    job_id = asked.delay().id
    hand.deliver()

    assert (seen[0].status_code, seen[0].json()["state"], seen[0].json()["cancel_requested"]) == (202, "running", True)


def test_a_finished_job_is_too_late_to_cancel(client: TestClient, hand: Hand) -> None:
    job_id = hand.tasks.joining.delay(hand.name()).id
    hand.deliver_all()

    answer = client.post(f"/jobs/{job_id}/cancel")

    assert (answer.status_code, problem(answer)) == (409, "job-finished")
    assert (answer.json()["job_id"], answer.json()["state"]) == (job_id, "completed")


def test_a_job_that_is_not_there_cannot_be_cancelled(client: TestClient) -> None:
    assert problem(client.post("/jobs/nobody/cancel")) == "unknown-job"


def test_a_process_that_cannot_be_told_to_end_is_a_problem_and_the_job_is_cancelled(
    client: TestClient, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hand.app.control, "revoke", away)
    job_id = hand.tasks.joining.delay(hand.name()).id

    answer = client.post(f"/jobs/{job_id}/cancel?terminate=true")

    assert (answer.status_code, problem(answer)) == (503, "broker-unavailable")
    assert hand.job(job_id).state == "cancelled"


# Dead letters


def test_a_dead_letter_shows_its_arguments_its_error_its_traceback_and_its_attempts(
    client: TestClient, hand: Hand
) -> None:
    name = hand.name()
    job_id = bury(hand, client, name)

    listed = client.get("/dead-letters").json()["items"]
    letter = client.get(f"/dead-letters/{job_id}").json()

    assert [each["id"] for each in listed] == [job_id]
    assert letter["arguments"] == {"args": [], "kwargs": {"name": name, "kind": "refused"}}
    assert letter["error"]["message"] == name
    assert "raise errors[kind]" in letter["traceback"]
    assert (letter["attempt"], letter["past"]) == (1, [])


def test_earlier_attempts_are_shown_with_their_errors(client: TestClient, hand: Hand) -> None:
    job_id = hand.tasks.retried_by_policy.delay(hand.name(), 10).id
    hand.deliver_all()

    past = client.get(f"/dead-letters/{job_id}").json()["past"]

    assert [(each["number"], each["cause"], bool(each["error"]["traceback"])) for each in past][:2] == [
        (1, "retry", True),
        (2, "retry", True),
    ]


@pytest.mark.parametrize("kind", ["nobody", "queued"])
def test_what_is_no_dead_letter_is_not_found_among_them(client: TestClient, hand: Hand, kind: str) -> None:
    job_id = hand.tasks.joining.delay(hand.name()).id if kind == "queued" else kind

    answer = client.get(f"/dead-letters/{job_id}")

    assert (answer.status_code, problem(answer)) == (404, "unknown-job")


def test_a_dead_letter_is_revived_with_corrected_arguments(client: TestClient, hand: Hand) -> None:
    name = hand.name()
    job_id = bury(hand, client, name)

    wrong = client.post(f"/dead-letters/{job_id}/revive", json={"kwargs": {"nonsense": 1}})
    right = client.post(f"/dead-letters/{job_id}/revive", json={"kwargs": {"name": name, "kind": "key"}})
    again = client.post(f"/dead-letters/{job_id}/revive", json={})
    hand.deliver_all()

    assert (wrong.status_code, problem(wrong)) == (400, "invalid-arguments")
    assert (right.status_code, right.json()["state"]) == (202, "queued")
    # All its arguments count: with others it is other work, which another job does.
    new_id = right.json()["id"]
    assert right.headers["location"] == f"/jobs/{new_id}"
    assert (again.status_code, problem(again), again.json()["state"]) == (409, "not-buried", "cancelled")
    assert client.get(f"/jobs/{job_id}").json()["reason"] == f"revived as {new_id}"
    assert "KeyError" in client.get(f"/dead-letters/{new_id}").json()["error"]["type"]


def test_a_revived_dead_letter_is_where_the_answer_says(client: TestClient, hand: Hand) -> None:
    job_id = bury(hand, client)

    answer = client.post(f"/dead-letters/{job_id}/revive", json={})

    assert (answer.status_code, answer.headers["location"]) == (202, f"/jobs/{job_id}")


def test_corrected_arguments_that_are_the_work_of_another_job_leave_the_dead_letter(
    client: TestClient, hand: Hand
) -> None:
    job_id, name = bury(hand, client), hand.name()
    other = client.post("/jobs/raises", json={"name": name, "kind": "key"}).json()["id"]

    answer = client.post(f"/dead-letters/{job_id}/revive", json={"kwargs": {"name": name, "kind": "key"}})

    assert (answer.status_code, problem(answer), answer.json()["job_id"]) == (409, "superseded", other)
    assert hand.job(job_id).state == "buried"


@pytest.mark.parametrize(
    "corrected",
    [
        {"args": [{"__type__": "bytes", "__value__": "n"}, "key"]},
        {"kwargs": {"name": {"__type__": "x"}, "kind": "key"}},
    ],
)
def test_corrected_arguments_reach_the_task_as_they_were_written_or_not_at_all(
    client: TestClient, hand: Hand, corrected: dict[str, Any]
) -> None:
    job_id = bury(hand, client, hand.name())

    answer = client.post(f"/dead-letters/{job_id}/revive", json=corrected)

    assert (answer.status_code, problem(answer)) == (400, "invalid-arguments")
    assert "__type__" in answer.json()["detail"]
    assert hand.job(job_id).state == "buried"


def test_a_dead_letter_that_cannot_be_read_is_not_revived_and_why_is_told(client: TestClient, hand: Hand) -> None:
    hand.app.conf.accept_content = ["json", "pickle"]
    pickled = hand.tasks.raises.apply_async((hand.name(), "refused"), serializer="pickle").id
    hand.deliver_all()
    hand.app.conf.accept_content = ["json"]

    one = client.post(f"/dead-letters/{pickled}/revive", json={})
    many = client.post("/dead-letters/revive", json={}).json()["items"]

    assert (one.status_code, problem(one)) == (400, "invalid-arguments")
    assert [(item["fate"], item["why"]) for item in many] == [("failed", one.json()["detail"])]
    assert "ContentDisallowed" in one.json()["detail"]


def test_a_dead_letter_whose_work_another_job_does_stays_one(client: TestClient, hand: Hand) -> None:
    name = hand.name()
    job_id = bury(hand, client, name)
    other = client.post("/jobs/raises", json={"name": name, "kind": "refused"}).json()["id"]

    answer = client.post(f"/dead-letters/{job_id}/revive", json={})

    assert (answer.status_code, problem(answer), answer.json()["job_id"]) == (409, "superseded", other)


def test_many_dead_letters_are_revived_after_a_dry_run(client: TestClient, hand: Hand) -> None:
    ids = {bury(hand, client) for _ in range(3)}
    rejected = hand.tasks.rejects_for_good.delay(hand.name()).id
    hand.deliver_all()

    dry = client.post("/dead-letters/revive", json={"task": "raises", "dry_run": True}).json()
    untouched = {job["id"] for job in client.get("/dead-letters").json()["items"]}
    wet = client.post("/dead-letters/revive", json={"task": "raises"}).json()

    assert dry["dry_run"]
    assert {item["job_id"] for item in dry["items"]} == {item["job_id"] for item in wet["items"]} == ids
    assert {item["fate"] for item in (*dry["items"], *wet["items"])} == {"revived"}
    assert untouched == ids | {rejected}
    assert [job["id"] for job in client.get("/dead-letters").json()["items"]] == [rejected]
    assert hand.waiting() == 3


def test_many_dead_letters_are_discarded_after_a_dry_run(client: TestClient, hand: Hand) -> None:
    ids = {bury(hand, client) for _ in range(2)}
    rejected = hand.tasks.rejects_for_good.delay(hand.name()).id
    hand.deliver_all()

    dry = client.post("/dead-letters/discard", json={"task": "raises", "dry_run": True}).json()
    untouched = {job["id"] for job in client.get("/dead-letters").json()["items"]}
    wet = client.post("/dead-letters/discard", json={"task": "raises", "dry_run": False}).json()

    assert (dry["dry_run"], wet["dry_run"]) == (True, False)
    assert {item["job_id"] for item in dry["items"]} == {item["job_id"] for item in wet["items"]} == ids
    assert {item["fate"] for item in (*dry["items"], *wet["items"])} == {"discarded"}
    assert untouched == ids | {rejected}
    assert [job["id"] for job in client.get("/dead-letters").json()["items"]] == [rejected]


@pytest.mark.parametrize("act", ["revive", "discard"])
@pytest.mark.parametrize("body", [{"tasks": "raises"}, {"task": 1}, [], {"since": "2026-01-01T00:00:00"}])
def test_a_selection_that_makes_no_sense_touches_nothing(
    client: TestClient, hand: Hand, body: object, act: str
) -> None:
    job_id = bury(hand, client)

    answer = client.post(f"/dead-letters/{act}", json=body)

    assert (answer.status_code, problem(answer)) == (400, "invalid-request")
    assert hand.job(job_id).state == "buried"


def test_many_are_discarded_only_by_who_says_that_it_is_no_dry_run(client: TestClient, hand: Hand) -> None:
    job_id = bury(hand, client)

    answer = client.post("/dead-letters/discard", json={})

    assert (answer.status_code, "dry_run" in answer.json()["detail"]) == (400, True)
    assert hand.job(job_id).state == "buried"


def test_a_dead_letter_is_discarded_and_discarding_it_again_changes_nothing(client: TestClient, hand: Hand) -> None:
    job_id = bury(hand, client)

    first, second = (client.delete(f"/dead-letters/{job_id}") for _ in range(2))

    assert (first.status_code, second.status_code) == (200, 200)
    assert first.json() == second.json()
    assert (first.json()["state"], first.json()["reason"]) == ("cancelled", "discarded")
    assert client.get("/dead-letters").json()["items"] == []
    assert problem(client.delete("/dead-letters/nobody")) == "unknown-job"


def test_only_a_dead_letter_can_be_discarded(client: TestClient, hand: Hand) -> None:
    job_id = hand.tasks.joining.delay(hand.name()).id

    answer = client.delete(f"/dead-letters/{job_id}")

    assert (answer.status_code, problem(answer), hand.job(job_id).state) == (409, "not-buried", "queued")


# The audit


def test_each_act_is_a_line_of_the_audit_with_who_and_what_came_of_it(
    client: TestClient, hand: Hand, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "oncelery.audit")
    first, second, third = (bury(hand, client) for _ in range(3))

    client.post(f"/dead-letters/{first}/revive", json={"kwargs": {"nonsense": 1}})
    client.post(f"/dead-letters/{first}/revive", json={})
    client.post(f"/jobs/{first}/cancel")
    client.delete(f"/dead-letters/{second}")
    client.post("/dead-letters/revive", json={"dry_run": True})
    client.post("/dead-letters/revive", json={})
    hand.deliver_all()
    client.post("/dead-letters/discard", json={"dry_run": True})
    client.post("/dead-letters/discard", json={"dry_run": False})

    told = [record.getMessage() for record in caplog.records if record.name == "oncelery.audit"]
    assert told == [
        f"(this machine): revive with other arguments job {first} of raises: failed, RevivalError",
        f"(this machine): revive job {first} of raises: revived",
        f"(this machine): cancel job {first} of raises: cancelled",
        f"(this machine): discard job {second} of raises: discarded",
        f"(this machine): revive job {third} of raises: revived",
        f"(this machine): discard job {third} of raises: discarded",
    ]


def test_the_reason_of_a_cancellation_cannot_pass_for_a_line_of_the_audit(
    client: TestClient, hand: Hand, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "oncelery")
    caplog.handler.setFormatter(logging.Formatter("%(name)s %(message)s"))
    hand.once.ledger.events.subscribe(log)
    job_id = hand.tasks.joining.delay(hand.name()).id

    client.post(f"/jobs/{job_id}/cancel", params={"reason": "x): ok\noncelery.audit admin: discard job 42"})

    lines = [line for line in caplog.text.splitlines() if line.startswith("oncelery.")]
    assert [line.split()[0] for line in lines] == ["oncelery.events", "oncelery.audit"]
    assert not [line for line in lines if line.startswith("oncelery.audit admin")]


def test_a_process_that_could_not_be_told_is_in_the_audit(
    client: TestClient, hand: Hand, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "oncelery.audit")
    monkeypatch.setattr(hand.app.control, "revoke", away)
    job_id = hand.tasks.joining.delay(hand.name()).id

    client.post(f"/jobs/{job_id}/cancel?terminate=true")

    assert f"terminate job {job_id} of joining: cancelled, but its process could not be told" in caplog.text


def test_duplicates_are_told_by_task_scope_and_time(client: TestClient, hand: Hand) -> None:
    for tenant in ("acme", "acme", "acme", "beta"):
        hand.clock.advance(seconds=1800)
        client.post("/jobs/scoped", json={"name": tenant, "payload": 1})
    order = {"name": hand.name()}
    for _ in range(2):
        client.post("/jobs/rejecting", json=order)
    last = hand.clock() - timedelta(minutes=1)

    def answers(**query: str | int) -> list[tuple[str, str, str]]:
        items = client.get("/duplicates", params=query).json()["items"]
        return [(item["task"], item["scope"], item["answer"]) for item in items]

    assert answers() == [("rejecting", "", "rejected"), *[("scoped", "acme", "joined")] * 2]
    assert answers(task="rejecting") == [("rejecting", "", "rejected")]
    assert answers(scope="acme") == [("scoped", "acme", "joined")] * 2
    assert answers(since=last.isoformat()) == [("rejecting", "", "rejected")]
    page = client.get("/duplicates?limit=2").json()
    assert len(client.get("/duplicates", params={"cursor": page["cursor"]}).json()["items"]) == 1
    counts = client.get("/duplicates/counts", params={"since": "2000-01-01T00:00:00Z", "scope": "acme"}).json()["items"]
    assert sum(each["count"] for each in counts) == 2


@pytest.mark.parametrize("path", ["/duplicates?cursor=nonsense", "/duplicates?limit=0", "/duplicates/counts?since=now"])
def test_an_audit_that_makes_no_sense_is_refused(client: TestClient, path: str) -> None:
    answer = client.get(path)

    assert (answer.status_code, problem(answer)) == (400, "invalid-request")


# Looking after the service


def test_every_metric_that_is_promised_is_exposed(client: TestClient, hand: Hand) -> None:
    hand.once.ledger.events.subscribe(hand.once.counting)
    hand.tasks.retried_by_policy.delay(hand.name(), 1)
    hand.deliver_all()
    bury(hand, client)

    answer = client.get("/metrics")

    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    for line in (
        'oncelery_decisions_total{decision="accepted",task="retried-by-policy"} 1.0',
        'celery_task_retries_total{name="retried-by-policy"} 1.0',
        'oncelery_run_seconds_count{task="retried-by-policy"} 2.0',
        "oncelery_leases 0.0",
        "oncelery_lapsed 0.0",
        "oncelery_dead_letters 1.0",
        "oncelery_overdue_seconds",
        "oncelery_up 1.0",
    ):
        assert line in answer.text


def test_the_service_is_alive_and_ready_when_store_and_broker_are_there(client: TestClient) -> None:
    assert client.get("/healthz").status_code == 200
    ready = client.get("/readyz")
    assert (ready.status_code, ready.json()) == (200, {"store": "up", "broker": "up"})


def test_without_the_store_the_service_is_alive_but_not_ready(
    client: TestClient, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(*_: object, **__: object) -> None:
        raise StoreUnavailableError

    for verb in ("get", "tally"):
        monkeypatch.setattr(hand.store, verb, unavailable)

    assert client.get("/healthz").status_code == 200
    ready = client.get("/readyz")
    assert (ready.status_code, ready.json()) == (503, {"store": "down", "broker": "up"})
    assert "oncelery_up 0.0" in client.get("/metrics").text


def test_without_the_broker_the_service_is_not_ready(client: TestClient, hand: Hand) -> None:
    hand.app.conf.update(broker_url="redis://127.0.0.1:1/0")

    ready = client.get("/readyz")

    assert (ready.status_code, ready.json()) == (503, {"store": "up", "broker": "down"})


# What is shown


def test_what_is_shown_is_what_the_schema_says(hand: Hand) -> None:
    job: Job = hand.job(hand.tasks.joining.delay(hand.name()))

    assert views.view_of(job, None).keys() == views.JobView.__annotations__.keys()
    assert views.dead_letter_of(job, None).keys() == views.DeadLetterView.__annotations__.keys()


def test_answers_are_of_the_types_that_the_schema_is_made_of(client: TestClient, hand: Hand) -> None:
    buried = hand.tasks.retried_by_policy.delay(hand.name(), 10).id
    hand.deliver_all()
    client.post("/jobs/joining", json={"name": "a"})
    client.post("/jobs/joining", json={"name": "a"})

    for path, kind in {
        f"/dead-letters/{buried}": views.DeadLetterView,
        f"/jobs/{buried}": views.JobView,
        "/dead-letters": views.JobPage,
        "/duplicates": views.DuplicatePage,
        "/duplicates/counts?since=2000-01-01T00:00:00Z": views.DuplicateCountsView,
        "/readyz": views.ReadinessView,
    }.items():
        TypeAdapter(kind).validate_json(client.get(path).content, strict=True)
    revival = client.post("/dead-letters/revive", json={"dry_run": True})
    assert TypeAdapter(views.FatesView).validate_json(revival.content, strict=True)["items"]


@pytest.mark.parametrize(
    ("value", "shown"), [({1: {2}}, {"1": [2]}), (1 + 2j, "(1+2j)"), (b"a", "YQ=="), ([None, 1.5], [None, 1.5])]
)
def test_a_result_that_json_has_no_form_for_is_shown_as_text(value: object, shown: object) -> None:
    assert views.plain(value) == shown


def test_what_would_run_code_is_not_read_though_the_app_accepts_it(hand: Hand) -> None:
    hand.app.conf.accept_content = ["json", "pickle"]
    job = hand.job(hand.tasks.joining.delay(hand.name()))
    pickled = write({"paid": 1}, "pickle")

    assert hand.once.jobs.result(replace(job, result=write({"paid": 1}, "json"))) == {"paid": 1}
    assert hand.once.jobs.result(replace(job, result=pickled)) is None
    assert hand.once.jobs.call(replace(job, body=pickled)) is None
