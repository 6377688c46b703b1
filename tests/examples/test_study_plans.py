"""The study plans, with a worker that is killed in the middle of one."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from guarded.plans import AT_ONCE, SLOWLY, planning, run_at

from oncelery.embedded.process import eventually
from oncelery.embedded.stack import Stack

#: Longer than anything here takes on a busy machine; reached only by a test that fails.
SOON = 90.0


class Plans:
    """The service, as the page uses it."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.client = httpx2.Client(base_url=stack.service.url, timeout=SOON)

    def ask(self, project: str) -> httpx2.Response:
        return self.client.post(f"/projects/{project}/plan")

    def job(self, job_id: str) -> Any:  # noqa: ANN401 - JSON
        return self.client.get(f"/api/jobs/{job_id}").json()

    def becomes(self, job_id: str, state: str) -> bool:
        return eventually(lambda: self.job(job_id)["state"] == state, SOON)

    def ends(self, project: str) -> list[str]:
        return [end["state"] for end in self.client.get(f"/projects/{project}/ends").json()]


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plans]:
    with planning(tmp_path_factory.mktemp("plans")) as stack:
        plans = Plans(stack)
        yield plans
        plans.client.close()


def test_a_plan_outlives_its_worker_and_no_lesson_is_written_twice(plans: Plans) -> None:
    run_at(plans.stack, SLOWLY)
    job_id = plans.ask("algebra").json()["id"]
    # Two of its lessons are written.
    assert eventually(lambda: (plans.job(job_id)["progress"] or {"done": 0})["done"] >= 4, SOON)
    again = plans.ask("algebra")
    assert (again.status_code, again.json()["job_id"], again.json()["state"]) == (409, job_id, "running")

    run_at(plans.stack, AT_ONCE)

    assert plans.becomes(job_id, "completed")
    job = plans.job(job_id)
    lessons = job["result"]["lessons"]
    assert (job["attempt"], len({lesson["topic"] for lesson in lessons})) == (2, 12)
    # Those of the dead process were kept; the other has written the rest.
    writers = [lesson["process"] for lesson in lessons]
    assert len(set(writers)) == 2
    assert writers[0] == writers[1] != writers[-1]
    # And it was told of once, however many runs it took.
    assert eventually(lambda: plans.ends("algebra") == ["completed"], SOON)
    (refused,) = plans.client.get("/api/duplicates", params={"scope": "algebra"}).json()["items"]
    assert (refused["job_id"], refused["answer"], refused["caller"]) == (job_id, "rejected", "page")


def test_a_plan_that_is_cancelled_ends_is_told_of_and_makes_room_for_another(plans: Plans) -> None:
    run_at(plans.stack, SLOWLY)
    job_id = plans.ask("biology").json()["id"]
    assert eventually(lambda: bool(plans.job(job_id)["progress"]), SOON)

    assert plans.client.post(f"/api/jobs/{job_id}/cancel").status_code == 202

    assert plans.becomes(job_id, "cancelled")
    assert eventually(lambda: plans.ends("biology") == ["cancelled"], SOON)
    assert plans.ask("biology").status_code == 202


def test_its_progress_comes_as_events_with_their_stages(plans: Plans) -> None:
    run_at(plans.stack, "0.2")
    job_id = plans.ask("chemistry").json()["id"]

    with plans.client.stream("GET", f"/api/jobs/{job_id}/events") as stream:
        told = "".join(stream.iter_text())

    assert '"stage":"write lessons"' in told
    assert '"state":"completed"' in told.splitlines()[-2]


def test_a_call_back_that_nobody_has_signed_is_refused(plans: Plans) -> None:
    forged = plans.client.post("/hooks/plans", json={"type": "job.completed", "data": {"scope": "drawing"}})

    assert (forged.status_code, plans.ends("drawing")) == (400, [])


def test_one_line_runs_it_all(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    running = subprocess.Popen(
        [sys.executable, "-m", "examples.study_plans", "--folder", str(tmp_path / "data"), "--port", "0"],
        cwd=pytestconfig.rootpath,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert running.stdout
    with running, ExitStack() as afterwards:
        # Or it would be waited for, whatever fails.
        afterwards.callback(running.kill)
        said = ""
        for line in running.stdout:
            said += line
            if "logs" in line:
                break
        found = re.search(r"service +(http://\S+)", said)
        assert found, said

        page = httpx2.get(found[1], timeout=SOON)

        assert "Make a plan" in page.text
        assert httpx2.get(f"{found[1]}page/plans.js", timeout=SOON).status_code == 200
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=SOON)
    assert running.returncode == 0
