"""`oncelery sweep`: publishes again what is lost, once; what workers do by themselves."""

from __future__ import annotations

from dataclasses import asdict

import click

from oncelery.cli.output import json_option, print_json
from oncelery.cli.target import Target, target_options


@click.command()
@json_option
@target_options
@click.pass_context
def sweep(ctx: click.Context, target: Target, *, as_json: bool) -> None:
    """Publish lost jobs again and delete what is past its history; needs -A. Exits with 1 if one could not be sent."""
    swept = target.once().sweep()
    if as_json:
        print_json(asdict(swept))
    else:
        click.echo(f"published {swept.published}, failed {swept.failed}, deleted {swept.pruned} past their history")
    ctx.exit(bool(swept.failed))
