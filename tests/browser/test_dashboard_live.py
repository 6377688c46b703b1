"""The dashboard as an operator uses it, in a browser, on a service with a real worker."""

from __future__ import annotations

import re
from typing import Any

import httpx2
import pytest
from celery import Celery
from faults.workers import Worker
from guarded.world import World
from playwright.sync_api import Page, expect

from browser.conftest import PATIENCE, Open, served
from oncelery import Oncelery
from oncelery.http import create_app, new_key
from oncelery.testing.servers import ValkeyServer

expect.set_options(timeout=PATIENCE)

pytestmark = pytest.mark.usefixtures("worker")


def submit(url: str, task: str, **arguments: Any) -> str:  # noqa: ANN401 - the task's
    """Submit a job as a client does, and give its id."""
    answer = httpx2.post(f"{url}/jobs/{task}", json=arguments)
    assert answer.status_code == 202, answer.text
    job_id: str = answer.json()["id"]
    return job_id


def reloads(page: Page) -> list[str]:
    """Note every page that is loaded from now on."""
    loaded: list[str] = []
    page.on("load", lambda each: loaded.append(each.url))
    return loaded


def test_a_job_is_submitted_watched_and_cancelled(window: Open, service: str, world: World) -> None:
    visit = window(service)
    page = visit.open("/jobs")
    expect(page.locator("#live")).to_have_text("Live")
    loaded = reloads(page)

    job_id = submit(service, "heeds", name=world.name())

    row = page.locator(f"#job-{job_id}")
    expect(row).to_contain_text("running")
    assert loaded == []
    row.get_by_role("link", name=job_id).first.click()
    page.get_by_role("link", name="Cancel…").click()
    expect(page.get_by_role("heading", name="Cancel this job?")).to_be_visible()
    expect(page.get_by_text("is asked to end")).to_be_visible()
    page.get_by_role("button", name="Cancel the job").click()
    expect(page.get_by_text("The job was asked to end")).to_be_visible()
    expect(page.locator(".title .state")).to_have_text("cancelled")
    assert world.job(job_id).state == "cancelled"
    assert visit.complaints == []


def test_progress_moves_and_the_end_is_seen_without_a_reload(window: Open, service: str, world: World) -> None:
    name = world.name()
    gate = world.gate(name)
    job_id = submit(service, "reports", name=name, gate=gate.path)
    page = window(service).open(f"/jobs/{job_id}")
    expect(page.get_by_text("1 / 3 first")).to_be_visible()
    loaded = reloads(page)

    gate.open()

    expect(page.locator(".title .state")).to_have_text("completed")
    expect(page.get_by_role("heading", name="Result")).to_be_visible()
    assert loaded == []


def test_what_fails_for_good_is_a_dead_letter_and_is_revived(window: Open, service: str, world: World) -> None:
    page = window(service).open("/dead-letters")

    job_id = world.tasks.retried_by_policy.delay(world.name(), 3).id

    letter = page.locator(f"#letter-{job_id}")
    expect(letter).to_contain_text("RefusedError")
    letter.get_by_role("checkbox").check()
    expect(page.get_by_text("1 chosen")).to_be_visible()
    page.get_by_role("button", name="Revive chosen…").click()
    expect(page.get_by_role("heading", name="Revive 1 dead letter?")).to_be_visible()
    page.get_by_role("button", name="Revive 1").click()
    expect(page.get_by_role("heading", name="1 revived")).to_be_visible()
    page.get_by_role("link", name=job_id).click()
    expect(page.locator(".title .state")).to_have_text("completed")
    assert world.job(job_id).state == "completed"


def test_a_takeover_after_a_kill_is_visible_in_the_story(
    window: Open, service: str, world: World, worker: Worker
) -> None:
    name = world.name()
    gate = world.gate(name)
    job_id = world.tasks.rerunning.delay(name, gate.path).id
    assert world.hears(name)
    page = window(service).open(f"/jobs/{job_id}")
    expect(page.get_by_text("Run 1 began")).to_be_visible()

    worker.kill_child(int(world.job(job_id).worker.rpartition(":")[2]))

    expect(page.get_by_text(re.compile("Run 1 (died with its process|went silent)"))).to_be_visible()
    expect(page.get_by_text("Run 2 took over")).to_be_visible()
    assert world.hears(name, times=2)
    gate.open()
    expect(page.locator(".title .state")).to_have_text("completed")


