"""How commands answer: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec
from msgspec.structs import replace

from oncelery.errors import ConfigurationError
from oncelery.job import Job
from oncelery.operations.jobs import Jobs

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

F = TypeVar("F", bound=Callable[..., Any])

#: How wide a table may be where no terminal says.
WIDTH_OF_A_PIPE = 200

#: One colour for each state and severity.
COLOURS = {
    "queued": "cyan",
    "running": "blue",
    "completed": "green",
    "buried": "red",
    "cancelled": "yellow",
    "error": "red",
    "warning": "yellow",
    "check": "bold",
}

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class Moment(click.ParamType[datetime]):
    """An instant: so long ago (30m, 2h, 7d), or as ISO 8601 writes it."""

    name = "time"

    def convert(self, value: str | datetime, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Read it; without a time zone it is UTC."""
        if isinstance(value, datetime):
            return value
        try:
            if value[-1:] in _UNITS:
                return datetime.now(UTC) - timedelta(**{_UNITS[value[-1]]: float(value[:-1])})
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is no time: write 30m, 2h, 7d or 2030-01-31T12:00", param, ctx)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def json_option(command: F) -> F:
    """Let a command be asked for JSON."""
    return click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")(command)


def tell(value: object) -> None:
    """Print a value as JSON."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def console() -> Console:
    """Open the terminal for colours and tables; NO_COLOR switches colours off."""
    try:
        from rich.console import Console  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "tables need the package 'rich': pip install 'oncelery[cli]', or add --json"
        ) from error
    return Console(width=None if sys.stdout.isatty() else WIDTH_OF_A_PIPE, highlight=False, soft_wrap=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[RenderableType]]) -> Table:
    """Make a table without frames."""
    from rich.table import Table  # noqa: PLC0415 - an extra

    made = Table(*columns, box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for row in rows:
        made.add_row(*row)
    return made


def coloured(text: str, word: str = "") -> RenderableType:
    """Give a text the colour of a word; that of its own, if none is given."""
    from rich.text import Text  # noqa: PLC0415 - an extra

    return Text(text, style=COLOURS.get(word or text, ""))


def fields_of(job: Job, jobs: Jobs) -> dict[str, Any]:
    """Give all that the ledger knows of a job, in words that JSON has; of its call and result what may be shown."""
    told: dict[str, Any] = msgspec.to_builtins(replace(job, body=None, result=None, steps={}), enc_hook=dict)
    if call := jobs.call(job):
        told |= {"args": list(call.args), "kwargs": call.kwargs}
    told |= {"result": jobs.result(job), "steps": sorted(job.steps)}
    return {name: value for name, value in told.items() if value not in (None, "", [], {})}


def ago(moment: datetime | None) -> str:
    """Tell how long ago something was, in one unit."""
    if moment is None:
        return ""
    seconds = (datetime.now(UTC) - moment).total_seconds()
    sign, seconds = ("in " if seconds < 0 else ""), abs(seconds)
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length:
            return f"{sign}{seconds / length:.0f}{unit}"
    return f"{sign}{seconds:.0f}s"
