"""`oncelery cancel ID…`: ends queued jobs, and asks running ones to end."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

import click

from oncelery.answers import Absent, CancelAnswer, Cancelled, Finished, Requested
from oncelery.cli.output import json_option, print_json
from oncelery.cli.target import Target, target_options
from oncelery.operations.dead_letters import NO_SUCH_JOB

if TYPE_CHECKING:
    from oncelery.operations.jobs import Jobs


@click.command()
@click.argument("job_ids", metavar="ID…", nargs=-1, required=True)
@click.option("--reason", default="cancelled", show_default=True, help="Why; kept with the job.")
@click.option("--terminate", is_flag=True, help="Also end the process that runs it, at once; needs -A.")
@json_option
@target_options
@click.pass_context
def cancel(
    ctx: click.Context, target: Target, *, job_ids: tuple[str, ...], reason: str, terminate: bool, as_json: bool
) -> None:
    """Cancel jobs; it holds even while no worker is up. Exits with 1 if one was finished already, or is unknown."""
    jobs = target.once().jobs if terminate else target.jobs()
    answers = {job_id: _cancel(jobs, job_id, reason=reason, terminate=terminate) for job_id in job_ids}
    told = {job_id: _word(answer) for job_id, answer in answers.items()}
    if as_json:
        print_json(told)
    else:
        for job_id, word in told.items():
            click.echo(f"{job_id}  {word}")
    ctx.exit(any(isinstance(answer, Finished | Absent | None) for answer in answers.values()))


def _cancel(jobs: Jobs, job_id: str, *, reason: str, terminate: bool) -> CancelAnswer | None:
    """Cancel a job; None if that stands, but its process could not be told."""
    from kombu.exceptions import OperationalError  # noqa: PLC0415 - Celery is not loaded for --help

    try:
        return jobs.cancel(job_id, reason=reason, terminate=terminate)
    except OperationalError:
        return None


def _word(answer: CancelAnswer | None) -> str:
    match answer:
        case None:
            return "cancelled, but the broker did not take the order to end its process: give the command again"
        case Cancelled():
            return "cancelled"
        case Requested():
            return "asked to end"
        case Finished(job):
            return f"too late: {job.state}"
        case Absent():
            return NO_SUCH_JOB
        case _:
            assert_never(answer)