def test_an_act_on_a_job_that_has_moved_meanwhile_is_refused(window: Open, service: str, world: World) -> None:
    name = world.name()
    gate = world.gate(name)
    job_id = world.tasks.joining.delay(name, None, gate.path).id
    assert world.hears(name, "start")
    page = window(service).open(f"/cancel?id={job_id}")
    gate.open()
    assert world.becomes(job_id, "completed")

    page.get_by_role("button", name="Cancel the job").click()

    expect(page.get_by_role("heading", name="Not done: the job has moved")).to_be_visible()
    expect(page.get_by_text("now it is completed")).to_be_visible()


def test_everything_is_reached_from_the_keyboard(window: Open, service: str, world: World) -> None:
    job_id = world.tasks.joining.delay(world.name()).id
    assert world.becomes(job_id, "completed")
    page = window(service).open("/jobs")

    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    page.get_by_label("Id or key").focus()
    page.keyboard.type(job_id)
    page.keyboard.press("Enter")

    expect(page.get_by_role("heading", level=1)).to_contain_text(job_id)


def test_what_is_typed_and_opened_stays_while_the_page_changes(window: Open, service: str, world: World) -> None:
    page = window(service).open("/jobs")
    expect(page.locator("#live")).to_have_text("Live")
    page.get_by_label("Id or key").fill("half typed")

    job_id = world.tasks.joining.delay(world.name()).id

    expect(page.locator(f"#job-{job_id}")).to_contain_text("completed")
    expect(page.get_by_label("Id or key")).to_have_value("half typed")
    expect(page.get_by_label("Id or key")).to_be_focused()


def test_the_focus_goes_along_with_a_row_that_moves(window: Open, service: str, world: World) -> None:
    older, newer = (world.tasks.joining.apply_async((world.name(),), countdown=600).id for _ in range(2))
    page = window(service).open("/jobs")
    expect(page.locator(f"#job-{newer} + #job-{older}")).to_be_visible()
    link = page.locator(f"#job-{older} a").first
    link.focus()

    world.once.jobs.cancel(older)

    expect(page.locator(f"#job-{older} + #job-{newer}")).to_be_visible()
    expect(link).to_be_focused()


def test_a_text_of_a_task_is_not_run(window: Open, service: str, world: World) -> None:
    attack = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"
    job_id = world.tasks.raises.delay(attack, "refused").id
    assert world.becomes(job_id, "buried")
    visit = window(service)

    for path in (f"/jobs/{job_id}", "/dead-letters", "/jobs"):
        page = visit.open(path)
        # Also what comes by the stream.
        expect(page.locator("#live")).to_have_text("Live")
        assert "run" not in page.title()
        assert page.locator("img[src=x]").count() == 0
    assert visit.complaints == []


def test_who_is_not_signed_in_signs_in_and_out(window: Open, world: World) -> None:
    text, key = new_key("ada", roles=["read"])
    with served(create_app(world.once, keys=[key])) as url:
        visit = window(url)
        page = visit.open("/")
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()

        page.get_by_label("API key").fill("once_nobody")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_contain_text("No such API key")
        page.get_by_label("API key").fill(text)
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        expect(page.get_by_text("ada · read only")).to_be_visible()
        expect(page.locator("#live")).to_have_text("Live")
        assert page.evaluate("document.cookie") == ""
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_a_store_that_goes_away_is_told_and_the_page_goes_on_when_it_is_back(
    window: Open, durable_valkey: ValkeyServer
) -> None:
    once = Oncelery(Celery("away", broker="memory://", set_as_current=False), store=durable_valkey.url)
    with served(create_app(once)) as url:
        page = window(url).open("/jobs")
        expect(page.get_by_text("No jobs yet")).to_be_visible()

        durable_valkey.kill()
        expect(page.get_by_role("heading", name="The ledger does not answer")).to_be_visible()

        durable_valkey.restart()
        expect(page.get_by_text("No jobs yet")).to_be_visible()
    once.ledger.store.close()
