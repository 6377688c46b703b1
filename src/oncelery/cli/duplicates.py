"""`oncelery duplicates`: who was answered what, and how often."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import click
import msgspec

from oncelery.cli.output import Moment, ago, console, json_option, print_json, table
from oncelery.cli.target import Target, target_options
from oncelery.operations.duplicates import DEFAULT_SPAN, Duplicates


@click.command()
@click.option("--task", default="", help="Only this task's.")
@click.option("--scope", default="", help="Only this tenant's.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="How many.")
@click.option("--counts", is_flag=True, help="Count them by hour, task, scope and answer.")
@click.option("--since", type=Moment(), help="With --counts: since when (24h).")
@json_option
@target_options
def duplicates(
    target: Target, *, task: str, scope: str, limit: int, counts: bool, since: datetime | None, as_json: bool
) -> None:
    """List the duplicates that were answered, the newest first."""
    audit = Duplicates(target.ledger())
    if counts:
        found = audit.counts(since=since or DEFAULT_SPAN, task=task, scope=scope)
        rows = [(f"{each.hour:%Y-%m-%d %H:00}", each.task, each.scope, each.answer, str(each.count)) for each in found]
        _print(target, ("HOUR", "TASK", "SCOPE", "ANSWER", "COUNT"), rows, found, as_json=as_json)
    else:
        items = audit.find(task=task, scope=scope, limit=limit).items
        lines = [(ago(each.at), each.task, each.scope, each.answer, each.job_id, each.caller) for each in items]
        _print(target, ("WHEN", "TASK", "SCOPE", "ANSWER", "JOB", "CALLER"), lines, items, as_json=as_json)


def _print(
    target: Target, columns: Sequence[str], rows: Sequence[Sequence[str]], found: object, *, as_json: bool
) -> None:
    if as_json:
        print_json({"duplicates": msgspec.to_builtins(found)})
    elif rows:
        console().print(table(columns, rows))
    else:
        click.echo(f"no duplicates {target.where}")
