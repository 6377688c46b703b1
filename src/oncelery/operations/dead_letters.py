"""`once.dead_letters`: jobs that nobody runs any more, and their ways back or out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Any, Protocol, Unpack, assert_never

from msgspec.structs import replace

from oncelery.answers import Absent, DiscardAnswer, Discarded, Existing, NotBuried, Resubmitted, ReviveAnswer, Revived
from oncelery.errors import OnceleryError, RevivalError, StoreUnavailableError
from oncelery.job import Job, JobSummary, Page, Query, State, Submission
from oncelery.ledger import Ledger
from oncelery.operations.queries import Filters, each, query_of

#: Why nothing became of a job that was named.
NO_SUCH_JOB = "there is no such job: it never was, or its history is over"

_logger = logging.getLogger("oncelery")


class Rewrite(Protocol):
    """Writes the body of a dead letter for its new life."""

    def __call__(self, job: Job, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> bytes | Submission:
        """Write it with other arguments, if any are given; as a submission if these make it other work.

        Raises if it cannot be read, or not be called like this.
        """


class Fate(StrEnum):
    """What became of one dead letter among many."""

    #: It is queued again.
    REVIVED = "revived"
    #: Its corrected arguments are other work, which is queued as a new job in its place.
    RESUBMITTED = "resubmitted"
    #: It has ended for good.
    DISCARDED = "discarded"
    #: It stays: another job of its key is or was doing the work.
    SUPERSEDED = "superseded"
    #: It stays, or is gone: `why` tells.
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One dead letter, and what became of it."""

    job_id: str
    task: str
    scope: str
    fate: Fate
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fates:
    """What `revive_many` or `discard_many` has done; after a dry run, what it would do."""

    items: tuple[Item, ...]
    dry_run: bool

    def __getitem__(self, fate: Fate | str) -> tuple[Item, ...]:
        """Those that share a fate: `fates["failed"]`."""
        return tuple(item for item in self.items if item.fate == fate)


