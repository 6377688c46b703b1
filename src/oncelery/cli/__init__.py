"""The command `oncelery`: one file for each of its words."""

from __future__ import annotations

import click

from oncelery.cli.migrate import migrate
from oncelery.errors import OnceleryError


class Commands(click.Group):
    """Says what is wrong in one line: an error of ours carries its remedy, and a traceback would hide it."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except OnceleryError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=Commands)
@click.version_option(package_name="oncelery")
def main() -> None:
    """Exactly-once effects for Celery."""


main.add_command(migrate)
