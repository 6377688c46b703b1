"""`oncelery jobs`: what the ledger knows, newest change first."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING

import click

from oncelery.cli.output import Moment, ago, coloured, console, fields_of, json_option, table, tell
from oncelery.cli.target import Target, target_options
from oncelery.job import Job, Page, Query, State

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

#: How often they are shown anew.
WATCH_SECONDS = 2

COLUMNS = ("ID", "TASK", "STATE", "PROGRESS", "ATTEMPT", "CHANGED", "SCOPE", "DUPLICATES")


@click.command()
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.value for state in State]),
    help="Only these; may be repeated.",
)
@click.option("--task", default="", help="Only this task's.")
@click.option("--scope", default="", help="Only this tenant's.")
@click.option("--since", type=Moment(), help="Changed since: 30m, 2h, 7d or a date.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="How many.")
@click.option("--cursor", default="", help="Where the last page ended.")
@click.option("--watch", is_flag=True, help="Show them anew every two seconds, until Ctrl-C.")
@json_option
@target_options
def jobs(
    target: Target,
    *,
    states: tuple[str, ...],
    task: str,
    scope: str,
    since: datetime | None,
    limit: int,
    cursor: str,
    watch: bool,
    as_json: bool,
) -> None:
    """List jobs, the newest change first."""
    known = target.jobs()
    asked = frozenset(State(state) for state in states)
    query = Query(states=asked, task=task, scope=scope, since=since, cursor=cursor, limit=limit)
    if as_json:
        page = known.find(query)
        tell({"jobs": [fields_of(job, known) for job in page.items], "cursor": page.cursor})
    elif watch:
        _watch(lambda: jobs_table(known.find(query).items))
    else:
        _print(known.find(query))


def jobs_table(items: tuple[Job, ...]) -> Table:
    """Show jobs, one to a line."""
    return table(COLUMNS, map(_row, items))


def _print(page: Page[Job]) -> None:
    terminal = console()
    terminal.print(jobs_table(page.items) if page.items else "no jobs")
    if page.cursor:
        terminal.print(f"more: --cursor {page.cursor}")


def _watch(draw: Callable[[], Table]) -> None:
    from rich.live import Live  # noqa: PLC0415 - an extra

    with suppress(KeyboardInterrupt), Live(console=console(), auto_refresh=False) as live:
        while True:
            live.update(draw(), refresh=True)
            time.sleep(WATCH_SECONDS)  # as often as people look


def _row(job: Job) -> tuple[RenderableType, ...]:
    return (
        job.id,
        job.task,
        coloured(job.state),
        progress_of(job),
        str(job.attempt),
        ago(job.changed_at),
        job.scope,
        str(job.duplicates or ""),
    )


def progress_of(job: Job) -> RenderableType:
    """Show how far a job has come: a bar where the total is known, and the stage."""
    from rich.columns import Columns  # noqa: PLC0415 - an extra
    from rich.progress_bar import ProgressBar  # noqa: PLC0415 - as above

    progress = job.progress
    if progress is None:
        return ""
    if not progress.total:
        return f"{progress.done:g} {progress.stage or ''}"
    percent = f"{progress.done / progress.total:.0%} {progress.stage or ''}".strip()
    return Columns([ProgressBar(total=progress.total, completed=progress.done, width=12), percent], padding=(0, 1))
