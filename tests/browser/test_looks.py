"""Every page as people see it: wide and narrow, light and dark, with what axe-core has to say about each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from browser.conftest import Open, served
from browser.shop import WORKERS, Shop
from oncelery.http import create_app
from oncelery.http.dashboard import pages
from oncelery.http.dashboard.desk import Desk

#: Where the pictures of the README are; they are taken anew when this is set.
PICTURES = Path(__file__).parents[2] / "docs" / "images"
TAKE = os.environ.get("ONCELERY_PICTURES")

LOOKS: dict[str, dict[str, Any]] = {
    "wide and light": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "light"},
    "narrow and dark": {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark", "reduced_motion": "reduce"},
}

#: axe-core; a page's policy lets no script but ours be loaded, but a debugger may run one.
AXE = files("axe_playwright_python") / "axe.min.js"

#: What axe-core finds that must not be there.
GRAVE = ("serious", "critical")


@pytest.fixture(scope="module")
def shop() -> Shop:
    """Give a shop after a busy hour."""
    shop = Shop()
    shop.fill()
    return shop


@pytest.fixture(scope="module")
def shop_url(shop: Shop) -> Iterator[str]:
    """Give the address of its dashboard."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Desk, "_ping", lambda _desk: frozenset(WORKERS))
        # More rows of the same kind only cost time.
        patch.setattr(pages, "TO_A_PAGE", 15)
        with served(create_app(shop.once)) as url:
            yield url


@pytest.mark.parametrize("look", LOOKS)
def test_no_page_is_hard_to_use(window: Open, shop: Shop, shop_url: str, tmp_path: Path, look: str) -> None:
    visit = window(shop_url, **LOOKS[look])
    buried = shop.once.dead_letters.find(limit=1).items[0].id
    running = shop.once.jobs.find(states="running", limit=1).items[0].id
    paths = {
        "overview": "/",
        "jobs": "/jobs",
        "nothing": "/jobs?task=nobody",
        "story": f"/jobs/{shop.story}",
        "running": f"/jobs/{running}",
        "buried": f"/jobs/{buried}",
        "dead-letters": "/dead-letters",
        "duplicates": "/duplicates",
        "tasks": "/tasks",
        "cancel": f"/cancel?id={running}",
        "revive": f"/revive?id={buried}",
        "sign-in": "/sign-in",
        "not-there": "/jobs/nobody",
    }
    grave = []
    for name, path in paths.items():
        page = visit.open(path)
        if page.locator("[data-chart]").count():
            page.locator(".u-legend").wait_for()
        page.screenshot(path=tmp_path / f"{name}.png", full_page=True)
        page.evaluate(AXE.read_text())
        found = page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
        grave += [(name, each["id"], each["nodes"][0]["html"]) for each in found if each["impact"] in GRAVE]
        wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wider <= 0, f"{name} must be scrolled sideways, by {wider} px"

    assert grave == []
    assert [each for each in visit.complaints if "404" not in each] == []


def test_a_narrow_window_shows_all_places_to_go(window: Open, shop_url: str) -> None:
    page = window(shop_url, **LOOKS["narrow and dark"]).open("/")

    for link in page.get_by_role("navigation").get_by_role("link").all():
        expect(link).to_be_in_viewport(ratio=1)


def test_the_pictures_of_the_readme(window: Open, shop: Shop, shop_url: str, tmp_path: Path) -> None:
    folder = PICTURES if TAKE else tmp_path
    visit = window(shop_url, viewport={"width": 1280, "height": 800}, color_scheme="light")

    shop.beat()
    page = visit.open("/")
    page.get_by_text("3 answering").wait_for()
    page.locator(".u-legend").first.wait_for()
    page.screenshot(path=folder / "overview.png")
    page = visit.open(f"/jobs/{shop.story}")
    page.get_by_text("Run 2 took over").wait_for()
    page.screenshot(path=folder / "story.png")

    assert (folder / "overview.png").stat().st_size < 150_000
