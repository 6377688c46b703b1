"""Whatever a task was called with is text on the pages, and a page can do nothing but what it is for."""

from __future__ import annotations

import asyncio
import re
from html.parser import HTMLParser

import pytest
from guarded.hand import Hand
from guarded.plain_browser import PAGES, Dashboard, bury
from guarded.web import client_of

from oncelery.http import create_app
from oncelery.http.dashboard import live
from oncelery.http.dashboard.rendering import STATIC

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
    written = live.message("a\r\n\r\nevent: x\rdata: y\n").decode()

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


def test_a_page_that_is_open_is_sent_again_when_it_changes_and_only_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LOOK_EVERY", 0)
    looks = iter(["first", "first", "second", "second", "first"])

    async def look() -> tuple[str, bool]:
        return next(looks), True

    async def sent() -> list[object]:
        parts = aiter(live.stream(look).body_iterator)
        return [await anext(parts) for _ in range(4)]

    _begin, *messages = asyncio.run(sent())
    assert messages == [live.message(text) for text in ("first", "second", "first")]


def test_a_page_that_could_not_be_made_is_tried_again_after_a_second_however_long_it_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = iter([("trouble", False), ("slow", True), ("last", True)])
    pauses: list[float] = []
    now = 0.0

    async def look() -> tuple[str, bool]:
        nonlocal now
        now += 2.0
        return next(looks)

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def sent() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
        monkeypatch.setattr("oncelery.http.dashboard.live.asyncio.sleep", sleep)
        parts = aiter(live.stream(look).body_iterator)
        for _ in range(4):
            await anext(parts)

    asyncio.run(sent())

    assert pauses == [live.LOOK_EVERY, 10.0]


def test_a_page_that_is_asked_for_as_a_stream_is_sent_without_its_frame(hand: Hand) -> None:
    # One message is enough: the stream itself never ends by itself, and this client reads all before it answers.
    app = create_app(hand.once)
    with client_of(app) as client, pytest.MonkeyPatch.context() as patch:
        patch.setattr("oncelery.http.dashboard.live.LASTS", 0.01)
        answer = client.get("/dashboard/jobs", headers={"accept": "text/event-stream"})

    assert answer.headers["content-type"].startswith("text/event-stream")
    assert '<main id="main"' in answer.text
    assert "<!doctype" not in answer.text
