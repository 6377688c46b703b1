from __future__ import annotations

import html
import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from guarded.hand import Hand
from guarded.web import HERE, client_of
from httpx2 import Response

from oncelery import StoreUnavailableError
from oncelery.http import create_app, new_key
from oncelery.http.dashboard import create_dashboard, figures
from oncelery.http.dashboard.figures import Minute, Pulse
from oncelery.http.dashboard.live import message
from oncelery.http.dashboard.rendering import STATIC, took
from oncelery.http.keys import ApiKey
from oncelery.job import Job
from oncelery.operations.redaction import HIDDEN

PAGES = ("/", "/jobs", "/dead-letters", "/duplicates", "/tasks")

#: What a browser would run or load if any of it came through as it is.
ATTACKS = (
    "<script>alert(1)</script>",
    "</pre><img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "' onmouseover='alert(1)",
    "</title></script><script src=//evil.example>",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:alert(1)",
    "data: x\n\nevent: message\ndata: <script>\r\rdata: y",
    "<!--",
    "\u2028</textarea><iframe src=//evil.example>",
)


#: Pages about one job, or what was typed.
ABOUT = ("/job?job_id=", "/revive?id=", "/discard?id=", "/jobs?q=x", "/jobs?task=", "/dead-letters?error=")


class Dashboard:
    """A browser without scripts: follows links, keeps cookies, and sends the forms that it is shown."""

    def __init__(self, client: TestClient, root: str = "/dashboard") -> None:
        self.client = client
        self.root = root

    def get(self, path: str = "/", **options: Any) -> Response:  # noqa: ANN401 - httpx's
        return self.client.get(f"{self.root}{path}", **options)

    def post(self, path: str, **fields: str | list[str]) -> Response:
        """Send a form, with the token that this browser has."""
        fields.setdefault("csrf", self.client.cookies["oncelery_csrf"])
        return self.client.post(f"{self.root}{path}", data=fields)

    def confirm(self, act: str, job_id: str, **fields: str | list[str]) -> Response:
        """Look at what is asked before, and say yes."""
        asked = self.get(f"/{act}", params={"id": job_id})
        assert asked.status_code == 200, asked.text
        return self.post(f"/{act}", id=job_id, seen=value_of(asked, "seen"), **fields)


def value_of(page: Response, name: str) -> str:
    found = re.search(rf'name="{name}" value="([^"]*)"', page.text)
    assert found, page.text
    return html.unescape(found[1])


def text_of(page: Response) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page.text)).split())


@pytest.fixture
def board(hand: Hand) -> Iterator[Dashboard]:
    """Give a browser on this machine, on a service without API keys, which has seen a page."""
    with client_of(create_app(hand.once, tasks=["joining"])) as client:
        dashboard = Dashboard(client)
        dashboard.get("/sign-in")
        yield dashboard


def bury(hand: Hand, name: str = "", kind: str = "refused") -> str:
    job_id: str = hand.tasks.raises.delay(name or hand.name(), kind).id
    hand.deliver_all()
    assert hand.job(job_id).state == "buried"
    return job_id


# What pages show


def test_an_empty_ledger_has_pages_that_tell_what_will_be_there(board: Dashboard) -> None:
    for page in PAGES:
        answer = board.get(page)

        assert answer.status_code == 200
        assert "<h1>" in answer.text


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


def test_arguments_are_shown_by_name_and_without_secrets(board: Dashboard, hand: Hand) -> None:
    job_id = hand.tasks.joining.delay("o-1", {"amount": 500, "card_number": "4111 1111", "api-key": "sk_live"}).id

    page = html.unescape(board.get(f"/jobs/{job_id}").text)

    assert '"name": "o-1"' in page
    assert '"amount": 500' in page
    assert "4111" not in page
    assert "sk_live" not in page
    assert HIDDEN in page


def test_a_job_that_can_be_submitted_is_given_as_a_command(board: Dashboard, hand: Hand) -> None:
    job_id = hand.tasks.joining.delay("it's", 1).id

    page = html.unescape(board.get(f"/jobs/{job_id}").text)

    assert "curl -X POST http://localhost/jobs/joining" in page
    assert """-d '{"name": "it'"'"'s", "payload": 1}'""" in page


def test_a_result_an_error_and_finished_steps_are_shown(board: Dashboard, hand: Hand) -> None:
    steps = hand.tasks.steps.delay(hand.name()).id
    hand.deliver_all()
    buried = bury(hand)

    shown = text_of(board.get(f"/jobs/{steps}"))
    failed = text_of(board.get(f"/jobs/{buried}"))

    assert "Finished steps" in shown
    assert '[ "one!", "two!", "two!" ]' in shown
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


