from __future__ import annotations

import logging

import pytest
from fastapi.testclient import TestClient
from guarded.hand import Hand
from guarded.plain_browser import PAGES, Dashboard, bury, letters_of, seen_of, text_of
from guarded.web import client_of

from oncelery.http import create_app, new_key
from oncelery.http.keys import ApiKey


class Doors:
    """A service with API keys."""

    def __init__(self, hand: Hand) -> None:
        self.texts: dict[str, str] = {}
        kept: list[ApiKey] = []
        for name, scope, roles in (
            ("admin", "", ("submit", "read", "operate")),
            ("viewer", "", ("read",)),
            ("poster", "", ("submit",)),
            ("tenant", "tenant-a", ("read", "operate")),
        ):
            self.texts[name], key = new_key(name, scope=scope, roles=roles)
            kept.append(key)
        self.app = create_app(hand.once, keys=kept)

    def enter(self, name: str = "") -> Dashboard:
        """Come from elsewhere, and sign in."""
        dashboard = Dashboard(TestClient(self.app, base_url="http://ops.example", client=("10.0.0.7", 1)))
        dashboard.get("/sign-in")
        if name:
            dashboard.post("/sign-in", key=self.texts[name])
        return dashboard


@pytest.fixture
def doors(hand: Hand) -> Doors:
    return Doors(hand)


def test_who_is_not_signed_in_is_led_to_where_that_can_be_done(doors: Doors) -> None:
    board = doors.enter()

    assert {board.get(page).url.path for page in (*PAGES, "/jobs/x", "/cancel")} == {"/dashboard/sign-in"}


def test_a_wrong_key_is_refused_and_not_kept(doors: Doors) -> None:
    board = doors.enter()

    answer = board.post("/sign-in", key="once_wrong")

    assert answer.status_code == 401
    assert "No such API key." in text_of(answer)
    assert "oncelery_api_key" not in board.client.cookies


def test_the_key_is_kept_where_no_script_and_no_other_site_has_it(doors: Doors) -> None:
    board = doors.enter()

    answer = board.client.post(
        "/dashboard/sign-in",
        data={"key": doors.texts["admin"], "csrf": board.client.cookies["oncelery_csrf"]},
        follow_redirects=False,
    )

    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "path=/dashboard" in cookie
    assert doors.enter("admin").get("/jobs").status_code == 200


def test_a_cookie_is_secure_over_https(doors: Doors) -> None:
    client = TestClient(doors.app, base_url="https://ops.example", client=("10.0.0.7", 1))

    assert "secure" in client.get("/dashboard/sign-in").headers["set-cookie"].lower()


def test_signing_out_forgets_the_key(doors: Doors) -> None:
    board = doors.enter("admin")

    board.post("/sign-out")

    assert board.get("/jobs").url.path == "/dashboard/sign-in"


def test_a_key_without_the_role_to_read_sees_nothing(doors: Doors) -> None:
    board = doors.enter("poster")

    assert board.get("/jobs").url.path == "/dashboard/sign-in"


def test_who_may_only_read_sees_no_way_to_act_and_has_none(doors: Doors, hand: Hand) -> None:
    job = hand.job(hand.tasks.joining.delay(hand.name()))
    board = doors.enter("viewer")

    page = board.get(f"/jobs/{job.id}")

    assert "read only" in text_of(page)
    assert "/cancel" not in page.text
    assert board.get("/cancel", params={"id": job.id}).status_code == 403
    assert board.post("/cancel", id=job.id, seen=seen_of(job)).status_code == 403
    assert board.post("/revive-many", letter=letters_of(hand, job.id), confirmed="1").status_code == 403
    assert hand.job(job.id).state == "queued"


def test_a_tenant_sees_and_acts_on_its_own_jobs_alone(doors: Doors, hand: Hand) -> None:
    own = hand.tasks.scoped.delay("tenant-a", 1).id
    others = hand.job(hand.tasks.scoped.delay("tenant-b", 1))
    board = doors.enter("tenant")

    page = board.get("/jobs")

    assert own in page.text
    assert others.id not in page.text
    assert board.get(f"/jobs/{others.id}").status_code == 404
    assert board.get(f"/jobs?q={others.id}").url.path == "/dashboard/jobs"
    assert board.get("/jobs?scope=tenant-b").status_code == 403
    assert board.get("/cancel", params={"id": others.id}).status_code == 404
    assert board.post("/cancel", id=others.id, seen=seen_of(others)).status_code == 404
    assert board.get("/").status_code == 403
    assert board.get("/tasks").status_code == 403


def test_a_tenant_can_act_on_no_dead_letter_of_another_among_many(doors: Doors, hand: Hand) -> None:
    theirs = bury(hand)

    answer = doors.enter("tenant").post("/discard-many", letter=letters_of(hand, theirs), confirmed="1")

    assert answer.status_code == 400
    assert hand.job(theirs).state == "buried"


def test_who_acted_is_in_the_audit(doors: Doors, hand: Hand, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "oncelery.audit")
    job_id = hand.tasks.joining.delay(hand.name()).id

    doors.enter("admin").confirm("cancel", job_id)

    doors.enter().post("/sign-in", key="once_wrong")
    assert "admin: signed in from 10.0.0.7" in caplog.text
    assert f"admin: cancel job {job_id} of joining: cancelled" in caplog.text
    assert "a sign-in from 10.0.0.7 was refused" in caplog.text
    assert hand.job(job_id).reason == "by admin"


def test_without_keys_nobody_from_elsewhere_is_let_in(hand: Hand) -> None:
    with client_of(create_app(hand.once), host="10.0.0.7") as client:
        assert client.get("/dashboard/").status_code == 403
