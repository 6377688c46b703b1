"""The duplicates that the memory store has answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

from msgspec.structs import replace

from oncelery.job import Answer, Duplicate, DuplicateCount, Job, Page, Submission
from oncelery.stores.memory.entry import Entry


class Audit:
    """Who was answered what, in order."""

    def __init__(self) -> None:
        self._noted: list[Duplicate] = []

    def answer(self, now: datetime, entry: Entry, submission: Submission, answer: Answer) -> Job:
        """Count a duplicate on the job that answers it, and remember what it was answered."""
        job = entry.job = replace(entry.job, duplicates=entry.job.duplicates + 1)
        caller = submission.caller
        duplicate = Duplicate(at=now, job_id=job.id, task=job.task, scope=job.scope, caller=caller, answer=answer)
        self._noted.append(duplicate)
        return job

    def page(self, cursor: str, limit: int, task: str, scope: str) -> Page[Duplicate]:
        """Answer the newest first; the cursor is the place of the last one in the list."""
        older = self._noted[: int(cursor)] if cursor else self._noted
        places = [i for i, d in enumerate(older) if task in ("", d.task) and scope in ("", d.scope)][::-1]
        items = tuple(older[place] for place in places[:limit])
        return Page(items=items, cursor=str(places[limit - 1]) if len(places) > limit else "")

    def counts(self, since: datetime, task: str, scope: str) -> Sequence[DuplicateCount]:
        """Add up by hour, task, scope and answer, from the hour of `since` on."""
        chosen = (d for d in self._noted if task in ("", d.task) and scope in ("", d.scope))
        recent = (d for d in chosen if d.at >= _hour(since))
        counts = Counter((_hour(d.at), d.task, d.scope, d.answer) for d in recent)
        return [
            DuplicateCount(hour=hour, task=task, scope=scope, answer=answer, count=count)
            for (hour, task, scope, answer), count in sorted(counts.items())
        ]


def _hour(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
