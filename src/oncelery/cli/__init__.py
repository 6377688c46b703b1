"""The command `oncelery`: one file for each of its words; also `celery -A app oncelery …`."""

from __future__ import annotations

from importlib import import_module

import click

from oncelery.cli.target import Target
from oncelery.errors import OnceleryError, StoreUnavailableError

#: In the order of `oncelery --help`; each has a module called like it.
COMMANDS = (
    "up",
    "doctor",
    "jobs",
    "show",
    "cancel",
    "dead-letters",
    "duplicates",
    "sweep",
    "migrate",
    "new-key",
    "prove",
    "bench",
)


class Unavailable(click.ClickException):
    """The store is away: the same command may succeed later."""

    #: Beside click's own: 1 for a no and for what failed, 2 for wrong usage.
    exit_code = 3


class Commands(click.Group):
    """Says what is wrong in one line: an error of ours carries its remedy, and a traceback would hide it.

    A command is imported when it is asked for: Celery loads this group whenever it starts, for a worker too.
    """

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Name all commands."""
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        """Load a command."""
        if name not in COMMANDS:
            return None
        word = name.replace("-", "_")
        command: click.Command = getattr(import_module(f"oncelery.cli.{word}"), word)
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except OnceleryError as error:
            raise (Unavailable if isinstance(error, StoreUnavailableError) else click.ClickException)(
                str(error)
            ) from error


@click.group(name="oncelery", cls=Commands)
@click.option(
    "-A", "--app", envvar="ONCELERY_APP", default="", metavar="APP", help="Your Celery app, as Celery finds it."
)
@click.option("--store", default="", metavar="URL", help="The ledger alone, without an app; ONCELERY_STORE.")
@click.option("--namespace", default="", metavar="NAME", help="With --store, the namespace; ONCELERY_NAMESPACE.")
@click.version_option(package_name="oncelery")
@click.pass_context
def main(ctx: click.Context, app: str, store: str, namespace: str) -> None:
    """Exactly-once effects for Celery.

    Most commands need your app (-A shop, or -A shop.celery:app), or --store URL for what the ledger alone can tell;
    before the command or behind it.
    """
    # Under `celery -A app oncelery`, Celery has found it.
    ctx.obj = Target(app=app or getattr(ctx.obj, "app", ""), store=store, namespace=namespace)
