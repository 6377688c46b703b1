"""A Celery app without Oncelery, on which the harness itself is tried."""

from __future__ import annotations

from celery import Celery

from faults.journal import Journal
from oncelery.failpoints import failpoint

app = Celery("plain")
app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True, worker_prefetch_multiplier=1)


@app.task(name="write")
def write(key: str) -> None:
    """Take effect in the journal, with a place before it where a test can break the process."""
    journal = Journal()
    journal.record(key, what="start")
    failpoint("before-effect")
    journal.record(key)