class DeadLetters:
    """Looks at dead letters, revives and discards them."""

    def __init__(self, ledger: Ledger, *, publish: Callable[[Job], object], rewrite: Rewrite) -> None:
        self._ledger = ledger
        self._publish = publish
        self._rewrite = rewrite

    def get(self, job_id: str) -> Job | None:
        """Find a dead letter by its id; None if there is no such job, or it is none."""
        job = self._ledger.get(job_id)
        return job if job and job.state is State.BURIED else None

    def find(self, query: Query | None = None, **filters: Unpack[Filters]) -> Page[JobSummary]:
        """Give one page of dead letters, the newest first; its cursor leads to the next one."""
        return self._ledger.find(_buried(query, filters))

    def each(self, query: Query | None = None, **filters: Unpack[Filters]) -> Iterator[JobSummary]:
        """Give all dead letters that match, the newest first, page after page."""
        asked = _buried(query, filters)
        return each(lambda cursor: self._ledger.find(replace(asked, cursor=cursor)), asked.cursor)

    def revive(
        self, job_id: str, *, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> ReviveAnswer:
        """Queue a dead letter again and publish it at once; with `args` or `kwargs`, corrected by these.

        Attempts and retries start again from zero, and it no longer expires; finished steps are kept. Arguments that
        make another key are other work: the dead letter is cancelled and a new job, with a new id and no steps, is
        queued in its place, in one step (Resubmitted). If a live or completed job has that key, that one is the answer
        (Existing), and the dead letter stays.

        Raises:
            RevivalError: its call cannot be read, or does not fit its task; it stays what it is.
        """
        job = self._dead(job_id)
        if not isinstance(job, Job):
            return job
        written = self._rewritten(job, args, kwargs)
        if isinstance(written, Submission):
            answer = self._ledger.revive(job_id, submission=written)
        else:
            answer = self._ledger.revive(job_id, body=written)
        if isinstance(answer, Revived | Resubmitted):
            self._send(answer.job)
        return answer

    def revive_many(
        self,
        query: Query | None = None,
        *,
        dry_run: bool = False,
        progress: Callable[[Item], object] = lambda _item: None,
        **filters: Unpack[Filters],
    ) -> Fates:
        """Revive all dead letters that match, each for itself; a dry run only tells which.

        `progress` is called after each. If the store goes away half-way its error is raised; the same call then goes
        on where this one ended.
        """
        revive = self._rehearsal() if dry_run else self.revive
        # One that is revived and buried again has changed later than where the pages have come to: it comes but once.
        items = _act_on_each(self.each(query, **filters), revive, progress)
        return Fates(items=items, dry_run=dry_run)

    def rehearse(
        self, *job_ids: str, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> dict[str, tuple[Fate, str]]:
        """Tell what would become of these, and why, if they were revived one after the other; change nothing."""
        revive = self._rehearsal(args, kwargs)
        return {job_id: fate_after(revive, job_id) for job_id in job_ids}

    def discard(self, job_id: str, *, dry_run: bool = False) -> DiscardAnswer:
        """End a dead letter for good: it is cancelled, and whatever message of it is still under way runs nothing.

        A dry run only tells what would be answered.
        """
        if dry_run:
            job = self._dead(job_id)
            return Discarded(job) if isinstance(job, Job) else job
        return self._ledger.discard(job_id)

    def discard_many(
        self,
        query: Query | None = None,
        *,
        dry_run: bool = False,
        progress: Callable[[Item], object] = lambda _item: None,
        **filters: Unpack[Filters],
    ) -> Fates:
        """Discard all dead letters that match, each for itself; a dry run only tells which. Else as `revive_many`."""
        discard = partial(self.discard, dry_run=dry_run)
        return Fates(items=_act_on_each(self.each(query, **filters), discard, progress), dry_run=dry_run)

    def _dead(self, job_id: str) -> Job | NotBuried | Absent:
        job = self._ledger.get(job_id)
        if job is None:
            return Absent()
        return job if job.state is State.BURIED else NotBuried(job)

    def _rewritten(self, job: Job, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> bytes | Submission:
        """Write the body for its new life, or the submission of the work that it would then be."""
        try:
            return self._rewrite(job, args, kwargs)
        except OnceleryError:
            raise
        except Exception as error:
            # A call that does not fit its task is the letter's fault, and told; anything else may be one of ours.
            if not isinstance(error, TypeError):
                _logger.exception("could not revive job %s", job.id)
            raise RevivalError(f"{type(error).__name__}: {error}", key=job.key, job_id=job.id) from error

    def _rehearsal(
        self, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> Callable[[str], ReviveAnswer]:
        return partial(self._rehearse, {}, args, kwargs)

    def _rehearse(
        self,
        revived: dict[str, Job],
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        job_id: str,
    ) -> ReviveAnswer:
        """Answer what `revive` would, after others were `revived`; change nothing."""
        job = self._dead(job_id)
        if not isinstance(job, Job):
            return job
        written = self._rewritten(job, args, kwargs)
        key = written.key if isinstance(written, Submission) else job.key
        keeper = revived.get(key) or self._ledger.last(key)
        if keeper and keeper.id != job.id and _keeps_key(keeper):
            return Existing(keeper)
        if isinstance(written, Submission):
            # Its id is made only when it is really revived.
            return Resubmitted(replace(written, id="").accepted(datetime.now(UTC)))
        revived[key] = replace(job, state=State.QUEUED)
        return Revived(job)

    def _send(self, job: Job) -> None:
        try:
            self._publish(job)
        except Exception as error:  # noqa: BLE001 - of whatever kind: the job is queued, and the sweeper watches it
            _logger.warning("job %s is revived, but could not be published; the sweeper will: %s", job.id, error)


def _keeps_key(job: Job) -> bool:
    # By this machine's clock: only a forecast, that the store then decides by its own.
    return job.keeps_key(datetime.now(UTC))


def _buried(query: Query | None, filters: Filters) -> Query:
    return replace(query_of(query, filters), states=frozenset({State.BURIED}))


def _act_on_each(
    jobs: Iterable[JobSummary],
    act: Callable[[str], ReviveAnswer | DiscardAnswer],
    progress: Callable[[Item], object],
) -> tuple[Item, ...]:
    items = []
    for job in jobs:
        fate, why = fate_after(act, job.id)
        items.append(Item(job_id=job.id, task=job.task, scope=job.scope, fate=fate, why=why))
        progress(items[-1])
    return tuple(items)


def fate_of(answer: ReviveAnswer | DiscardAnswer) -> tuple[Fate, str]:
    """Tell in words what became of a dead letter, and why."""
    match answer:
        case Revived():
            return Fate.REVIVED, ""
        case Resubmitted(job):
            return Fate.RESUBMITTED, f"as {f'job {job.id}' if job.id else 'a new job'}: the arguments make another key"
        case Discarded():
            return Fate.DISCARDED, ""
        case Existing(job):
            return Fate.SUPERSEDED, f"by job {job.id}, which is {job.state}"
        case NotBuried(job):
            return Fate.FAILED, f"it is {job.state}"
        case Absent():
            return Fate.FAILED, NO_SUCH_JOB
        case _:
            assert_never(answer)


def fate_after(act: Callable[[str], ReviveAnswer | DiscardAnswer], job_id: str) -> tuple[Fate, str]:
    """Revive or discard one among many, and tell what became of it, and why; only a store that is away is raised."""
    try:
        return fate_of(act(job_id))
    except StoreUnavailableError:
        raise
    except OnceleryError as error:
        return Fate.FAILED, str(error)
