"""`oncelery duplicates`: who was answered what, and how often."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from oncelery.cli.output import Moment, ago, json_option, page_of, page_options, print_json, print_page, table
from oncelery.cli.target import Target, target_options
from oncelery.job import Page, Query
from oncelery.operations.duplicates import DEFAULT_SPAN, Duplicates


@click.command()
@click.option("--task", default="", help="Only this task's.")
@click.option("--scope", default="", help="Only this tenant's.")
@page_options
@click.option("--counts", is_flag=True, help="Count them by hour, task, scope and answer.")
@click.option("--since", type=Moment(), help="With --counts: since when (24h).")
@json_option
@target_options
def duplicates(
    target: Target,
    *,
    task: str,
    scope: str,
    limit: int,
    cursor: str,
    counts: bool,
    since: datetime | None,
    as_json: bool,
) -> None:
    """List the duplicates that were answered, the newest first."""
    if since and not counts:
        raise click.UsageError("--since goes with --counts: add it, or leave --since out")
    audit = Duplicates(target.ledger())
    if counts:
        since = since or datetime.now(UTC) - DEFAULT_SPAN
        found = audit.counts(since=since, task=task, scope=scope)
        asked = Query(task=task, scope=scope, since=since)
        rows = [(f"{each.hour:%Y-%m-%d %H:00}", each.task, each.scope, each.answer, str(each.count)) for each in found]
        _print(
            target, asked, ("HOUR", "TASK", "SCOPE", "ANSWER", "COUNT"), rows, Page(items=tuple(found)), as_json=as_json
        )
    else:
        page = page_of(lambda: audit.find(task=task, scope=scope, cursor=cursor, limit=limit), cursor)
        lines = [(ago(each.at), each.task, each.scope, each.answer, each.job_id, each.caller) for each in page.items]
        asked = Query(task=task, scope=scope, cursor=cursor)
        _print(target, asked, ("WHEN", "TASK", "SCOPE", "ANSWER", "JOB", "CALLER"), lines, page, as_json=as_json)


def _print(
    target: Target,
    asked: Query,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    page: Page[Any],
    *,
    as_json: bool,
) -> None:
    if as_json:
        print_json({"duplicates": msgspec.to_builtins(page.items), "cursor": page.cursor})
    else:
        print_page(page, table(columns, rows) if rows else target.nothing("duplicates", asked))
