"""The page of the study plans: the button that people click twice, the bar, the cancel button, the 409."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files

import pytest
from guarded.plans import AT_ONCE, SLOWLY, planning, run_at
from playwright.sync_api import expect

from browser.conftest import PATIENCE, Open
from oncelery.embedded.stack import Stack

#: axe-core, which looks for what makes a page hard to use.
AXE = files("axe_playwright_python") / "axe.min.js"

#: What the console says of an answer that is no success: the very thing that is tried here.
REFUSED = "the server responded with a status of 409"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    expect.set_options(timeout=PATIENCE)
    with planning(tmp_path_factory.mktemp("plans")) as stack:
        yield stack


def test_a_double_click_makes_one_plan_which_outlives_a_reload_and_its_worker(window: Open, stack: Stack) -> None:
    run_at(stack, SLOWLY)
    visit = window(stack.service.url)
    page = visit.page
    page.goto(stack.service.url)

    page.get_by_role("button", name="Make a plan").dblclick()

    # Refused, and told what the first click is doing.
    expect(page.get_by_role("alert")).to_contain_text("There is a plan for algebra under way already: ")
    expect(page.locator("#audit")).to_contain_text("page: rejected")
    # Two of its lessons are written, or more.
    expect(page.locator("#stage")).to_contain_text(re.compile(r"write lessons: ([3-9]|1\d) of 12"))
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run()")["violations"]
    assert [each["id"] for each in found if each["impact"] in {"serious", "critical"}] == []

    page.reload()
    expect(page.locator("#state")).to_have_text("running")
    assert float(page.locator("#bar").evaluate("bar => bar.value")) > 0
    run_at(stack, AT_ONCE)

    expect(page.locator("#state")).to_have_text("completed, attempt 2")
    expect(page.locator("#stage")).to_have_text(re.compile("^12 lessons, .* pages, written by 2 processes$"))
    expect(page.locator("#audit")).to_contain_text("call-back: completed, after 2 attempt(s)")
    expect(page.get_by_role("button", name="Cancel")).to_be_hidden()
    assert [each for each in visit.complaints if REFUSED not in each] == []


def test_a_plan_is_cancelled_by_its_button_and_another_may_be_made(window: Open, stack: Stack) -> None:
    run_at(stack, SLOWLY)
    page = window(stack.service.url).page
    page.goto(stack.service.url)
    page.get_by_label("Project").fill("biology")
    page.get_by_role("button", name="Make a plan").click()
    expect(page.locator("#state")).to_have_text("running")

    page.get_by_role("button", name="Cancel").click()

    expect(page.locator("#state")).to_have_text("cancelled")
    expect(page.locator("#stage")).to_have_text("changed my mind")
    expect(page.locator("#audit")).to_contain_text("call-back: cancelled")
    page.get_by_role("button", name="Make a plan").click()
    expect(page.locator("#state")).to_have_text("running")
    expect(page.get_by_role("alert")).to_be_hidden()
