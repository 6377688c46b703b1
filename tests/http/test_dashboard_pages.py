from __future__ import annotations

import html
import re
from datetime import UTC, datetime, timedelta
from threading import Event

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from guarded.hand import Hand
from guarded.plain_browser import PAGES, Dashboard, bury, looking_at, text_of
from guarded.web import HERE, client_of

from oncelery import StoreUnavailableError, current_run
from oncelery.embedded.process import eventually
from oncelery.http import create_app
from oncelery.http.dashboard import acts, create_dashboard
from oncelery.http.dashboard.desk import Desk
from oncelery.http.dashboard.rendering import took
from oncelery.operations.redaction import HIDDEN
from oncelery.testing.conformance.acts import buried, work

#: In seconds; reached only by a test that fails.
SOON = 30.0


# What pages show


def test_dead_letters_of_one_task_hide_none_of_another(
    board: Dashboard, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acts, "READ_AT_MOST", 3)
    old = bury(hand)
    for number in range(4):
        hand.clock.advance(seconds=1)
        buried(hand.once.ledger.store, work(f"flood {number}", f"{number:064x}", task="flood", scope="evil"))

    everything = text_of(board.get("/dead-letters"))
    chosen = board.get("/dead-letters?task=raises").text

    assert "The newest 3 of 5 are grouped here" in everything
    assert f"letter-{old}" in chosen
    assert "letter-flood" not in chosen


def test_an_empty_ledger_has_pages_that_tell_what_will_be_there(board: Dashboard) -> None:
    for page in PAGES:
        answer = board.get(page)

        assert answer.status_code == 200
        assert "<h1>" in answer.text


