"""`oncelery show ID`: all that the ledger knows of one job."""

from __future__ import annotations

import json
from typing import Any

import click

from oncelery.cli.output import (
    ago,
    cell,
    coloured,
    console,
    error_of,
    fields_of,
    json_option,
    print_json,
    printable,
    table,
)
from oncelery.cli.target import Target, target_options
from oncelery.job import Job

#: What a person need not see.
TOO_MUCH = frozenset({"id", "state", "past", "error", "holder", "digest", "follows"})


@click.command()
@click.argument("job_id", metavar="ID")
@json_option
@target_options
def show(target: Target, *, job_id: str, as_json: bool) -> None:
    """Show one job: state, arguments, progress, steps, attempts, result or error."""
    jobs = target.jobs()
    job = jobs.get(job_id)
    if job is None:
        raise click.ClickException(f"no job {job_id}: it never was, or its history is over")
    if as_json:
        print_json(fields_of(job, jobs))
    else:
        _print(job, fields_of(job, jobs))


def _print(job: Job, told: dict[str, Any]) -> None:
    terminal = console()
    fields = {name: cell(_text(value)) for name, value in told.items() if name not in TOO_MUCH}
    fields = {"job": cell(job.id, "bold"), "state": coloured(job.state), **fields}
    if job.body is None and not job.state.live:
        fields["args"] = cell("no longer kept: a job that has ended needs them no more")
    width = max(map(len, fields))
    for name, value in fields.items():
        # In a line of its own, however long: what is copied from here is whole.
        terminal.print(name.ljust(width), value, sep="  ")
    if job.past:
        columns = ("RUN", "ENDED", "WORKER", "CAUSE", "ERROR")
        # Through all revivals, after each of which attempts are counted anew; from the oldest that is kept on.
        runs = enumerate(job.past, job.past[0].number)
        rows = [(str(no), ago(run.ended_at), run.worker, run.cause, error_of(run.error)) for no, run in runs]
        terminal.print("\nearlier runs", table(columns, rows), sep="\n")
    if job.error:
        terminal.print(f"\n{printable(error_of(job.error))}", printable(job.error.traceback), sep="\n")


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
