"""The app whose workers the benchmark kills: a task that tells when it begins, and waits to be killed once."""

from __future__ import annotations

import os
import time

from celery import Celery

from oncelery import Oncelery, current_run

app = Celery("bench", broker=os.environ["BENCH_BROKER"])
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)
once = Oncelery(app, store=os.environ["BENCH_STORE"], lease=float(os.environ["BENCH_LEASE"]))


@once.task(key="number", shared=False)
def interrupted(number: int) -> None:
    """Tell who begins and when; wait to be killed, unless that has happened."""
    bell = os.open(os.environ["BENCH_BELL"], os.O_WRONLY | os.O_APPEND)
    os.write(bell, f"{number} {os.getpid()} {time.monotonic_ns()}\n".encode())
    os.close(bell)
    if not current_run().recovered:
        # Nobody lets it end: the benchmark kills this process.
        time.sleep(3600)
