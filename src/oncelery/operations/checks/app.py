"""Is the app configured so that what it promises can be kept, and does somebody look after the ledger?"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from oncelery.operations.checks.check import Complaint, error, warning
from oncelery.operations.facts import Facts
from oncelery.operations.jobs import CODE
from oncelery.settings import PREFIX, Settings
from oncelery.spelling import SURELY, nearest

#: How long the most overdue job may wait for a sweeper before there is none.
MOST_OVERDUE = timedelta(seconds=60)


@error
def pickle_accepted(facts: Facts) -> Iterator[Complaint]:
    """Whoever can write to the broker, the results or the ledger can run any code in your workers."""
    for setting in ("accept_content", "result_accept_content"):
        if found := CODE & set(facts.conf.get(setting) or ()):
            yield f"{setting} has {', '.join(sorted(found))}", f'app.conf.{setting} = ["json"]'


@warning
def misspelt_variable(facts: Facts) -> Iterator[Complaint]:
    """A variable of the environment that no setting is read from changes nothing."""
    known = {f"{PREFIX}{name}".upper() for name in Settings.names()}
    for name in facts.variables:
        # Only what is almost one of ours: an app may have variables of its own that begin alike.
        if name not in known and (meant := nearest(name, known, alike=SURELY)):
            yield f"{name} is no setting", f"{meant}=..."


@warning
def always_eager(facts: Facts) -> Iterator[Complaint]:
    """Tasks run in the process that calls them: no worker takes over when that dies."""
    if facts.conf.get("task_always_eager"):
        yield "task_always_eager is on", "app.conf.task_always_eager = False  # and for tests, docs/testing.md"


@error
def sweeper_absent(facts: Facts) -> Iterator[Complaint]:
    """Whatever a broker or a worker loses, the sweeper publishes again; without one it waits for ever."""
    tally = facts.store.tally
    start = "celery -A yourapp worker  # each worker sweeps; or run `oncelery -A yourapp sweep` by cron"
    if tally and tally.overdue > MOST_OVERDUE:
        yield f"a job has been due for {_round(tally.overdue)}, and nobody has published it again", start


@warning
def sweeper_off(facts: Facts) -> Iterator[Complaint]:
    """With the workers' own sweepers off, all depends on whoever calls `oncelery sweep`."""
    if facts.conf and not facts.settings.sweep_every:
        yield "sweep_every is 0", "Oncelery(app, sweep_every=2)"


@warning
def no_worker(facts: Facts) -> Iterator[Complaint]:
    """Nobody runs what is queued, takes over what is lost, or sweeps."""
    tally = facts.store.tally
    if not facts.conf or facts.broker.error or facts.workers or tally is None:
        return
    if waiting := sum(count for state, count in tally.states.items() if state.live):
        yield f"no worker answers, and jobs are queued or running: {waiting}", "celery -A yourapp worker"


@warning
def task_unknown(facts: Facts) -> Iterator[Complaint]:
    """Workers drop a message of a task that they do not know: its jobs wait until one does."""
    known = [worker.knows for worker in facts.workers if worker.knows is not None]
    # One that did not tell may know it.
    if not known or len(known) < len(facts.workers):
        return
    for task, _ in facts.guarded:
        if not any(task.name in names for names in known):
            yield (
                f"no worker that answers knows task {task.name}",
                "celery -A yourapp worker  # start the workers again, with the code that has the task",
            )


CHECKS = (pickle_accepted, misspelt_variable, always_eager, sweeper_absent, sweeper_off, no_worker, task_unknown)


def _round(span: timedelta) -> timedelta:
    return timedelta(seconds=int(span.total_seconds()))
