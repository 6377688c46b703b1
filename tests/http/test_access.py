"""Who may do what, over every route that there is."""

from __future__ import annotations

import logging
import os
from typing import Any

import pytest
from fastapi.routing import APIRoute
from guarded.app import NO_WAIT
from guarded.hand import Hand
from guarded.web import client_of
from httpx2 import Response

from oncelery import Oncelery, Quota
from oncelery.http import ApiKey, Role, create_app, create_router, new_key
from oncelery.job import State

#: The role that each route asks for; none for what tells nothing of jobs. A new route is given its line here.
ROLES: dict[tuple[str, str], Role | None] = {
    ("POST", "/jobs/raises"): Role.SUBMIT,
    ("POST", "/jobs/scoped"): Role.SUBMIT,
    ("POST", "/jobs/{task}"): Role.SUBMIT,
    ("GET", "/jobs"): Role.READ,
    ("GET", "/jobs/{job_id}"): Role.READ,
    ("GET", "/jobs/{job_id}/events"): Role.READ,
    ("POST", "/jobs/{job_id}/cancel"): Role.OPERATE,
    ("GET", "/dead-letters"): Role.READ,
    ("GET", "/dead-letters/{job_id}"): Role.READ,
    ("POST", "/dead-letters/revive"): Role.OPERATE,
    ("POST", "/dead-letters/discard"): Role.OPERATE,
    ("POST", "/dead-letters/{job_id}/revive"): Role.OPERATE,
    ("DELETE", "/dead-letters/{job_id}"): Role.OPERATE,
    ("GET", "/duplicates"): Role.READ,
    ("GET", "/duplicates/counts"): Role.READ,
    ("GET", "/metrics"): Role.READ,
    ("GET", "/healthz"): None,
    ("GET", "/readyz"): None,
}

#: What each route is sent; nothing else than what it takes.
BODIES: dict[tuple[str, str], Any] = {
    ("POST", "/jobs/raises"): {"name": "again", "kind": "refused"},
    ("POST", "/jobs/scoped"): {"name": "acme", "payload": 2},
    ("POST", "/jobs/{task}"): {},
    ("POST", "/dead-letters/revive"): {"dry_run": True},
    ("POST", "/dead-letters/discard"): {"dry_run": True},
    ("POST", "/dead-letters/{job_id}/revive"): {},
}

SUBMIT, READ, OPERATE = Role.SUBMIT, Role.READ, Role.OPERATE
EACH_ROLE = [(role, scope) for role in Role for scope in ("", "acme", "other")]
TEXTS: dict[tuple[Role | str, str], str] = {}
KEYS: list[ApiKey] = []
for role, scope in [*EACH_ROLE, ("all", "acme"), ("all", "other"), ("all", "")]:
    roles = tuple(Role) if role == "all" else (role,)
    TEXTS[role, scope], made = new_key(f"{role} of {scope or 'all'}", scope=scope, roles=roles)
    KEYS.append(made)


@pytest.fixture
def service(hand: Hand) -> Service:
    """Give the service with a key for each role and tenant, and a dead letter of one tenant."""
    return Service(hand)


class Service:
    """The service, as callers see it that have a key."""

    def __init__(self, hand: Hand) -> None:
        self.hand = hand
        self.tasks = [hand.tasks.raises, hand.tasks.scoped]
        self.client = client_of(create_app(hand.once, tasks=self.tasks, keys=KEYS))
        result = hand.tasks.raises.apply_async(("n", "refused"), scope="acme")
        hand.tasks.raises.apply_async(("n", "refused"), scope="acme")
        hand.deliver_all()
        self.job_id = str(result.id)
        assert hand.job(result).state is State.BURIED

    def ask(self, route: tuple[str, str], key: str | None, *, job_id: str = "") -> Response:
        method, path = route
        headers = {} if key is None else {"X-API-Key": key}
        body = {"json": BODIES[route]} if route in BODIES else {}
        url = path.replace("{job_id}", job_id or self.job_id).replace("{task}", "unknown")
        return self.client.request(method, url, headers=headers, **body)


# Every route, every role, every tenant


