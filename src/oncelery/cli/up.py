"""`oncelery up`: a private Valkey, a worker, the service and its dashboard, for the demonstration or for your app."""

from __future__ import annotations

import inspect
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from oncelery.cli.target import Target, app_option
from oncelery.embedded.server import DEFAULT_FOLDER
from oncelery.errors import ConfigurationError

if TYPE_CHECKING:
    from oncelery.celery.extension import Oncelery
    from oncelery.embedded.stack import Stack

#: How often it is looked whether all is still there, in seconds.
LOOK_EVERY = 0.5

DEMONSTRATION = """
Try it in another terminal, or with buttons at {url}/demo

  # a payment: send it twice, and there is one job; later, its result
  curl --json '{{"order_id": "o-1", "amount": 500}}' {url}/jobs/demo.charge
  # a plan in stages; sent again while it runs it is refused: 409, with the job's id and state
  curl --json '{{"project": "physics"}}' {url}/jobs/demo.plan_studies
  # kill -9 the process that runs a plan: another goes on where it was
  curl -X POST {url}/demo/kill
  # a job that kills whoever runs it: after three deaths a dead letter
  curl --json '{{"batch": "b-1"}}' {url}/jobs/demo.poison
  curl {url}/dead-letters"""


@click.command()
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=DEFAULT_FOLDER,
    show_default=True,
    help="Where the data and the logs are kept.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8000,
    show_default=True,
    help="The service's port on loopback; 0 for any free one.",
)
@click.option("--concurrency", type=click.IntRange(1), default=4, show_default=True, help="The worker's processes.")
@app_option
@click.pass_obj
def up(target: Target, folder: Path, port: int, concurrency: int) -> None:
    """Start a private Valkey, a worker, the service and its dashboard; Ctrl-C ends them, and the data stays.

    Without an app it is a demonstration. With one (-A yourapp), its guarded tasks are served and run. The Valkey is
    where the app looks for its Redis on this machine, or is named to an app that names none; an app whose broker and
    store are there already gets no other.
    """
    once = _once(target)
    stack = _stack(target, once, folder, port, concurrency)
    # A terminal that is closed, or a plain `kill`, ends it as Ctrl-C does.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        with stack:
            _tell(stack, once)
            while True:
                time.sleep(LOOK_EVERY)
                for name in stack.revive():
                    click.echo(f"the {name} had ended, and is started again")
    except KeyboardInterrupt:
        click.echo("\nstopped; `up` again goes on with the same data")


def _once(target: Target) -> Oncelery | None:
    """Find the app, if there is one."""
    if not target.app:
        return None
    if not isinstance(target.app, str):
        raise click.UsageError("the worker needs the name of your app: write `oncelery up -A yourapp`")
    once = target.once()
    if once.settings.store.startswith("memory:"):
        raise ConfigurationError(
            "memory:// is the ledger of one process, and these are several: name no store, or a Redis"
        )
    return once


def _stack(target: Target, once: Oncelery | None, folder: Path, port: int, concurrency: int) -> Stack:
    from oncelery.embedded.stack import Stack  # noqa: PLC0415 - Celery is not loaded for --help

    if once is None:
        app, factory = "oncelery.embedded.playground", "oncelery.embedded.buttons:serve"
        return Stack(folder, app=app, factory=factory, port=port, concurrency=concurrency)
    return Stack(
        folder,
        app=str(target.app),
        factory="oncelery.embedded.service:serve",
        broker=once.app.conf.broker_url,
        store=once.settings.store,
        port=port,
        concurrency=concurrency,
    )


def _tell(stack: Stack, once: Oncelery | None) -> None:
    """Say where everything is, and what to try."""
    url = stack.service.url
    places = {"dashboard": f"{url}/", "API": f"{url}/docs"}
    if stack.server:
        places["Valkey"] = stack.server.url
    places["logs"] = ", ".join(os.path.relpath(part.log_file) for part in (stack.service, stack.worker))
    click.echo("Oncelery is up. Ctrl-C stops it; `up` again goes on with the same data.\n")
    for name, place in places.items():
        click.echo(f"  {name:<11}{place}")
    click.echo(_to_try(once).format(url=url) if once else DEMONSTRATION.format(url=url))


def _to_try(once: Oncelery) -> str:
    """Write how each task is called; `{url}` stands for the service's."""
    from oncelery.embedded.service import tasks_of  # noqa: PLC0415 - as above

    calls = ["\nTry it in another terminal:\n"]
    for task in tasks_of(once):
        arguments = ", ".join(f'"{name}": …' for name in inspect.signature(task.run).parameters)
        calls.append(f"  curl --json '{{{{{arguments}}}}}' {{url}}/jobs/{task.name}")
    return "\n".join(calls) if len(calls) > 1 else "\nNo task is guarded yet: declare one with @once.task(key=…)."
