"""`oncelery jobs`: what the ledger knows, newest change first."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, NoReturn

import click

from oncelery.cli.output import (
    Cropped,
    Moment,
    ago,
    coloured,
    console,
    json_option,
    listed_fields_of,
    page_of,
    page_options,
    print_json,
    print_page,
    table,
)
from oncelery.cli.target import Target, target_options
from oncelery.job import JobSummary, Page, Query, State

if TYPE_CHECKING:
    from rich.console import RenderableType

#: How often they are shown anew.
WATCH_SECONDS = 2

#: How long the bar of one that is nearly done is.
BAR = 12

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
@page_options
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
    page = page_of(lambda: known.find(query), cursor)
    if as_json:
        print_json({"jobs": [listed_fields_of(job) for job in page.items], "cursor": page.cursor})
    elif watch:
        _watch(lambda: _shown(known.find(query), query, target))
    else:
        print_page(page, _shown(page, query, target))


def _shown(page: Page[JobSummary], asked: Query, target: Target) -> RenderableType:
    return table(COLUMNS, map(_row, page.items)) if page.items else target.nothing("jobs", asked)


def _watch(draw: Callable[[], RenderableType]) -> None:
    from rich.live import Live  # noqa: PLC0415 - an extra

    terminal = console(narrowest=0)
    with suppress(KeyboardInterrupt):
        if not terminal.is_terminal:
            # In a pipe nothing is drawn over: one table follows the other.
            _again_and_again(lambda: terminal.print(draw(), "", sep="\n"))
        with Live(console=terminal, auto_refresh=False) as live:
            _again_and_again(lambda: live.update(Cropped(draw()), refresh=True))


def _again_and_again(show: Callable[[], None]) -> NoReturn:
    while True:
        show()
        time.sleep(WATCH_SECONDS)  # as often as people look


def _row(job: JobSummary) -> tuple[RenderableType, ...]:
    return (
        job.id,
        job.task,
        coloured(job.state),
        _progress(job),
        str(job.attempt),
        ago(job.changed_at),
        job.scope,
        str(job.duplicates or ""),
    )


def _progress(job: JobSummary) -> str:
    """Show how far a job has come: a bar where the total is known, and the stage; nothing of one that has ended."""
    progress = job.progress
    if progress is None or job.state in (State.COMPLETED, State.CANCELLED):
        return ""
    if not progress.total:
        return f"{progress.done:g} {progress.stage or ''}"
    share = progress.done / progress.total
    bar = "━" * int(min(max(share, 0), 1) * BAR)
    return f"{bar:<{BAR}} {share:.0%} {progress.stage or ''}".rstrip()