def test_each_route_has_its_role(service: Service) -> None:
    router = create_router(service.hand.once, tasks=service.tasks, keys=KEYS)
    routes = [route for route in router.routes if isinstance(route, APIRoute)]

    assert {(method, route.path) for route in routes for method in route.methods or ()} == ROLES.keys()
    assert len(routes) == len(router.routes)


@pytest.mark.parametrize("route", ROLES, ids=" ".join)
def test_a_route_is_for_those_who_have_its_role_and_for_nobody_else(service: Service, route: tuple[str, str]) -> None:
    wanted = ROLES[route]
    for role in Role:
        answer = service.ask(route, TEXTS[role, ""])
        status = answer.status_code
        assert (status == 403) == (wanted not in (None, role)), (role, status)
        assert status != 401
        if wanted and status == 403:
            assert answer.json()["detail"] == f"API key '{role.value} of all' lacks the role '{wanted.value}'"

    for nobody in (None, "", "once_guess", TEXTS[SUBMIT, ""][:-1], KEYS[0].sha256):
        answer = service.ask(route, nobody)
        assert (answer.status_code == 401) == (wanted is not None)
        if wanted:
            assert answer.headers["WWW-Authenticate"] == "APIKey"
            assert answer.json()["type"].endswith("unauthenticated")


@pytest.mark.parametrize("route", [route for route in ROLES if "{job_id}" in route[1]], ids=" ".join)
def test_another_tenant_s_job_is_not_there(service: Service, route: tuple[str, str]) -> None:
    before = service.hand.job(service.job_id)

    foreign = service.ask(route, TEXTS["all", "other"])
    nothing = service.ask(route, TEXTS["all", "other"], job_id="nothing")

    assert foreign.status_code == nothing.status_code == 404
    assert foreign.json()["detail"].replace(service.job_id, "nothing") == nothing.json()["detail"]
    assert service.hand.job(service.job_id) == before
    assert service.ask(route, TEXTS["all", "acme"]).status_code < 400 or route[1].endswith("cancel")


def test_of_16_tenants_each_finds_its_own_and_changes_nothing_of_the_next(hand: Hand) -> None:
    tenants = [f"tenant-{number}" for number in range(16)]
    made = {
        (tenant, role): new_key(f"{role} of {tenant}", scope=tenant, roles=[role])
        for tenant in tenants
        for role in Role
    }
    ids = {tenant: str(hand.tasks.raises.apply_async(("n", "refused"), scope=tenant).id) for tenant in tenants}
    hand.deliver_all()
    client = client_of(create_app(hand.once, tasks=[hand.tasks.raises], keys=[key for _, key in made.values()]))

    def ask(route: tuple[str, str], tenant: str, role: Role, job_id: str) -> Response:
        body = {"json": BODIES[route]} if route in BODIES else {}
        headers = {"X-API-Key": made[tenant, role][0]}
        return client.request(route[0], route[1].replace("{job_id}", job_id), headers=headers, **body)

    before = {job_id: hand.job(job_id) for job_id in ids.values()}
    for mine, theirs in zip(tenants, tenants[1:] + tenants[:1], strict=True):
        for route, wanted in ROLES.items():
            for role in Role:
                if "{job_id}" in route[1]:
                    assert ask(route, mine, role, ids[theirs]).status_code == (404 if role is wanted else 403), route
        for path in ("/jobs", "/dead-letters"):
            assert [item["id"] for item in ask(("GET", path), mine, READ, "").json()["items"]] == [ids[mine]]
        fates = ask(("POST", "/dead-letters/revive"), mine, OPERATE, "").json()["items"]
        assert [item["job_id"] for item in fates] == [ids[mine]]
        assert ask(("GET", "/jobs/{job_id}"), mine, READ, ids[mine]).json()["scope"] == mine
    assert {job_id: hand.job(job_id) for job_id in ids.values()} == before


@pytest.mark.parametrize("route", [("GET", "/jobs"), ("GET", "/dead-letters"), ("GET", "/duplicates")], ids=" ".join)
def test_a_list_has_what_is_the_tenant_s_own(service: Service, route: tuple[str, str]) -> None:
    own, foreign, every = (service.ask(route, TEXTS["all", scope]).json()["items"] for scope in ("acme", "other", ""))

    assert len(own) == len(every) == 1
    assert foreign == []
    headers = {"X-API-Key": TEXTS["all", "other"]}
    assert service.client.get(f"{route[1]}?scope=acme", headers=headers).status_code == 403


