"""`oncelery prove`: a self-test on a private server, with workers that are really killed."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import asdict

import click

from oncelery.cli.output import json_option, print_json
from oncelery.cli.target import private_server


@click.command()
@json_option
@click.pass_context
def prove(ctx: click.Context, *, as_json: bool) -> None:
    """Click twice, kill a worker, put one to sleep, and count the charges: none lost, none twice.

    It starts a private Valkey in a folder of its own and takes some seconds. Exits with 1 if it is not so.
    """
    from oncelery.embedded.proof import run  # noqa: PLC0415 - only this command needs it

    with private_server() as url, redirect_stdout(sys.stderr if as_json else sys.stdout):
        verdict = run(url)
    if as_json:
        print_json(asdict(verdict))
    ctx.exit(bool(verdict.lost or verdict.twice))
