"""Templates, what they may call, the names of static files, and the headers that keep a page to itself."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from starlette.requests import Request

if TYPE_CHECKING:
    from jinja2 import Environment

STATIC: Final = Path(__file__).parent / "static"
TEMPLATES: Final = Path(__file__).parent / "templates"

#: Nothing is loaded from elsewhere, nothing within a page runs or styles it, and no other page frames it.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

HEADERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Content-Security-Policy": POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "same-origin",
        "Cache-Control": "no-store",
        "Cross-Origin-Opener-Policy": "same-origin",
    }
)

#: The types of our static files; on some systems those that Python knows are wrong.
TYPES: Final[Mapping[str, str]] = MappingProxyType(
    {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".txt": "text/plain"}
)

_SIMPLE: Final = re.compile(r"[\w@:-][\w@:.-]*", re.ASCII)

#: The longest text of a value that a page shows.
LONGEST_VALUE: Final = 20_000


@cache
def version_of_static() -> str:
    """Name all static files as they are: another name after each change, so that browsers may keep them for ever."""
    read = blake2b(digest_size=6)
    for path in sorted(STATIC.iterdir()):
        read.update(path.name.encode() + b"\0" + path.read_bytes())
    return read.hexdigest()


def took(duration: timedelta) -> str:
    """Tell a duration in the two units that matter."""
    seconds = duration.total_seconds()
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:  # noqa: PLR2004 - a minute
        return f"{seconds:.3g} s"
    whole = round(seconds)
    for unit, name, smaller, part in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= unit:
            rest = whole % unit // smaller
            return f"{whole // unit} {name} {rest} {part}" if rest else f"{whole // unit} {name}"
    return f"{whole} s"


def iso(moment: datetime) -> str:
    """Write an instant for programs."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def clock(moment: datetime) -> str:
    """Write an instant for people, where no script says how long ago it was."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def number(value: float) -> str:
    """Write a number with its thousands parted."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


def written(value: object) -> str:
    """Write a value of a task as JSON, for people."""
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)


def pretty(value: object) -> str:
    """Write a value of a task as JSON, cut where nobody reads on."""
    whole = written(value)
    more = len(whole) - LONGEST_VALUE
    return whole if more <= 0 else f"{whole[:LONGEST_VALUE]}\n… {more:,} more characters"


@cache
def templates() -> Environment:
    """Give the templates, all of them compiled: nobody waits for that who opens the first page."""
    # Only who has a dashboard needs it.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"took": took, "iso": iso, "clock": clock, "number": number, "pretty": pretty}
    for name in environment.list_templates():
        environment.get_template(name)
    return environment


class Urls:
    """Makes the addresses of pages, wherever the dashboard is mounted."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/")

    def __call__(self, path: str = "/", /, **query: object) -> str:
        """Give a page's address; what is empty is left out."""
        asked = urlencode({name: str(value) for name, value in query.items() if value}, quote_via=quote)
        return f"{self.root}{path}{'?' if asked else ''}{asked}"

    def job(self, job_id: str) -> str:
        """Give the address of one job's story."""
        # In a path, browsers and servers have their own ideas of slashes, dots and line ends.
        return f"{self.root}/jobs/{job_id}" if _SIMPLE.fullmatch(job_id) else self("/job", job_id=job_id)

    def static(self, name: str) -> str:
        """Give the address of a static file as it is now."""
        return f"{self.root}/static/{version_of_static()}/{name}"


def urls_of(request: Request) -> Urls:
    """Give the addresses as this request sees them."""
    return Urls(request.scope.get("root_path", ""))


def render(template: str, values: Mapping[str, Any], *, live: bool = False) -> str:
    """Render a whole page, or only the part of it that changes while it is open."""
    return templates().get_template(template).render(values, layout="live.html" if live else "layout.html")