def test_counts_and_figures_are_not_told_across_tenants(service: Service) -> None:
    counts = ("GET", "/duplicates/counts")

    assert len(service.ask(counts, TEXTS["all", "acme"]).json()["items"]) == 1
    assert service.ask(counts, TEXTS["all", "other"]).json()["items"] == []
    assert service.ask(("GET", "/metrics"), TEXTS["all", "other"]).status_code == 403


@pytest.mark.parametrize("path", ["/dead-letters/revive", "/dead-letters/discard"])
def test_many_are_revived_or_discarded_only_among_the_tenant_s_own(service: Service, path: str) -> None:
    headers, wet = {"X-API-Key": TEXTS["all", "other"]}, {"dry_run": False}
    acted = service.client.post(path, json=wet, headers=headers)

    assert acted.json()["items"] == []
    assert service.client.post(path, json=wet | {"scope": "acme"}, headers=headers).status_code == 403
    assert service.hand.job(service.job_id).state is State.BURIED


def test_tenants_do_not_collide_not_even_under_the_same_idempotency_key(service: Service) -> None:
    answers = [
        service.client.post(
            "/jobs/raises",
            json={"name": "new", "kind": "refused"},
            headers={"X-API-Key": TEXTS["all", scope], "Idempotency-Key": "evt-1"},
        )
        for scope in ("acme", "other", "acme")
    ]

    assert [answer.status_code for answer in answers] == [202, 202, 202]
    acme, other, again = (answer.json()["id"] for answer in answers)
    assert acme == again != other
    assert service.hand.job(other).scope == "other"


def test_a_tenant_can_neither_submit_for_another_nor_revive_into_one(service: Service) -> None:
    body, headers = {"name": "acme", "payload": 1}, {"X-API-Key": TEXTS["all", "other"]}

    assert service.client.post("/jobs/scoped", json=body, headers=headers).status_code == 403

    mine = service.client.post("/jobs/scoped", json=body | {"name": "other"}, headers=headers).json()["id"]
    service.hand.once.ledger.received(mine, limit=0, lease=None)
    assert service.hand.job(mine).state is State.BURIED
    revive = service.client.post(f"/dead-letters/{mine}/revive", json={"kwargs": body}, headers=headers)
    assert revive.status_code == 403
    assert service.hand.job(mine).state is State.BURIED


def test_only_what_is_exposed_can_be_called(service: Service) -> None:
    for name in ("joining", "oncelery.notify", "celery.backend_cleanup", "..%2Fhealthz"):
        assert service.ask(("POST", f"/jobs/{name}"), TEXTS["all", ""]).status_code == 404


def test_a_key_sent_twice_is_none(service: Service) -> None:
    key = TEXTS["all", ""]
    answer = service.client.get("/jobs", headers=[("X-API-Key", key), ("X-API-Key", key)])

    assert answer.status_code == 401


def test_the_schema_says_that_a_key_is_needed(service: Service) -> None:
    schema = service.ask(("GET", "/openapi.json"), TEXTS[READ, ""]).json()

    assert schema["components"]["securitySchemes"]["APIKeyHeader"]["name"] == "X-API-Key"
    assert schema["paths"]["/jobs"]["get"]["security"] == [{"APIKeyHeader": []}]
    assert "401" in schema["paths"]["/jobs"]["get"]["responses"]


def test_the_schema_names_the_tasks_to_those_alone_who_may_read(service: Service) -> None:
    def status(path: str, key: str | None) -> int:
        return service.ask(("GET", path), key).status_code

    assert "/jobs/raises" in service.ask(("GET", "/openapi.json"), TEXTS[READ, "acme"]).json()["paths"]
    assert status("/openapi.json", TEXTS[SUBMIT, ""]) == 403
    assert status("/openapi.json", None) == status("/openapi.json", "once_guess") == 401


def test_no_page_has_a_script_from_elsewhere(service: Service) -> None:
    pages = ("/docs", "/redoc", "/docs/oauth2-redirect")
    without_keys = client_of(create_app(service.hand.once))

    assert {service.ask(("GET", page), TEXTS[READ, ""]).status_code for page in pages} == {404}
    assert {without_keys.get(page).status_code for page in pages} == {404}
    assert without_keys.get("/openapi.json").status_code == 200


