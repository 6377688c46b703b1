"""`oncelery up`: a private Valkey, a worker, the service and its dashboard, for the demonstration or for your app."""

from __future__ import annotations

import inspect
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

#: What to try; URL stands for the service's.
DEMONSTRATION = """
Try it in another terminal, or with buttons at URL/demo

  # a payment: send it twice, and there is one job; later, its result
  curl --json '{"order_id": "o-1", "amount": 500}' URL/jobs/demo.charge
  # a plan in stages; sent again while it runs it is refused: 409, with the job's id and state
  curl --json '{"project": "physics"}' URL/jobs/demo.plan_studies
  # kill -9 the process that runs a plan: another goes on, and does no finished stage again
  curl -X POST URL/demo/kill
  # a job that kills whoever runs it: with max_crashes=2, a dead letter at the third death
  curl --json '{"batch": "b-1"}' URL/jobs/demo.poison
  curl URL/dead-letters"""


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
@click.option("--api", default="", metavar="MODULE:APP", help="With -A, your own FastAPI or other ASGI app to serve.")
@app_option
@click.pass_obj
def up(target: Target, folder: Path, port: int, concurrency: int, api: str) -> None:
    """Start a private Valkey, a worker, the service and its dashboard; Ctrl-C ends them, and the data stays.

    Without an app it is a demonstration. With one (-A yourapp), its guarded tasks are served and run. The Valkey is
    where the app looks for its Redis on this machine, or is named to an app that names none; an app whose broker and
    store are there already gets no other.
    """
    if target.store:
        raise click.UsageError("--store is not for `up`, which takes the store that your app names: give -A yourapp")
    if api and not target.app:
        raise click.UsageError("--api is for an app of yours: give it with -A")
    once = _once(target)
    stack = _stack(target, once, folder, port=port, concurrency=concurrency, api=api)
    _require_broker(once)
    # A plain `kill`, or a terminal that is closed unless `nohup` was said, ends it as Ctrl-C does.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    try:
        with stack:
            _tell_where(stack, own=bool(api))
            if not api:
                click.echo((_to_try(once) if once else DEMONSTRATION).replace("URL", stack.service.url))
            while True:
                time.sleep(LOOK_EVERY)  # until Ctrl-C
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


def _stack(target: Target, once: Oncelery | None, folder: Path, *, port: int, concurrency: int, api: str) -> Stack:
    from oncelery.embedded.stack import Stack  # noqa: PLC0415 - Celery is not loaded for --help

    if once is None:
        app, api = "oncelery.embedded.playground", "oncelery.embedded.buttons:serve()"
        return Stack(folder, app=app, api=api, port=port, concurrency=concurrency)
    return Stack(
        folder,
        app=str(target.app),
        api=api or "oncelery.embedded.service:serve()",
        broker=once.app.conf.broker_url,
        store=once.settings.store,
        port=port,
        concurrency=concurrency,
    )


def _require_broker(once: Oncelery | None) -> None:
    """Refuse to start for a broker that is away, and that no Valkey of ours will be: the worker would wait long."""
    from oncelery.embedded.stack import port_wanted  # noqa: PLC0415 - as above

    if once and port_wanted(once.app.conf.broker_url) is None:
        try:
            once.broker.connect()
        except Exception as error:
            what = f"the broker does not answer: {type(error).__name__}: {error}"
            raise ConfigurationError(f"{what}; start it, or correct broker_url") from error


def _tell_where(stack: Stack, *, own: bool) -> None:
    """Say where everything is."""
    url = stack.service.url
    places = {"service": f"{url}/"} if own else {"dashboard": f"{url}/", "API": f"{url}/openapi.json"}
    if stack.server:
        places["Valkey"] = stack.server.url
    places["logs"] = ", ".join(_from_here(part.log_file) for part in (stack.service, stack.worker))
    click.echo("Oncelery is up. Ctrl-C stops it; `up` again goes on with the same data.\n")
    for name, place in places.items():
        click.echo(f"  {name:<11}{place}")


def _from_here(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _to_try(once: Oncelery) -> str:
    """Write how each task is called."""
    from oncelery.embedded.service import tasks_of  # noqa: PLC0415 - as above

    calls = []
    for task in tasks_of(once):
        arguments = ", ".join(f'"{name}": …' for name in inspect.signature(task.run).parameters)
        calls.append(f"  curl --json '{{{arguments}}}' URL/jobs/{task.name}")
    if not calls:
        return "\nNo task is guarded yet: declare one with @once.task(key=…)."
    return "\n".join(["\nTry it in another terminal:\n", *calls])
