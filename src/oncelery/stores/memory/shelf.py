"""All jobs of the memory store: by id, the last one of each key, and how far each queue has come."""

from __future__ import annotations

from datetime import datetime, timedelta

from oncelery.answers import Full
from oncelery.job import ALIASES_KEPT, EPOCH, LAPSED, Cause, Job, State, Submission
from oncelery.stores.memory.entry import Entry

MINUTE = timedelta(minutes=1)


class Shelf:
    """Finds entries, and keeps the job of a key and the one that waits behind it in step."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self._last: dict[str, str] = {}
        #: The job of each alias, and the digest that it was bound with.
        self._aliases: dict[str, tuple[str, str]] = {}
        self._watermarks: dict[str, datetime] = {}
        self._paces: dict[str, datetime] = {}

    def readable(self, now: datetime, job_id: str) -> Entry | None:
        """Find a job that is still to be shown."""
        entry = self.entries.get(job_id)
        return entry if entry and entry.readable(now) else None

    def last(self, now: datetime, key: str) -> Entry | None:
        """Find the newest job of a key."""
        return self.readable(now, self._last.get(key, ""))

    def keeper(self, now: datetime, key: str) -> Entry | None:
        """Find the job that a new submission under this key gets back."""
        entry = self.entries.get(self._last.get(key, ""))
        return entry if entry and entry.job.keeps_key(now) else None

    def named(self, now: datetime, alias: str) -> tuple[Entry, str] | None:
        """Find the job that a request under this alias gets back, and the digest of the alias."""
        job_id, digest = self._aliases.get(alias, ("", ""))
        entry = self.entries.get(job_id)
        return (entry, digest) if entry and entry.answers_alias(now) else None

    def bind(self, submission: Submission, job_id: str) -> None:
        """Make the submission's alias, if it has one, a name of this job."""
        others = sum(owner == job_id for owner, _ in self._aliases.values())
        if submission.alias and others < ALIASES_KEPT:
            self._aliases[submission.alias] = job_id, submission.digest

    def set_right(self, now: datetime) -> None:
        """Take back what a clock that was ahead has written."""
        for entry in self.entries.values():
            entry.set_right(now)

    def watermark(self, now: datetime, queue: str) -> datetime:
        """Return when the newest of a queue's jobs that have begun was sent.

        A time later than now was written by a clock that was ahead, and counts as none.
        """
        sent_at = self._watermarks.get(queue, EPOCH)
        return sent_at if sent_at <= now else EPOCH

    def raise_watermark(self, now: datetime, entry: Entry) -> None:
        """Note that a job begins; only a first, undelayed message tells when others of its queue should have come."""
        if entry.job.begun_at is None and entry.sent_at == entry.job.created_at:
            self._watermarks[entry.job.queue] = max(self.watermark(now, entry.job.queue), entry.sent_at)

    def accept(self, now: datetime, submission: Submission) -> Entry:
        """Put up a new job as the last one of its key."""
        entry = Entry.accept(submission, now, fence=self.fence(submission.key))
        self._put(entry, submission)
        self.make_last(entry)
        return entry

    def accept_behind(self, now: datetime, front: Entry, submission: Submission) -> Entry:
        """Put up a new job that waits until another has ended."""
        entry = Entry.accept(submission, now, fence=front.job.fence, behind=front.job.id)
        self._put(entry, submission)
        front.trail_id = submission.id
        return entry

    def full(self, now: datetime, submission: Submission) -> Full | None:
        """Say that the scope has what it may have; else take this submission's part of its time."""
        quota, scope = submission.quota, submission.scope
        if quota is None or not scope:
            return None
        active = sum(entry.job.scope == scope and entry.job.state.live for entry in self.entries.values())
        if quota.max_active and active >= quota.max_active:
            return Full()
        if quota.per_minute:
            # More than a minute ahead is only what was taken before the clock was set back.
            taken = min(max(self._paces.get(scope, now), now), now + MINUTE)
            part = MINUTE / quota.per_minute
            fits = taken + part <= now + MINUTE
            self._paces[scope] = taken + part if fits else taken
            if not fits:
                return Full(taken + part - now - MINUTE)
        return None

    def forget_paces(self, now: datetime) -> None:
        """Forget times that are over."""
        self._paces = {scope: taken for scope, taken in self._paces.items() if taken > now}

    def _put(self, entry: Entry, submission: Submission) -> None:
        past_history = self.entries.get(entry.job.id)
        if past_history:
            self.forget(past_history.job)
        self.entries[entry.job.id] = entry
        self.bind(submission, entry.job.id)

    def fence(self, key: str) -> int:
        """Tell the fence that the last job of a key has reached."""
        last = self.entries.get(self._last.get(key, ""))
        return last.job.fence if last else 0

    def make_last(self, entry: Entry) -> None:
        """Make this the job that its key stands for."""
        self._last[entry.job.key] = entry.job.id

    def ended(self, now: datetime, entry: Entry) -> Job:
        """If the job has ended, let the one that waits behind it follow."""
        if not entry.job.state.live:
            front = self.entries.get(entry.job.behind)
            if front:
                front.trail_id = ""
            trail = self.entries.get(entry.trail_id)
            if trail:
                trail.follow(now, entry.job.fence)
                self.make_last(trail)
        return entry.job

    def end_lapsed(self, now: datetime, entry: Entry) -> Job:
        """End a job that nobody can take over, or whose cancellation is asked for."""
        if entry.job.state is State.RUNNING:
            entry.end_run(now, Cause.LAPSE)
        entry.supersede()
        entry.cancel(now, entry.cancel_reason or LAPSED)
        return self.ended(now, entry)

    def forget(self, job: Job) -> None:
        """Take a job away, and its aliases; its key with it, if that stands for no newer one."""
        del self.entries[job.id]
        self._aliases = {alias: bound for alias, bound in self._aliases.items() if bound[0] != job.id}
        if self._last.get(job.key) == job.id:
            del self._last[job.key]