# What is taken, and what is shown


def test_a_body_that_is_nested_too_deep_is_refused_before_it_is_read(service: Service) -> None:
    def status(depth: int) -> int:
        body = b'{"name": "[[[[", "kind": "k", "x": ' + b"[" * depth + b"]" * depth + b"}"
        headers = {"X-API-Key": TEXTS["all", ""], "Content-Type": "application/json"}
        return int(service.client.post("/jobs/raises", content=body, headers=headers).status_code)

    assert status(63) == 400
    assert status(64) == 413
    assert status(100_000) == 413


def test_secrets_among_the_arguments_are_shown_to_nobody(hand: Hand, caplog: pytest.LogCaptureFixture) -> None:
    canary = "canary-7f3a"

    @hand.once.task(name="signs-in")
    def signs_in(user: str, password: str, options: dict[str, Any]) -> None:  # noqa: ARG001 - that it has them
        raise PermissionError(user)

    hand.app.conf.oncelery_redact = ["shoe_size"]
    client = client_of(create_app(hand.once, tasks=[signs_in], keys=KEYS))
    headers = {"X-API-Key": TEXTS["all", ""]}
    body = {
        "user": "ann",
        "password": canary,
        "options": {"apiKey": canary, "cards": [{"card-number": canary}], "shoeSize": canary, "tokens": [canary]},
    }
    with caplog.at_level(logging.DEBUG):
        posted = client.post("/jobs/signs-in", json=body, headers=headers)
        by_place = signs_in.apply_async(("bob", canary, {}), kwargsrepr="", argsrepr="")
        (delivered, _) = hand.deliver_all()

    assert canary not in delivered.headers["kwargsrepr"]
    read = [posted.text]
    for job_id in (posted.json()["id"], by_place.id):
        for path in (f"/jobs/{job_id}", f"/jobs/{job_id}/events", f"/dead-letters/{job_id}", "/jobs", "/dead-letters"):
            answer = client.get(path, headers=headers)
            assert answer.status_code == 200
            read.append(answer.text)
    assert not [text for text in read if canary in text]
    assert canary not in caplog.text
    shown = client.get(f"/dead-letters/{posted.json()['id']}", headers=headers).json()["arguments"]["kwargs"]
    assert (shown["user"], shown["password"]) == ("ann", "[redacted]")
    shown = client.get(f"/dead-letters/{by_place.id}", headers=headers).json()["arguments"]["args"]
    assert shown == ["bob", "[redacted]", {}]


@pytest.mark.parametrize("how", ["by policy", "by celery", "with other arguments"])
def test_secrets_of_a_job_stay_hidden_in_the_messages_of_its_retries(hand: Hand, how: str) -> None:
    canary = "canary-7f3a"

    @hand.once.task(name="signs-in-later", bind=True, retry_on=ConnectionError, max_attempts=3, backoff=NO_WAIT)
    def signs_in(self: Any, user: str, /, password: str) -> int:  # noqa: ANN401 - bound
        if self.request.retries == 2:
            return 2
        match how:
            case "by policy":
                raise ConnectionError
            case "by celery":
                raise self.retry(countdown=0)
            case _:
                raise self.retry(args=(user,), kwargs={"password": password + "!"}, countdown=0)

    client = client_of(create_app(hand.once, tasks=[signs_in], keys=KEYS))
    body = {"user": "ann", "password": canary}
    client.post("/jobs/signs-in-later", json=body, headers={"X-API-Key": TEXTS["all", ""]})
    delivered = hand.deliver_all()

    assert [each.headers["retries"] for each in delivered] == [0, 1, 2]
    assert {each.headers["kwargsrepr"] for each in delivered} == {"{'password': '[redacted]'}"}
    assert {each.headers["argsrepr"] for each in delivered} == {"('ann',)"}


def test_secrets_stay_hidden_in_a_copy_that_waits_for_the_job_that_does_its_work(hand: Hand) -> None:
    shown = {"argsrepr": "('ann', '[redacted]')", "kwargsrepr": "{}"}

    @hand.once.task(name="signs-in-once", key="user")
    def signs_in(user: str, password: str) -> str:  # noqa: ARG001 - that it has one
        hand.once.send_unguarded("signs-in-once", (user, "canary-7f3a"), task_id="other", **shown)
        assert hand.deliver().state == "IGNORED"
        return user

    signs_in.delay("ann", "canary-7f3a")
    hand.deliver()
    parked = hand.deliver()

    assert (parked.id, parked.value) == ("other", "ann")
    assert {name: parked.headers[name] for name in shown} == shown


