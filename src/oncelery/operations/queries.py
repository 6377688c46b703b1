"""How operators ask: a Query, or its fields as keywords; one page, or all of them in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, TypedDict, TypeVar

from msgspec.structs import replace

from oncelery.job import Page, Query, State

T = TypeVar("T")


class Filters(TypedDict, total=False):
    """The fields of a Query, in the words that people write; what is left out means any."""

    #: One state or several, as members or as words: "buried", ["queued", "running"].
    states: State | str | Iterable[State | str]
    task: str
    scope: str
    #: Of the last change; both need a time zone.
    since: datetime | None
    until: datetime | None
    cursor: str
    #: How many to a page.
    limit: int


def query_of(query: Query | None, filters: Filters) -> Query:
    """Make one query of both; what is said by keyword counts."""
    fields: dict[str, Any] = dict(filters)
    if "states" in fields:
        fields["states"] = _states(fields["states"])
    unknown = fields.keys() - set(Query.__struct_fields__)
    if unknown:
        raise TypeError(f"no such filter: {', '.join(sorted(unknown))}")
    asked = replace(query or Query(), **fields)
    for name in ("since", "until"):
        moment: datetime | None = getattr(asked, name)
        if moment is not None and moment.tzinfo is None:
            raise ValueError(f"{name} must have a time zone, such as datetime.now(UTC); {moment} has none")
    if asked.limit < 1:
        raise ValueError(f"a page has at least one item, not {asked.limit}")
    return asked


def each(page_at: Callable[[str], Page[T]], cursor: str = "") -> Iterator[T]:
    """Give the items of all pages from a cursor on; a page is fetched when its first item is wanted."""
    while True:
        page = page_at(cursor)
        yield from page.items
        if not page.cursor:
            return
        cursor = page.cursor


def _states(given: State | str | Iterable[State | str]) -> frozenset[State]:
    try:
        return frozenset(State(state) for state in ([given] if isinstance(given, str) else given))
    except ValueError as error:
        raise ValueError(f"{error}; the states are {', '.join(State)}") from None