def happened(pulse: Pulse) -> dict[str, int]:
    """Add up what the pulse tells of the last hour."""
    total: Counter[str] = Counter()
    for minute in pulse.minutes(timedelta(hours=1)):
        total.update(minute.counts)
    return dict(total)


def test_what_happened_by_the_minute_is_what_the_ledger_has_whenever_one_looks(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "FRESH", 0)
    hand.clock.now = datetime.now(UTC) - timedelta(minutes=30)
    name = hand.name()
    hand.tasks.joining.delay(name)
    hand.tasks.joining.delay(name)
    hand.deliver_all()
    pulse = Pulse(hand.once)

    assert happened(pulse) == {"completed": 1, "duplicate": 1}
    hand.clock.now = datetime.now(UTC)
    bury(hand)
    hand.tasks.joining.delay(name)
    assert happened(pulse) == {"completed": 1, "duplicate": 2, "buried": 1}
    assert happened(pulse) == {"completed": 1, "duplicate": 2, "buried": 1}
    told = [minute for minute in pulse.minutes(timedelta(hours=1)) if minute.counts]
    assert timedelta(minutes=29) <= told[1].at - told[0].at <= timedelta(minutes=31)


def test_a_change_that_is_seen_late_is_counted_once(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "FRESH", 0)
    now = hand.clock.now = datetime.now(UTC) - timedelta(minutes=1)
    hand.tasks.joining.delay(hand.name())
    hand.deliver_all()
    pulse = Pulse(hand.once)
    assert happened(pulse) == {"completed": 1}

    # As by a transaction that was begun before, and is committed after the last look.
    hand.clock.now = now - timedelta(seconds=1)
    hand.tasks.joining.delay(hand.name())
    hand.deliver_all()

    assert happened(pulse) == {"completed": 2}


def test_of_more_than_is_read_at_once_no_minute_is_told_in_part(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "READ_AT_MOST", 3)
    now = datetime.now(UTC).replace(second=30)
    for ago in (4, 3, 3, 2, 1):
        hand.clock.now = now - timedelta(minutes=ago)
        hand.tasks.joining.delay(hand.name())
        hand.deliver_all()

    minutes = Pulse(hand.once).minutes(timedelta(hours=1))

    assert happened_in(minutes) == [1, 1]
    assert minutes[0].at >= now.replace(second=0, microsecond=0) - timedelta(minutes=2)


def happened_in(minutes: Sequence[Minute]) -> list[int]:
    return [minute.counts["completed"] for minute in minutes if minute.counts]


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


# Text of tasks is text


def test_what_a_task_says_is_never_markup(hand: Hand) -> None:
    for attack in ATTACKS:

        @hand.once.task(name=f"evil {attack}", shared=False, scope="name")
        def evil(name: str) -> None:
            raise ValueError(name)

        evil.apply_async((attack,), task_id=attack)
        evil.apply_async((attack,))
        hand.deliver_all()
        assert hand.job(attack).state == "buried"
    with client_of(create_app(hand.once)) as client:
        board = Dashboard(client)
        pages = [f"{path}{quoted(attack)}" for attack in ATTACKS for path in ABOUT]
        for path in (*PAGES, *pages):
            page = board.get(path)
            assert page.status_code == 200, page.text
            Harmless().feed(page.text)