def test_a_dead_letter_is_corrected_by_who_has_not_seen_its_secrets(hand: Hand) -> None:
    seen: list[tuple[str, str]] = []

    @hand.once.task(name="signs-in-again")
    def signs_in(user: str, password: str) -> None:
        seen.append((user, password))
        if user == "an":
            raise PermissionError(user)

    client = client_of(create_app(hand.once, tasks=[signs_in], keys=KEYS))
    headers = {"X-API-Key": TEXTS["all", ""]}
    job_id = client.post("/jobs/signs-in-again", json={"user": "an", "password": "p"}, headers=headers).json()["id"]
    hand.deliver_all()
    shown = client.get(f"/dead-letters/{job_id}", headers=headers).json()["arguments"]["kwargs"]

    def revive(kwargs: dict[str, Any]) -> int:
        return int(client.post(f"/dead-letters/{job_id}/revive", json={"kwargs": kwargs}, headers=headers).status_code)

    assert revive({"user": "[redacted]", "password": ["[redacted]"]}) == 400
    assert revive(shown | {"user": "ann"}) == 202
    (revived,) = hand.deliver_all()
    assert revived.headers["kwargsrepr"] == "{'user': 'ann', 'password': '[redacted]'}"
    assert seen == [("an", "p"), ("ann", "p")]


def test_what_reading_would_run_is_not_read(hand: Hand) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, ("/nonexistent/should-not-be-tried",)

    hand.app.conf.accept_content = ["json", "pickle"]
    result = hand.tasks.raises.apply_async(("n", "refused"), serializer="pickle", headers={"bomb": Bomb()})
    hand.once.ledger.received(result.id, limit=0)
    client = client_of(create_app(hand.once, keys=KEYS))

    answer = client.get(f"/dead-letters/{result.id}", headers={"X-API-Key": TEXTS["all", ""]})

    assert answer.status_code == 200
    assert answer.json()["arguments"] is None


def test_a_call_back_may_be_asked_for_if_it_can_be_sent(service: Service) -> None:
    def post(url: str) -> Response:
        return service.client.post(
            "/jobs/raises",
            params={"notify": url},
            json={"name": url, "kind": "refused"},
            headers={"X-API-Key": TEXTS["all", "acme"]},
        )

    assert post("https://example.com/").status_code == 400
    service.hand.once.__dict__.pop("settings", None)
    service.hand.app.conf.oncelery_webhook_secrets = "whsec_" + "a" * 32
    assert post("https://example.com/hook").status_code == 202
    for url in ("http://example.com/", "https://127.0.0.1/", "https://[::1]/", "https://2130706433/"):
        refused = post(url)
        assert refused.status_code == 400
        assert refused.json()["type"].endswith("call-back-refused")


# Limits of a tenant


def test_a_tenant_that_has_what_it_may_is_answered_429_and_others_are_not(hand: Hand) -> None:
    once = Oncelery(hand.app, quotas={"acme": Quota(max_active=2), "*": Quota(per_minute=1)})
    once.__dict__["ledger"] = hand.once.ledger
    client = client_of(create_app(once, tasks=[hand.tasks.joining], keys=KEYS))

    def post(name: str, scope: str) -> Response:
        return client.post("/jobs/joining", json={"name": name}, headers={"X-API-Key": TEXTS["all", scope]})

    assert [post(name, "acme").status_code for name in "abc"] == [202, 202, 429]
    refused = post("c", "acme")
    assert refused.json()["type"].endswith("limit-reached")
    assert int(refused.headers["Retry-After"]) >= 1
    assert post("a", "acme").status_code == 202

    assert [post(name, "other").status_code for name in "ab"] == [202, 429]
    assert 55 <= int(post("b", "other").headers["Retry-After"]) <= 60
    assert [post(name, "").status_code for name in "abcde"] == [202] * 5

    hand.deliver_all()
    assert post("c", "acme").status_code == 202