def test_until_workers_have_answered_it_says_that_they_are_asked(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    answered = Event()

    def ping(_desk: Desk) -> frozenset[str]:
        answered.wait(SOON)
        return frozenset({"first@here"})

    monkeypatch.setattr(Desk, "_ping", ping)
    with looking_at(hand) as board:
        first = text_of(board.get())
        answered.set()

        assert "Workers are being asked" in first
        assert "No worker answers" not in first
        assert eventually(lambda: "Workers 1 answering" in text_of(board.get()), SOON)


def test_the_root_leads_to_the_dashboard(board: Dashboard) -> None:
    assert board.client.get("/").url.path == "/dashboard/"


def test_jobs_are_listed_newest_change_first_and_filtered_by_state_task_and_scope(board: Dashboard, hand: Hand) -> None:
    done = hand.tasks.joining.delay(hand.name()).id
    hand.deliver_all()
    hand.clock.advance(seconds=1)
    waiting = hand.tasks.scoped.delay("tenant-a", 1).id

    everything = board.get("/jobs").text

    assert 0 < everything.index(waiting) < everything.index(done)
    for query, shown, hidden in (
        ("state=completed", done, waiting),
        ("task=scoped", waiting, done),
        ("scope=tenant-a", waiting, done),
    ):
        page = board.get(f"/jobs?{query}").text
        assert shown in page
        assert hidden not in page


def test_the_counts_of_states_are_the_ledgers(board: Dashboard, hand: Hand) -> None:
    for _ in range(3):
        hand.tasks.joining.delay(hand.name())
    hand.deliver()
    bury(hand)

    states = hand.once.ledger.tally().states

    told = text_of(board.get("/jobs"))
    assert f"All {sum(states.values())} " in told
    for state, count in states.items():
        assert f"{state.capitalize()} {count} " in told


def test_more_jobs_than_a_page_has_are_reached_by_its_cursor(board: Dashboard, hand: Hand) -> None:
    ids = {hand.tasks.joining.delay(hand.name()).id for _ in range(60)}

    first = board.get("/jobs").text
    older = re.search(r'rel="next" href="([^"]*)"', first)
    assert older
    second = board.client.get(html.unescape(older[1])).text

    seen = [set(re.findall(r'id="job-([^"]*)"', page)) for page in (first, second)]
    assert not seen[0] & seen[1]
    assert seen[0] | seen[1] == ids


def test_an_id_or_a_key_leads_to_its_job(board: Dashboard, hand: Hand) -> None:
    job = hand.job(hand.tasks.joining.delay(hand.name()))

    for wanted in (job.id, job.key, job.key.upper()):
        assert board.get(f"/jobs?q={wanted}").url.path == f"/dashboard/jobs/{job.id}"
    assert "No job has the id or key nobody" in text_of(board.get("/jobs?q=nobody"))


def test_a_story_tells_every_run_with_worker_and_fence_and_every_duplicate_in_order(
    board: Dashboard, hand: Hand
) -> None:
    name = hand.name()
    job_id = hand.tasks.retried_by_policy.delay(name, 1).id
    hand.clock.advance(seconds=1)
    hand.tasks.retried_by_policy.delay(name, 1)
    hand.clock.advance(seconds=1)
    hand.deliver_all()
    job = hand.job(job_id)

    told = text_of(board.get(f"/jobs/{job_id}"))

    parts = ("Accepted", "A duplicate was answered: joined", "Run 1 began", "Run 1 failed", "Run 2 began", "Completed")
    places = [told.index(part, told.index("What happened")) for part in parts]
    assert places == sorted(places)
    for fence in (job.fence, job.past[0].fence):
        assert f"fence {fence}" in told
    assert "Duplicates answered 1" in told
    assert job.key[:16] in told


def test_attempts_are_told_out_of_how_many_where_that_is_what_ends_them(board: Dashboard, hand: Hand) -> None:
    by_celery = hand.tasks.asks_again.delay(hand.name(), 5).id
    by_policy = hand.tasks.retried_by_policy.delay(hand.name(), 1).id
    hand.deliver_all()

    assert " Attempts 6 Crashes " in text_of(board.get(f"/jobs/{by_celery}"))
    assert " Attempts 2 of 3 Crashes " in text_of(board.get(f"/jobs/{by_policy}"))


@pytest.mark.parametrize("fails", [False, True], ids=["completed", "buried"])
def test_a_job_that_has_ended_has_no_bar_and_a_dead_letter_has_where_it_came_to(
    board: Dashboard,
    hand: Hand,
    fails: bool,  # noqa: FBT001
) -> None:
    @hand.once.task(name="advances", shared=False)
    def advances() -> None:
        current_run().progress(4, 5, stage="charging")
        seen.append(text_of(board.get(f"/jobs/{job_id}")))
        if fails:
            raise ValueError

    seen: list[str] = []
    job_id = advances.delay().id
    hand.deliver_all()

    assert "4 / 5 charging" in seen[0]
    assert ("4 / 5 charging" in text_of(board.get(f"/jobs/{job_id}"))) is fails


def test_a_run_that_followed_one_cut_short_is_told_as_a_takeover(board: Dashboard, hand: Hand) -> None:
    name = hand.name()

    @hand.once.task(name="dies", lease=1, shared=False)
    def dies(name: str) -> str:
        if not hand.told(name):
            hand.journal.record(name, what="effect")
            hand.clock.advance(seconds=5)
            hand.once.sweep()
            hand.deliver_all()
        return name

    job_id = dies.delay(name).id
    hand.deliver_all()

    told = text_of(board.get(f"/jobs/{job_id}"))
    assert "Run 1 went silent until its lease lapsed" in told
    assert "Run 2 took over" in told


def test_a_story_goes_on_after_a_revival(board: Dashboard, hand: Hand) -> None:
    job_id = bury(hand)
    hand.clock.advance(seconds=1)

    hand.once.dead_letters.revive(job_id)
    revived = text_of(board.get(f"/jobs/{job_id}"))
    hand.deliver_all()
    buried_again = text_of(board.get(f"/jobs/{job_id}"))

    assert revived.count("Run 1 began") == 1
    assert "Run 1 failed for good, and was revived" in revived
    assert buried_again.count("Run 1 began") == buried_again.count("Run 2 began") == 1
    assert buried_again.count("Run 1 failed for good, and was revived") == 1
    assert "Buried" in buried_again


def test_arguments_are_shown_by_name_and_without_secrets(board: Dashboard, hand: Hand) -> None:
    job_id = hand.tasks.joining.delay("o-1", {"amount": 500, "card_number": "4111 1111", "api-key": "sk_live"}).id

    page = html.unescape(board.get(f"/jobs/{job_id}").text)

    assert '"name": "o-1"' in page
    assert '"amount": 500' in page
    assert "4111" not in page
    assert "sk_live" not in page
    assert HIDDEN in page


def test_arguments_are_shown_by_name_however_their_task_is_wrapped(board: Dashboard, hand: Hand) -> None:
    def ship(order_id: str, carrier: str) -> None: ...
    def ship_bound(_task: object, order_id: str, carrier: str) -> None: ...

    tasks = [
        hand.once.task(ship, name="ship-again", autoretry_for=(KeyError,), shared=False),
        hand.once.task(ship_bound, name="ship-bound", bind=True, shared=False),
    ]

    for task in tasks:
        told = text_of(board.get(f"/jobs/{task.delay('o-1', 'by-sea').id}"))
        assert re.search(r'"order_id": "o-1".*"carrier": "by-sea"', told)
        assert "_task" not in told


def test_a_job_that_can_be_submitted_is_given_as_a_command(board: Dashboard, hand: Hand) -> None:
    job_id = hand.tasks.joining.delay("it's", 1).id

    page = html.unescape(board.get(f"/jobs/{job_id}").text)

    assert "curl -X POST http://localhost/jobs/joining" in page
    assert """-d '{"name": "it'"'"'s", "payload": 1}'""" in page


def test_a_result_an_error_and_finished_steps_are_shown(board: Dashboard, hand: Hand) -> None:
    steps = hand.tasks.steps.delay(hand.name()).id
    hand.deliver_all()
    buried = bury(hand)
    large = hand.tasks.returns.delay(hand.name(), "large").id
    oddly = hand.tasks.pauses_between_steps.delay(hand.name(), __file__).id
    hand.deliver_all()

    shown = text_of(board.get(f"/jobs/{steps}"))
    failed = text_of(board.get(f"/jobs/{buried}"))

    assert "Finished steps" in shown
    assert '[ "one!", "two!", "two!" ]' in shown
    assert "The result was not kept: the result has 2,097,154 bytes" in text_of(board.get(f"/jobs/{large}"))
    assert r"one \udce9" in text_of(board.get(f"/jobs/{oddly}"))
    assert "Traceback (most recent call last)" in failed
    assert "RefusedError" in failed


def test_the_overview_tells_how_the_ledger_stands(board: Dashboard, hand: Hand) -> None:
    hand.tasks.joining.delay(hand.name())
    hand.deliver_all()
    bury(hand)

    told = text_of(board.get("/"))

    assert "1 completed" in told
    assert "1 dead letters" in told
    assert "Store answers in" in told


def test_tasks_are_told_with_their_policies_and_durations(board: Dashboard, hand: Hand) -> None:
    hand.once.ledger.count({("joining", "began"): 100, ("joining", "run/0.1"): 60, ("joining", "run/5"): 40})
    hand.once.ledger.count({("joining", "released/crash"): 5, ("joining", "run microseconds"): 100_000_000})

    told = text_of(board.get("/tasks"))

    row = told[told.index("joining Policy") :][:600]
    assert "≤ 100 ms ≤ 5 s 1 s" in row
    assert "5.0 %" in row
    assert "On a duplicate join" in row


def test_runs_that_took_their_counts_with_them_when_they_were_killed_are_told_as_runs(
    board: Dashboard, hand: Hand
) -> None:
    hand.once.ledger.count({("joining", "accepted"): 1, ("joining", "released/crash"): 4})

    told = text_of(board.get("/tasks"))

    row = told[told.index("joining Policy") :]
    assert "more than 3 bury it" in row
    assert " 1 4 — — — " in row
    assert "100.0 %" in row


def test_duplicates_are_counted_by_task_and_shown_one_by_one_with_what_they_would_have_cost(
    board: Dashboard, hand: Hand
) -> None:
    name = hand.name()
    hand.clock.now = datetime.now(UTC)
    hand.once.ledger.count({("joining", "run/5"): 2, ("joining", "run microseconds"): 5_000_000})
    for _ in range(4):
        hand.tasks.joining.delay(name)

    told = text_of(board.get("/duplicates?span=7d"))

    assert "3 calls were answered" in told
    assert "7.5 s of work not done twice" in told
    assert told.count("joined") >= 3


@pytest.mark.parametrize("path", ["/jobs/nobody", "/nowhere", "/static/x/../app.py", "/static/x/nothing.js"])
def test_what_is_not_there_is_a_page_of_its_own(board: Dashboard, path: str) -> None:
    answer = board.get(path)

    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize("query", ["state=lost", "within=ever"])
def test_a_filter_that_means_nothing_is_refused(board: Dashboard, query: str) -> None:
    assert board.get(f"/jobs?{query}").status_code == 400


@pytest.mark.parametrize("place", ["\u00b2", "-1", "9" * 5000, "x"])
def test_a_place_that_means_nothing_is_the_first(board: Dashboard, place: str) -> None:
    assert board.get("/dead-letters", params={"from": place}).status_code == 200


# When something is away


def test_a_store_that_is_away_is_told_as_such(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise StoreUnavailableError("connection refused")

    for verb in ("tally", "find", "get", "duplicates", "duplicate_counts"):
        monkeypatch.setattr(hand.store, verb, away)
    with client_of(create_app(hand.once)) as client:
        for page in (*PAGES, "/jobs/x"):
            answer = Dashboard(client).get(page)

            assert answer.status_code == 503
            assert "The ledger does not answer" in text_of(answer)


# Mounted elsewhere


def test_it_is_mounted_in_any_app(hand: Hand) -> None:
    app = FastAPI()
    app.mount("/ops/jobs", create_dashboard(hand.once, api="/api"))
    job_id = hand.tasks.joining.delay(hand.name()).id
    with TestClient(app, base_url="http://localhost", client=HERE) as client:
        board = Dashboard(client, "/ops/jobs")
        page = board.get("/jobs")
        links = set(re.findall(r'(?:href|src|action)="([^"]*)"', page.text))

        assert all(link.startswith(("/ops/jobs/", "#")) for link in links), links
        assert all(client.get(link).status_code == 200 for link in links if "static" in link)
        assert "http://localhost/api/jobs/joining" in board.get(f"/jobs/{job_id}").text
        board.confirm("cancel", job_id)
    assert hand.job(job_id).state == "cancelled"


# Small parts


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.0004, "0 ms"),
        (0.25, "250 ms"),
        (1.5, "1.5 s"),
        (59.99, "60 s"),
        (61, "1 min 1 s"),
        (3600, "1 h"),
        (90000, "1 d 1 h"),
    ],
)
def test_a_duration_is_told_in_two_units(seconds: float, told: str) -> None:
    assert took(timedelta(seconds=seconds)) == told
