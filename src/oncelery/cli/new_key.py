"""`oncelery new-key NAME`: an API key for the service, and what to keep of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from oncelery.cli.output import json_option, print_json
from oncelery.errors import ConfigurationError

#: As `oncelery.http.keys.Role`, which is not loaded for --help; a test compares the two.
ROLES = ("submit", "read", "operate")


@click.command()
@click.argument("name")
@click.option(
    "--role", "roles", type=click.Choice(ROLES), multiple=True, required=True, help="What it may do; may be repeated."
)
@click.option("--scope", default="", help="The tenant that it is bound to; without it, it sees all.")
@click.option(
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Add the entry to this file of keys, which is made if there is none.",
)
@json_option
def new_key(*, name: str, roles: tuple[str, ...], scope: str, file: Path | None, as_json: bool) -> None:
    """Make an API key. The key itself is printed this once; its entry, for `create_app(keys=…)`, has but its hash."""
    try:
        from oncelery.http import keys  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise ConfigurationError(str(error)) from error

    text, key = keys.new_key(name, scope=scope, roles=roles)
    if file:
        keys.add_to_file(file, key)
    entry: dict[str, Any] = msgspec.to_builtins(key, order="deterministic")
    if as_json:
        print_json({"key": text, "entry": entry})
    else:
        click.echo(text if file else f"{text}\n{msgspec.json.encode(entry).decode()}")
