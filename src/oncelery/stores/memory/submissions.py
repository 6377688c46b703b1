"""What becomes of a submission to the memory store: a new job, or one that exists."""

from __future__ import annotations

from datetime import datetime

from oncelery import answers as a
from oncelery.job import REVIVED_AS, Answer, OnDuplicate, State, Submission
from oncelery.stores.memory.audit import Audit
from oncelery.stores.memory.entry import Entry
from oncelery.stores.memory.shelf import Shelf


class Submissions:
    """Accepts submissions, or answers them with the job that has their id, their alias or their key."""

    def __init__(self, shelf: Shelf, audit: Audit) -> None:
        self._shelf = shelf
        self._audit = audit

    def reserve(self, now: datetime, submission: Submission, on_duplicate: OnDuplicate) -> a.ReserveAnswer:
        """Answer as `Store.reserve` promises."""
        known = self._shelf.readable(now, submission.id)
        if known:
            if known.job.key != submission.key:
                return a.Mismatched(known.job)
            fresh = known.job.state is State.QUEUED and known.job.begun_at is None
            return a.Reserved(known.job) if fresh else a.Existing(known.job)
        if named := self._shelf.named(now, submission.alias):
            return self._repeat(now, *named, submission)
        answer = self._reserve_by_key(now, submission, on_duplicate)
        if isinstance(answer, a.Existing) and not (answer.job.state.live and on_duplicate is OnDuplicate.REJECT):
            self._shelf.bind(submission, answer.job.id)
        return answer

    def _repeat(self, now: datetime, entry: Entry, digest: str, submission: Submission) -> a.Existing | a.Mismatched:
        if differ(submission.digest, digest):
            return a.Mismatched(self._audit.answer(now, entry, submission, Answer.REFUSED))
        answer = Answer.REPLAYED if entry.job.state is State.COMPLETED else Answer.JOINED
        return a.Existing(self._audit.answer(now, entry, submission, answer), repeated=True)

    def _reserve_by_key(self, now: datetime, submission: Submission, on_duplicate: OnDuplicate) -> a.ReserveAnswer:
        keeper = self._shelf.keeper(now, submission.key)
        if keeper is None:
            return self._shelf.full(now, submission) or a.Reserved(self._shelf.accept(now, submission).job)
        if keeper.job.state is State.COMPLETED or on_duplicate in (OnDuplicate.JOIN, OnDuplicate.REJECT):
            return self._join(now, keeper, submission, on_duplicate)
        if on_duplicate is OnDuplicate.TRAIL:
            return self._trail(now, keeper, submission)
        if keeper.job.state is State.RUNNING or keeper.trail_id:
            return a.Existing(self._audit.answer(now, keeper, submission, Answer.JOINED))
        keeper.cancel(now, "replaced")
        self._shelf.ended(now, keeper)
        return a.Reserved(self._shelf.accept(now, submission).job)

    def _join(
        self, now: datetime, keeper: Entry, submission: Submission, on_duplicate: OnDuplicate
    ) -> a.Existing | a.Mismatched:
        if differ(submission.key_digest, keeper.job.digest):
            return a.Mismatched(self._audit.answer(now, keeper, submission, Answer.REFUSED))
        if keeper.job.state is State.COMPLETED:
            answer = Answer.REPLAYED
        else:
            answer = Answer.REJECTED if on_duplicate is OnDuplicate.REJECT else Answer.JOINED
        return a.Existing(self._audit.answer(now, keeper, submission, answer))

    def _trail(self, now: datetime, front: Entry, submission: Submission) -> a.Reserved | a.Existing | a.Full:
        if front.job.begun_at and not front.trail_id:
            return self._shelf.full(now, submission) or a.Reserved(
                self._shelf.accept_behind(now, front, submission).job
            )
        waiting = self._shelf.entries[front.trail_id] if front.trail_id else front
        waiting.amend(submission.body, submission.key_digest)
        return a.Existing(self._audit.answer(now, waiting, submission, Answer.AMENDED))

    def resubmit(self, now: datetime, letter: Entry, submission: Submission) -> a.Resubmitted | a.Existing:
        """Accept other work in the place of a dead letter, unless a job does it or has done it."""
        other = self._shelf.readable(now, submission.id) or self._shelf.keeper(now, submission.key)
        if other:
            return a.Existing(other.job)
        letter.discard(now, f"{REVIVED_AS}{submission.id}")
        return a.Resubmitted(self._shelf.accept(now, submission).job)


def differ(one: str, other: str) -> bool:
    """Whether both payloads have a digest and they differ."""
    return bool(one and other and one != other)
