"""The demonstration behind `oncelery up`: plans in stages, payments that come twice, poison, and a worker to kill.

An app like yours, and no more: a Celery app, three guarded tasks, and the customers who keep it busy.
"""

from __future__ import annotations

import os
import signal
from random import SystemRandom
from time import sleep
from typing import Any

from celery import Celery
from celery.worker import state as worker_state
from celery.worker.control import control_command

from oncelery.celery.extension import Oncelery
from oncelery.embedded.process import eventually
from oncelery.errors import DuplicateTaskError, OnceleryError
from oncelery.job import Job, JobSummary, State
from oncelery.run import current_run

app: Celery[Any] = Celery("demo")

# A short lease, so that nobody waits long when a whole worker is killed; 30 s by default.
once = Oncelery(app, recommended=True, lease=5.0, retention=3600, history=3600)

#: What a plan is made in.
STAGES = ("read the syllabus", "choose lessons", "write exercises", "print")

#: How many lessons a plan has, and how long each takes in each stage, in seconds.
LESSONS = 12
LESSON_SECONDS = 0.4

#: Who wants plans.
PROJECTS = ("algebra", "biology", "chemistry", "drawing")

#: How long the kill of a worker waits for a run that it can kill, in seconds.
PATIENCE = 20.0


@once.task(name="demo.plan_studies", key="project", on_duplicate="reject", retention=0)
def plan_studies(project: str) -> dict[str, Any]:
    """Plan the studies of a project, in stages; one plan at a time for each project, and no stage twice."""
    run = current_run()
    written = [run.step(stage, _write, number, stage) for number, stage in enumerate(STAGES)]
    return {"project": project, "pages": sum(written), "attempt": run.attempt}


def _write(number: int, stage: str) -> int:
    for lesson in range(1, LESSONS + 1):
        sleep(LESSON_SECONDS)
        current_run().progress(number * LESSONS + lesson, len(STAGES) * LESSONS, stage, f"lesson {lesson}")
    return LESSONS


@once.task(name="demo.charge", key="order_id")
def charge(order_id: str, amount: int) -> dict[str, Any]:
    """Charge an order once, however often it is submitted."""
    sleep(1.0)
    return {"receipt": current_run().idempotency_key("charge")[:8], "order_id": order_id, "amount": amount}


@once.task(name="demo.poison", key="batch", max_crashes=2)
def poison(batch: str) -> None:  # noqa: ARG001 - what makes it the work it is
    """Kill whoever runs this; the third death makes it a dead letter."""
    os.kill(os.getpid(), signal.SIGKILL)


# What the buttons do


def pay_twice() -> Job:
    """Submit one payment two times, as a double click does, and give the one job that comes of it."""
    order_id = f"o-{SystemRandom().randrange(10**6):06}"
    charge.delay(order_id, 500)
    return read(charge.delay(order_id, 500).id)


def plan(project: str = "") -> Job:
    """Submit a plan; if one is under way for the project, give that."""
    try:
        return read(plan_studies.delay(project or SystemRandom().choice(PROJECTS)).id)
    except DuplicateTaskError as error:
        return read(error.job_id or "")


def send_poison() -> Job:
    """Submit a job that kills its worker."""
    return read(poison.delay("spoilt").id)


def kill_a_worker() -> Job:
    """Kill the process that runs a plan (kill -9), and give the plan, which another process goes on with."""
    jobs: list[JobSummary] = []

    def killed() -> bool:
        # Looked for anew at each try: a plan may end before it can be killed, and one that has not begun survives all.
        jobs[:] = once.jobs.find(states=[State.RUNNING], task=plan_studies.name, limit=1).items or [plan(PROJECTS[0])]
        if jobs[0].state is not State.RUNNING:
            return False
        # A worker that is busy answers late; who did not wait would kill the next run as well.
        replies = (
            app.control.broadcast("kill_child", {"job_id": jobs[0].id}, reply=True, limit=1, timeout=PATIENCE) or []
        )
        return any(told for reply in replies for told in reply.values())

    eventually(killed, PATIENCE)
    return read(jobs[0].id)


@control_command(args=[("job_id", str)])
def kill_child(_state: object, job_id: str) -> dict[str, int] | None:
    """Let the worker kill its own child that runs a job: only it knows for sure which one that is."""
    for request in worker_state.active_requests:
        if request.id == job_id and request.worker_pid:
            os.kill(request.worker_pid, signal.SIGKILL)
            return {"killed": request.worker_pid}
    return None


def read(job_id: str) -> Job:
    """Give a job that was there a moment ago."""
    job = once.jobs.get(job_id)
    if job is None:
        raise OnceleryError(f"job {job_id} is no longer there")
    return job
