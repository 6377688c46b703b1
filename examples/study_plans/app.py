"""Study plans: a long pipeline in stages, one at a time for each project; no lesson is written twice."""

from __future__ import annotations

import os
from time import sleep
from typing import Any

from celery import Celery

from oncelery import Oncelery, current_run

app = Celery("study_plans")  # its broker is in CELERY_BROKER_URL
once = Oncelery(app, recommended=True)  # its ledger is in ONCELERY_STORE

#: How long a lesson takes to write, in seconds.
PACE = float(os.environ.get("STUDY_PLANS_PACE", "1"))

LESSONS = 12


@once.task(name="make_plan", key="project", scope="project", on_duplicate="reject", retention=0)
def make_plan(project: str) -> dict[str, Any]:
    """Make a plan. Run again after a crash, it goes on at the lesson that the dead worker was writing."""
    run = current_run()
    total = LESSONS + 3
    run.progress(0, total, "gather sources")
    sources = run.step("sources", gather, project)
    run.progress(1, total, "outline")
    topics = run.step("outline", outline, project, sources)
    lessons = []
    for number, topic in enumerate(topics, 1):
        run.progress(number + 1, total, "write lessons", f"{number} of {len(topics)}: {topic}")
        lessons.append(run.step(topic, write, topic))
    run.progress(LESSONS + 2, total, "check")
    return {"project": project, "lessons": lessons, "pages": run.step("check", check, lessons)}


def gather(project: str) -> list[str]:
    """Look for what there is to read."""
    sleep(PACE / 5)
    return [f"{project}: an introduction", f"{project} in pictures"]


def outline(project: str, sources: list[str]) -> list[str]:
    """Choose the topics."""
    sleep(PACE / 5)
    return [f"{project} {number}, after {sources[number % len(sources)]}" for number in range(1, LESSONS + 1)]


def write(topic: str) -> dict[str, Any]:
    """Write a lesson; it bears the mark of the process that wrote it."""
    sleep(PACE)
    return {"topic": topic, "pages": len(topic), "process": os.getpid()}


def check(lessons: list[dict[str, Any]]) -> int:
    """Count the pages."""
    return sum(lesson["pages"] for lesson in lessons)
