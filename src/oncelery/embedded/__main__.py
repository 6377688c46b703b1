"""`python -m oncelery.embedded`: a private server on this machine, and the self-test of `oncelery prove` on it."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from oncelery.embedded.server import DEFAULT_FOLDER, EmbeddedServer
from oncelery.errors import OnceleryError


def main() -> None:
    """Start the server, run the demonstration on it until it ends or Ctrl-C, and stop the server."""
    parser = argparse.ArgumentParser(prog="python -m oncelery.embedded", description=__doc__)
    parser.add_argument("--folder", type=Path, default=DEFAULT_FOLDER, help="where the data is kept (%(default)s)")
    parser.add_argument("--port", type=int, default=0, help="the server's port on loopback (any free one)")
    chosen = parser.parse_args()
    try:
        serve(chosen.folder, chosen.port)
    except OnceleryError as error:
        sys.exit(str(error))


def serve(folder: Path, port: int) -> None:
    """Run the demonstration on a server of this folder and port; exit with 1 if it does not go as it should."""
    with suppress(KeyboardInterrupt), EmbeddedServer(folder, port) as server:
        # Here, not above: a wrong folder or port is told before the demonstration's own needs are loaded.
        verdict = import_module("oncelery.embedded.demo").run(server.url)
        if verdict.lost or verdict.twice:
            sys.exit(1)


if __name__ == "__main__":
    main()
