"""How commands answer: tables for people, JSON for programs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec
from msgspec.structs import replace

from oncelery.codec import escaped
from oncelery.errors import ConfigurationError, OnceleryError
from oncelery.job import Failure, Job, JobSummary, Page
from oncelery.operations.jobs import Jobs

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.table import Table

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

#: How wide a table may be where no terminal says.
WIDTH_OF_A_PIPE = 200

#: No table is squeezed into less: a terminal that is narrower wraps its lines, and nothing is cut.
NARROWEST = 120

#: Columns of what people copy; these are never cut.
WHOLE = frozenset({"ID", "JOB"})

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

#: What a terminal obeys or what turns text around, and what cannot be written; not tabs and ends of lines.
_COMMANDS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_BREAK = re.compile(r"\s*\n\s*")
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
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is no time: write 30m, 2h, 7d or 2030-01-31T12:00", param, ctx)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def json_option(command: F) -> F:
    """Let a command be asked for JSON."""
    return click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")(command)


def page_options(command: F) -> F:
    """Let a list be asked for page after page."""
    command = click.option("--cursor", default="", help="Where the last page ended.")(command)
    return click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="How many.")(
        command
    )


def page_of(find: Callable[[], Page[T]], cursor: str) -> Page[T]:
    """Ask for a page; a cursor that no page ended with is wrong usage."""
    try:
        return find()
    except ValueError as error:
        if not cursor or isinstance(error, OnceleryError):
            raise
        raise click.BadParameter(f"no page of this list ended with {cursor!r}", param_hint="--cursor") from error


def print_page(page: Page[Any], shown: RenderableType) -> None:
    """Print what is shown of a page, and how the next one is asked for."""
    terminal = console()
    terminal.print(shown)
    if page.cursor:
        terminal.print(f"more: --cursor {page.cursor}")


def print_json(value: object) -> None:
    """Print a value as JSON."""
    click.echo(printable(json.dumps(value, indent=2, ensure_ascii=False, default=str)))


def printable(text: str) -> str:
    """Write out what a terminal would obey, as JSON does: the texts of jobs are anybody's."""
    return _COMMANDS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def console(*, narrowest: int = NARROWEST) -> Console:
    """Open the terminal for colours and tables; NO_COLOR switches colours off, and text is nothing but text.

    With `narrowest=0` it is as wide as the terminal, also when that changes.
    """
    try:
        from rich.console import Console  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "tables need the package 'rich': pip install 'oncelery[cli]', or add --json"
        ) from error
    width = None if sys.stdout.isatty() else WIDTH_OF_A_PIPE
    terminal = Console(width=width, highlight=False, markup=False, emoji=False, soft_wrap=True)
    if narrowest:
        terminal.width = max(terminal.width, narrowest)
    return terminal


def table(columns: Sequence[str], rows: Iterable[Sequence[RenderableType]]) -> Table:
    """Make a table without frames, and without columns in which nothing stands."""
    from rich.table import Column, Table  # noqa: PLC0415 - an extra

    lines = list(rows)
    filled = [number for number in range(len(columns)) if any(line[number] for line in lines)]
    headers = [Column(columns[number], no_wrap=columns[number] in WHOLE, overflow="fold") for number in filled]
    made = Table(*headers, box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for line in lines:
        made.add_row(*(cell(line[number]) for number in filled))
    return made


class Cropped:
    """A table that ends where the terminal does: lines that are wrapped cannot be drawn over."""

    def __init__(self, whole: RenderableType) -> None:
        self._whole = whole

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        """Draw it as wide as it would be printed, and leave out what has no place."""
        from rich.segment import Segment  # noqa: PLC0415 - an extra

        room = options.max_width
        for line in console.render_lines(self._whole, options.update(width=max(room, NARROWEST)), pad=False):
            yield from Segment.adjust_line_length(line, room, pad=False)
            yield Segment.line()


def cell(shown: RenderableType, style: str = "") -> RenderableType:
    """Give a text as it is, in one line; what is more than text stays what it is."""
    from rich.text import Text  # noqa: PLC0415 - an extra

    return Text(printable(_BREAK.sub(" ", shown)), style=style) if isinstance(shown, str) else shown


def coloured(text: str, word: str = "") -> RenderableType:
    """Give a text the colour of a word; that of its own, if none is given."""
    return cell(text, COLOURS.get(word or text, ""))


def error_of(failure: Failure | None) -> str:
    """Tell an error as Python does: its class, and what it says."""
    return f"{failure.type}: {failure.message}".removesuffix(": ") if failure else ""


def fields_of(job: Job, jobs: Jobs) -> dict[str, Any]:
    """Give all that the ledger knows of a job, in words that JSON has; of its call and result what may be shown."""
    told: dict[str, Any] = msgspec.to_builtins(
        replace(job, body=None, result=None, replaced_by=None, steps={}), enc_hook=dict
    )
    if call := jobs.call(job):
        told |= {"args": list(call.args), "kwargs": call.kwargs}
    told |= {"result": jobs.result(job), "steps": sorted(map(escaped, job.steps))}
    return _filled(told)


def listed_fields_of(job: JobSummary) -> dict[str, Any]:
    """Give what a list knows of a job, in words that JSON has."""
    return _filled(msgspec.to_builtins(job))


def _filled(told: dict[str, Any]) -> dict[str, Any]:
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