class Harmless(HTMLParser):
    """Reads a page as a browser does, and refuses what our templates do not write."""

    ELEMENTS = re.compile(
        "a|aside|body|button|caption|code|d[dlt]|details|div|form|h[12]|head|header|html|img|input|label|li|link|main|meta"
        "|nav|ol|option|p|pre|progress|script|section|select|span|strong|summary|table|tbody|td|textarea|th|thead|time"
        "|title|tr|ul"
    )

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert self.ELEMENTS.fullmatch(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            assert name != "style"
            if name in ("href", "src", "action", "formaction"):
                assert (value or "").startswith(("/dashboard", "#"))

    def handle_comment(self, data: str) -> None:
        pytest.fail(f"a comment: {data}")


def quoted(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())


def test_no_text_can_end_a_message_of_a_stream() -> None:
    written = message("a\r\n\r\nevent: x\rdata: y\n").decode()

    assert all(line.startswith("data: ") for line in written.rstrip("\n").split("\n"))
    assert "\r" not in written


# What a page may do


def test_a_page_runs_nothing_but_our_own_files(board: Dashboard) -> None:
    answer = board.get("/")

    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert not re.search(r"<script(?![^>]*\ssrc=)", answer.text)
    assert "<style" not in answer.text
    assert not re.search(r"<[^>]+\s(style|on\w+)=", answer.text)
    assert answer.headers["cache-control"] == "no-store"


def test_static_files_are_named_by_what_they_are_and_kept_for_ever(board: Dashboard) -> None:
    address = re.search(r'href="([^"]*dashboard\.css)"', board.get("/jobs").text)
    assert address

    answer = board.client.get(address[1])
    stale = board.client.get("/dashboard/static/other/dashboard.css")

    assert "immutable" in answer.headers["cache-control"]
    assert answer.headers["content-type"].startswith("text/css")
    assert stale.headers["cache-control"] == "no-store"


def test_every_page_weighs_less_than_150_kb_with_all_that_it_loads(board: Dashboard, hand: Hand) -> None:
    for _ in range(60):
        hand.tasks.joining.delay(hand.name())
        hand.deliver()
    for _ in range(5):
        bury(hand)
    static = sum(path.stat().st_size for path in STATIC.iterdir() if path.suffix != ".txt")

    weights = {page: len(board.get(page).content) + static for page in PAGES}

    assert max(weights.values()) < 150_000, weights


def test_a_page_that_is_open_is_sent_again_when_it_changes(hand: Hand) -> None:
    # One message is enough: the stream itself never ends by itself, and this client reads all before it answers.
    app = create_app(hand.once)
    with client_of(app) as client, pytest.MonkeyPatch.context() as patch:
        patch.setattr("oncelery.http.dashboard.live.LASTS", 0.01)
        answer = client.get("/dashboard/jobs", headers={"accept": "text/event-stream"})

    assert answer.headers["content-type"].startswith("text/event-stream")
    assert '<main id="main"' in answer.text
    assert "<!doctype" not in answer.text


# Acting


def test_a_queued_job_is_cancelled_after_a_page_that_tells_what_will_happen(
    board: Dashboard, hand: Hand, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "oncelery.audit")
    job_id = hand.tasks.joining.delay(hand.name()).id

    assert "never begins" in text_of(board.get("/cancel", params={"id": job_id}))
    assert hand.job(job_id).state == "queued"
    answer = board.confirm("cancel", job_id)

    assert "The job is cancelled." in text_of(answer)
    assert hand.job(job_id).state == "cancelled"
    assert f"(this machine): cancel job {job_id} of joining: cancelled" in caplog.text


def test_a_dead_letter_is_revived(board: Dashboard, hand: Hand, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "oncelery.audit")
    job_id = bury(hand)

    answer = board.confirm("revive", job_id)

    assert "queued again" in text_of(answer)
    assert (hand.job(job_id).state, hand.waiting()) == ("queued", 1)
    assert f"revive job {job_id} of raises: revived" in caplog.text


def test_a_dead_letter_is_revived_with_other_arguments_and_its_secrets(board: Dashboard, hand: Hand) -> None:
    calls: list[Any] = []

    @hand.once.task(name="fussy", key="name", shared=False)
    def fussy(name: str, amount: int, token: str) -> None:
        calls.append((name, amount, token))
        if amount < 0:
            raise ValueError(amount)

    job_id = fussy.delay("o-1", amount=-5, token="s3cret").id  # noqa: S106
    hand.deliver_all()
    shown = board.get("/revive", params={"id": job_id}).text
    assert "s3cret" not in shown

    board.confirm(
        "revive", job_id, edit="on", arguments=f'{{"args": ["o-1"], "kwargs": {{"amount": 5, "token": "{HIDDEN}"}}}}'
    )
    hand.deliver_all()

    assert calls == [("o-1", -5, "s3cret"), ("o-1", 5, "s3cret")]
    assert hand.job(job_id).state == "completed"


@pytest.mark.parametrize(
    "arguments", ["nonsense", "[]", '{"args": 1, "kwargs": {}}', '{"args": [1, 2, 3, 4], "kwargs": {}}']
)
def test_arguments_that_the_task_cannot_be_called_with_are_refused(
    board: Dashboard, hand: Hand, arguments: str
) -> None:
    job_id = bury(hand)

    answer = board.confirm("revive", job_id, edit="on", arguments=arguments)

    assert answer.status_code == 400
    assert hand.job(job_id).state == "buried"


def test_how_many_wait_is_told_on_every_page(board: Dashboard, hand: Hand) -> None:
    bury(hand)

    assert "Dead letters 1 waiting" in text_of(board.get("/jobs"))


def test_a_dead_letter_is_discarded(board: Dashboard, hand: Hand) -> None:
    job_id = bury(hand)

    assert "cannot be undone" in text_of(board.get("/discard", params={"id": job_id}))
    board.confirm("discard", job_id)

    assert (hand.job(job_id).state, hand.job(job_id).reason) == ("cancelled", "discarded")


def test_dead_letters_are_grouped_by_task_and_error_and_a_group_is_revived_at_once(
    board: Dashboard, hand: Hand
) -> None:
    refused, other = [bury(hand) for _ in range(3)], bury(hand, kind="key")

    page = board.get("/dead-letters?task=raises&error=KeyError")
    assert other in page.text
    assert not any(job_id in page.text for job_id in refused)
    asked = board.post("/revive-many", all="1", task="raises", error="guarded.app.RefusedError", scope="")
    assert "Revive 3 dead letters?" in text_of(asked)
    assert all(hand.job(job_id).state == "buried" for job_id in refused)
    done = board.post("/revive-many", id=refused, confirmed="1")

    assert "3 revived" in text_of(done)
    assert {hand.job(job_id).state for job_id in refused} == {"queued"}
    assert hand.job(other).state == "buried"


def test_of_many_those_that_cannot_be_revived_are_named_and_the_others_are(board: Dashboard, hand: Hand) -> None:
    name = hand.name()
    superseded, free = bury(hand, name), bury(hand)
    newer = hand.tasks.raises.delay(name, "refused").id

    done = text_of(board.post("/revive-many", id=[superseded, free], confirmed="1"))

    assert "1 superseded, 1 revived" in done or "1 revived, 1 superseded" in done
    assert f"job {newer} of the same key is queued" in done


def test_many_are_discarded(board: Dashboard, hand: Hand) -> None:
    ids = [bury(hand) for _ in range(2)]

    assert "2 discarded" in text_of(board.post("/discard-many", id=ids, confirmed="1"))
    assert {hand.job(job_id).state for job_id in ids} == {"cancelled"}


def test_an_act_on_a_job_that_has_moved_is_refused_and_says_how_it_stands(board: Dashboard, hand: Hand) -> None:
    job_id = hand.tasks.joining.delay(hand.name()).id
    asked = board.get("/cancel", params={"id": job_id})
    hand.deliver_all()

    answer = board.post("/cancel", id=job_id, seen=value_of(asked, "seen"))

    assert answer.status_code == 409
    assert "now it is completed" in text_of(answer)
    assert hand.job(job_id).state == "completed"


def test_reviving_what_another_job_does_is_refused_and_names_it(board: Dashboard, hand: Hand) -> None:
    name = hand.name()
    job_id = bury(hand, name)
    newer = hand.tasks.raises.delay(name, "refused").id

    answer = board.confirm("revive", job_id)

    assert answer.status_code == 409
    assert newer in answer.text


def test_nothing_can_be_done_to_a_job_in_the_wrong_state(board: Dashboard, hand: Hand) -> None:
    job_id = hand.tasks.joining.delay(hand.name()).id

    assert board.get("/revive", params={"id": job_id}).status_code == 409


def test_many_are_revived_or_discarded_and_nothing_else(board: Dashboard, hand: Hand) -> None:
    dead = bury(hand)

    assert board.post("/cancel-many", id=dead, confirmed="1").status_code == 404
    assert hand.job(dead).state == "buried"


def test_a_form_of_countless_fields_is_not_read(board: Dashboard) -> None:
    assert board.client.post("/dashboard/sign-in", content="a&" * 3000).status_code == 400


@pytest.mark.parametrize("token", ["", "another", None])
def test_a_form_that_is_not_ours_changes_nothing(board: Dashboard, hand: Hand, token: str | None) -> None:
    job = hand.job(hand.tasks.joining.delay(hand.name()))
    fields = {"id": job.id, "seen": seen_of(job)} | ({} if token is None else {"csrf": token})

    answer = board.client.post("/dashboard/cancel", data=fields)

    assert answer.status_code == 403
    assert hand.job(job.id).state == "queued"


def test_a_form_from_another_origin_changes_nothing(board: Dashboard, hand: Hand) -> None:
    job = hand.job(hand.tasks.joining.delay(hand.name()))
    fields = {"id": job.id, "seen": seen_of(job), "csrf": board.client.cookies["oncelery_csrf"]}

    # One of this machine, which those are let in from where there are no keys.
    answer = board.client.post("/dashboard/cancel", data=fields, headers={"origin": "http://localhost:9"})

    assert answer.status_code == 403
    assert hand.job(job.id).state == "queued"


def seen_of(job: Job) -> str:
    return f"{job.state} {job.fence}"


# Who is let in


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
    assert "oncelery_key" not in board.client.cookies


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
    assert board.post("/revive-many", id=job.id, confirmed="1").status_code == 403
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

    answer = doors.enter("tenant").post("/discard-many", id=theirs, confirmed="1")

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
