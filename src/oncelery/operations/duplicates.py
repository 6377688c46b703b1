"""`once.duplicates`: who was answered what, and how often."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from oncelery.job import Duplicate, DuplicateCount, Page
from oncelery.ledger import Ledger
from oncelery.operations.queries import each

#: How far back the counts go if nothing is said.
DEFAULT_SPAN = timedelta(hours=24)


class Duplicates:
    """The audit of duplicates: the newest 100,000 one by one, and all of the last 90 days by the hour."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def find(self, *, task: str = "", scope: str = "", cursor: str = "", limit: int = 50) -> Page[Duplicate]:
        """Give one page of answered duplicates, newest first; its cursor leads to the next one."""
        return self._ledger.duplicates(cursor=cursor, limit=limit, task=task, scope=scope)

    def each(self, *, task: str = "", scope: str = "") -> Iterator[Duplicate]:
        """Give all answered duplicates that match, newest first, page after page."""
        return each(lambda cursor: self.find(task=task, scope=scope, cursor=cursor))

    def counts(
        self, *, since: datetime | timedelta = DEFAULT_SPAN, task: str = "", scope: str = ""
    ) -> Sequence[DuplicateCount]:
        """Count by hour, task, scope and answer, oldest first: from an instant on, or for the last so many hours."""
        start = datetime.now(UTC) - since if isinstance(since, timedelta) else since
        if start.tzinfo is None:
            raise ValueError(f"since must have a time zone, such as datetime.now(UTC); {start} has none")
        return self._ledger.duplicate_counts(since=start, task=task, scope=scope)
