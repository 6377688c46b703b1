"""`oncelery dead-letters`: jobs that wait for a person; revive or discard them."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from oncelery.cli.output import (
    Moment,
    ago,
    error_of,
    json_option,
    listed_fields_of,
    page_of,
    page_options,
    print_json,
    print_page,
    printable,
    table,
)
from oncelery.cli.target import Target, target_options
from oncelery.job import Query, State
from oncelery.operations.dead_letters import Fate, Fates, fate_after

if TYPE_CHECKING:
    from oncelery.celery.extension import Oncelery

F = TypeVar("F", bound=Callable[..., Any])


class Json(click.ParamType[Any]):
    """A value in JSON, of a given kind."""

    def __init__(self, kind: type, example: str) -> None:
        self.name = "json"
        self._kind = kind
        self._example = example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        """Read it."""
        try:
            read = json.loads(value) if isinstance(value, str) else value
        except ValueError:
            read = None
        if not isinstance(read, self._kind):
            self.fail(f"{value!r} is not like {self._example}", param, ctx)
        return read


def _many_options(command: F) -> F:
    """Let a command be told which dead letters it is for, by their ids or many at once, and be tried first."""
    options = (
        click.argument("job_ids", metavar="[ID…]", nargs=-1),
        click.option("--all", "many", is_flag=True, help="All that match --task, --scope and --since."),
        click.option("--task", default="", help="With --all: only this task's."),
        click.option("--scope", default="", help="With --all: only this tenant's."),
        click.option("--since", type=Moment(), help="With --all: buried since."),
        click.option("--dry-run", is_flag=True, help="Only tell what would become of them."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.group(name="dead-letters", invoke_without_command=True)
@click.option("--task", default="", help="Only this task's.")
@click.option("--scope", default="", help="Only this tenant's.")
@click.option("--since", type=Moment(), help="Buried since: 30m, 2h, 7d or a date.")
@page_options
@json_option
@target_options
@click.pass_context
def dead_letters(
    ctx: click.Context,
    target: Target,
    *,
    task: str,
    scope: str,
    since: datetime | None,
    limit: int,
    cursor: str,
    as_json: bool,
) -> None:
    """List dead letters, the newest first; or revive or discard them."""
    query = Query(task=task, scope=scope, since=since, cursor=cursor, limit=limit)
    if word := ctx.invoked_subcommand:
        if query != Query():
            # Passed over, `--all` would mean more than was said.
            raise click.UsageError(f"options of the list do not go with {word!r}: write --task and others behind it")
        return
    jobs = target.jobs()
    page = page_of(lambda: jobs.find(query, states=State.BURIED), cursor)
    if as_json:
        print_json({"dead_letters": [listed_fields_of(job) for job in page.items], "cursor": page.cursor})
        return
    rows = [
        (job.id, job.task, job.reason, str(job.attempt), ago(job.changed_at), job.scope, error_of(job.error))
        for job in page.items
    ]
    columns = ("ID", "TASK", "REASON", "ATTEMPTS", "BURIED", "SCOPE", "ERROR")
    print_page(page, table(columns, rows) if rows else target.nothing("dead letters", query))


@dead_letters.command()
@_many_options
@click.option("--args", type=Json(list, "'[\"o-1\", 500]'"), help="For one: corrected arguments, a JSON list.")
@click.option("--kwargs", type=Json(dict, "'{\"amount\": 500}'"), help="For one: corrected arguments, a JSON object.")
@json_option
@target_options
@click.pass_context
def revive(
    ctx: click.Context,
    target: Target,
    *,
    job_ids: tuple[str, ...],
    many: bool,
    task: str,
    scope: str,
    since: datetime | None,
    args: list[Any] | None,
    kwargs: dict[str, Any] | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Queue dead letters again; needs -A. Exits with 1 if one of them stays what it is.

    Corrected arguments that make another key are other work: a new job does it, and the dead letter is cancelled.
    """
    query = Query(task=task, scope=scope, since=since)
    _refuse_unclear(job_ids, query, many=many)
    if (args is not None or kwargs is not None) and len(job_ids) != 1:
        raise click.UsageError("--args and --kwargs correct one dead letter: name it")
    once = target.with_tasks()
    if many:
        told = _fates(once.dead_letters.revive_many(query, dry_run=dry_run))
    elif dry_run:
        told = once.dead_letters.rehearse(*job_ids, args=args, kwargs=kwargs)
    else:
        revive = partial(once.dead_letters.revive, args=args, kwargs=kwargs)
        told = {job_id: fate_after(revive, job_id) for job_id in job_ids}
    if args is None and kwargs is not None:
        told = {job_id: (fate, why + _hint(once, job_id, fate)) for job_id, (fate, why) in told.items()}
    _tell(target, query, told, as_json=as_json, dry_run=dry_run)
    ctx.exit(any(fate not in (Fate.REVIVED, Fate.RESUBMITTED) for fate, _ in told.values()))


@dead_letters.command()
@_many_options
@json_option
@target_options
@click.pass_context
def discard(
    ctx: click.Context,
    target: Target,
    *,
    job_ids: tuple[str, ...],
    many: bool,
    task: str,
    scope: str,
    since: datetime | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """End dead letters for good. Exits with 1 if one of them was none."""
    query = Query(task=task, scope=scope, since=since)
    _refuse_unclear(job_ids, query, many=many)
    letters = target.dead_letters()
    if many:
        told = _fates(letters.discard_many(query, dry_run=dry_run))
    else:
        told = {job_id: fate_after(partial(letters.discard, dry_run=dry_run), job_id) for job_id in job_ids}
    _tell(target, query, told, as_json=as_json, dry_run=dry_run)
    ctx.exit(any(fate != Fate.DISCARDED for fate, _ in told.values()))


def _refuse_unclear(job_ids: tuple[str, ...], query: Query, *, many: bool) -> None:
    if bool(job_ids) == many:
        raise click.UsageError("name dead letters by their ids, or give --all; try --dry-run first")
    if query != Query() and not many:
        raise click.UsageError("--task, --scope and --since go with --all: add it, or leave them out")


def _fates(fates: Fates) -> dict[str, tuple[Fate, str]]:
    return {item.job_id: (item.fate, item.why) for item in fates.items}


def _hint(once: Oncelery, job_id: str, fate: Fate) -> str:
    job = once.dead_letters.get(job_id) if fate is Fate.FAILED else None
    call = once.jobs.call(job) if job else None
    if not call or not call.args:
        return ""
    return "; it was called with positional arguments: give --args '[…]', or --args '[]' with all in --kwargs"


def _tell(target: Target, query: Query, told: dict[str, tuple[Fate, str]], *, as_json: bool, dry_run: bool) -> None:
    if as_json:
        print_json({job_id: {"fate": fate, "why": why} for job_id, (fate, why) in told.items()})
        return
    for job_id, (fate, why) in told.items():
        would = "would be " if dry_run and fate in (Fate.REVIVED, Fate.RESUBMITTED, Fate.DISCARDED) else ""
        click.echo(printable(f"{job_id}  {would}{fate}  {why}".rstrip()))
    if not told:
        click.echo(target.nothing("dead letters", query))
