"""`oncelery up`: a private server on this machine, and the demonstration on top of it."""

from __future__ import annotations

from pathlib import Path

import click

from oncelery.embedded.server import DEFAULT_FOLDER


@click.command()
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=DEFAULT_FOLDER,
    show_default=True,
    help="Where the data is kept.",
)
@click.option("--port", type=click.IntRange(0, 65_535), default=0, help="The server's port on loopback (any free one).")
def up(folder: Path, port: int) -> None:
    """Start a private Valkey and show on it what Oncelery does; Ctrl-C ends it."""
    from oncelery.embedded.__main__ import serve  # noqa: PLC0415 - only this command needs it

    serve(folder, port)
