"""Bugs planted in the memory store: the suite must catch each, or it would not catch it in another store either."""

# ruff: noqa: ANN401, SLF001 - a bug sits inside the store, and takes whatever the place of its planting is given

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from oncelery import answers as a
from oncelery.codec import escaped
from oncelery.job import EPOCH, Job, Lease, State, Submission
from oncelery.settlement import Complete, Settlement
from oncelery.stores import open_store
from oncelery.stores.memory import store as store_module
from oncelery.stores.memory import submissions as submissions_module
from oncelery.stores.memory.audit import Audit
from oncelery.stores.memory.entry import Entry
from oncelery.stores.memory.shelf import Shelf
from oncelery.stores.memory.store import MemoryStore, atomic
from oncelery.stores.memory.submissions import Submissions
from oncelery.testing.conformance import Opener, StoreConformance
from stores.planting import first_false_sentence

Original = Callable[..., Any]
Bug = Callable[[pytest.MonkeyPatch], None]
BUGS: dict[str, Bug] = {}


def bug(owner: object, name: str) -> Callable[[Callable[..., Any]], None]:
    """Plant a function in the place of another; it is given the original first."""

    def plant(wrong: Callable[..., Any]) -> None:
        original = getattr(owner, name)

        @functools.wraps(wrong)
        def instead(*args: Any, **kwargs: Any) -> Any:
            return wrong(original, *args, **kwargs)

        BUGS[wrong.__name__.replace("_", " ").strip()] = lambda patch: patch.setattr(owner, name, instead)

    return plant


# Ownership


@bug(Entry, "last_run_was")
def the_fence_is_not_compared(_: Original, entry: Entry, lease: Lease) -> bool:
    return entry.job.holder == lease.holder


@bug(Entry, "last_run_was")
def the_holder_is_not_compared(_: Original, entry: Entry, lease: Lease) -> bool:
    return entry.job.fence == lease.fence


@bug(Entry, "last_run_was")
def an_older_fence_will_do(_: Original, entry: Entry, lease: Lease) -> bool:
    return entry.job.fence >= lease.fence and entry.job.holder == lease.holder


@bug(Entry, "unaware_of")
def a_grant_that_was_undone_is_taken_for_superseded(_: Original, _entry: Entry, _lease: Lease) -> bool:
    return False


@bug(MemoryStore, "settle")
def a_lapsed_lease_may_not_settle(original: Original, store: MemoryStore, lease: Lease, how: Settlement) -> object:
    job = store.get(lease.job_id)
    lapsed = job and job.lease_until and job.lease_until <= store._clock()
    return a.Fenced(State.RUNNING) if lapsed else original(store, lease, how)


@bug(MemoryStore, "_renew")
def a_lapsed_lease_may_not_renew(original: Original, store: MemoryStore, now: datetime, lease: Lease) -> object:
    job = store._shelf.entries[lease.job_id].job if lease.job_id in store._shelf.entries else None
    lapsed = job and job.lease_until and job.lease_until <= now
    return a.Fenced(State.RUNNING) if lapsed else original(store, now, lease)


@bug(Entry, "supersede")
def a_forced_cancel_leaves_the_run_its_claim(_: Original, _entry: Entry) -> None:
    pass


@bug(Entry, "settled_by")
def a_settlement_sent_again_is_refused(_: Original, _entry: Entry, _lease: Lease, _how: Settlement) -> bool:
    return False


@bug(Entry, "owned_by")
def a_completion_sent_again_completes_again(original: Original, entry: Entry, lease: Lease) -> bool:
    return original(entry, lease) or (entry.job.state is State.COMPLETED and entry.last_run_was(lease))


# Fences


@bug(Entry, "grant")
def the_fence_is_only_the_clock(original: Original, entry: Entry, now: datetime, **terms: Any) -> None:
    original(entry, now, **terms)
    entry.job = replace(entry.job, fence=(now - EPOCH) // timedelta(microseconds=1))


@bug(Entry, "grant")
def the_fence_is_only_a_counter(original: Original, entry: Entry, now: datetime, **terms: Any) -> None:
    fence = entry.job.fence + 1
    original(entry, now, **terms)
    entry.job = replace(entry.job, fence=fence)


@bug(Shelf, "fence")
def each_job_starts_a_fence_of_its_own(_: Original, _shelf: Shelf, _key: str) -> int:
    return 0


# Crashes


@bug(Entry, "end_run")
def crashes_are_not_counted(original: Original, entry: Entry, *args: Any) -> None:
    crashes = entry.job.crashes
    original(entry, *args)
    entry.job = replace(entry.job, crashes=crashes)


@bug(Entry, "queue")
def crashes_are_counted_per_delivery(original: Original, entry: Entry, *args: Any) -> None:
    original(entry, *args)
    entry.job = replace(entry.job, crashes=0)


@bug(Entry, "end_run")
def a_handback_counts_as_an_attempt(original: Original, entry: Entry, *args: Any) -> None:
    attempt = entry.job.attempt
    original(entry, *args)
    entry.job = replace(entry.job, attempt=attempt)


@bug(Entry, "forbids_rerun")
def hold_is_ignored(original: Original, entry: Entry, max_crashes: int, *, hold: bool) -> object:  # noqa: ARG001
    return original(entry, max_crashes, hold=False)


@bug(Entry, "forbids_rerun")
def one_crash_too_many_is_allowed(original: Original, entry: Entry, max_crashes: int, *, hold: bool) -> object:
    return original(entry, max_crashes + 1, hold=hold)


@bug(Entry, "grant")
def deliveries_are_counted_for_ever(original: Original, entry: Entry, now: datetime, **terms: Any) -> None:
    received = entry.received
    original(entry, now, **terms)
    entry.received = received


# Time


@bug(Entry, "lapsed")
def a_lease_lapses_an_instant_late(_: Original, entry: Entry, now: datetime) -> bool:
    return entry.job.lease_until is not None and entry.job.lease_until < now


@bug(Job, "keeps_key")
def retention_never_ends(_: Original, job: Job, _now: datetime) -> bool:
    return job.state.live or job.state is State.COMPLETED


@bug(Job, "keeps_key")
def retention_is_ignored(_: Original, job: Job, _now: datetime) -> bool:
    return job.state.live


@bug(Job, "keeps_key")
def retention_ends_an_instant_late(_: Original, job: Job, now: datetime) -> bool:
    return job.state.live or bool(job.retained_until and job.retained_until >= now)


@bug(Entry, "readable")
def live_jobs_expire(original: Original, entry: Entry, now: datetime) -> bool:
    return original(entry, now) and (not entry.job.state.live or entry.job.created_at + entry.history > now)


@bug(Entry, "readable")
def dead_letters_expire(original: Original, entry: Entry, now: datetime) -> bool:
    settled_at = entry.job.settled_at
    return original(entry, now) and (settled_at is None or settled_at + entry.history > now)


@bug(Entry, "renew")
def a_renewal_never_shortens_a_lease(original: Original, entry: Entry, now: datetime, lease: timedelta) -> datetime:
    until: datetime = max(entry.job.lease_until or now, original(entry, now, lease))
    entry.job = replace(entry.job, lease_until=until)
    return until


@bug(Entry, "queue")
def a_released_job_may_begin_at_once(original: Original, entry: Entry, now: datetime, delay: timedelta) -> None:
    original(entry, now, delay)
    entry.job = replace(entry.job, not_before=None)


# Clocks that were ahead


@bug(Entry, "set_right")
def what_a_clock_ahead_has_written_stays(_: Original, _entry: Entry, _now: datetime) -> None:
    pass


@bug(Entry, "set_right")
def a_lease_of_a_clock_ahead_stays(original: Original, entry: Entry, now: datetime) -> None:
    until = entry.job.lease_until
    original(entry, now)
    entry.job = replace(entry.job, lease_until=until)


@bug(Shelf, "watermark")
def a_watermark_later_than_now_counts(_: Original, shelf: Shelf, _now: datetime, queue: str) -> datetime:
    return shelf._watermarks.get(queue, EPOCH)


@bug(Entry, "follow")
def a_job_that_waits_no_more_says_nothing_of_it(original: Original, entry: Entry, now: datetime, fence: int) -> None:
    changed_at = entry.job.changed_at
    original(entry, now, fence)
    entry.job = replace(entry.job, changed_at=changed_at)


# Sweeping


@bug(Entry, "resend")
def due_sets_no_next_check(_: Original, _entry: Entry, *_times: datetime) -> None:
    pass


@bug(Entry, "is_readable")
def due_takes_what_the_sweeper_cannot_read(_: Original, _entry: Entry, _formats: object) -> bool:
    return True


@bug(Entry, "resend")
def due_raises_the_fence(original: Original, entry: Entry, *times: datetime) -> None:
    original(entry, *times)
    entry.job = replace(entry.job, fence=entry.job.fence + 1)


@bug(Entry, "resend")
def due_does_not_wait_longer_each_time(original: Original, entry: Entry, *times: datetime) -> None:
    original(entry, *times)
    entry.resent = 1


@bug(Entry, "resend")
def what_is_merely_old_is_lost(original: Original, entry: Entry, now: datetime, _sent_before: datetime) -> None:
    original(entry, now, now)


@bug(Entry, "resend")
def what_is_old_is_merely_old(original: Original, entry: Entry, now: datetime, _sent_before: datetime) -> None:
    original(entry, now, EPOCH)


@bug(Entry, "resend")
def a_sign_tells_nothing_of_what_was_published_for_its_age(original: Original, entry: Entry, *times: datetime) -> None:
    original(entry, *times)
    entry.resent = max(entry.resent, 1)


@bug(Entry, "renew")
def a_renewal_does_not_move_the_check(original: Original, entry: Entry, now: datetime, lease: timedelta) -> object:
    check = entry.next_check
    until = original(entry, now, lease)
    entry.next_check = check
    return until


@bug(Entry, "missing")
def what_is_old_is_lost(original: Original, entry: Entry, now: datetime, _sent_before: datetime) -> bool:
    return bool(original(entry, now, now))


@bug(Entry, "missing")
def the_watermark_is_ignored(original: Original, entry: Entry, now: datetime, sent_before: datetime) -> bool:
    return bool(original(entry, now, now if sent_before == now else EPOCH))


@bug(Shelf, "raise_watermark")
def every_grant_moves_the_watermark(_: Original, shelf: Shelf, now: datetime, entry: Entry) -> None:
    shelf._watermarks[entry.job.queue] = max(shelf.watermark(now, entry.job.queue), entry.sent_at)


# Trails, revivals, duplicates


@bug(Shelf, "ended")
def a_burial_forgets_the_one_that_trails(original: Original, shelf: Shelf, now: datetime, entry: Entry) -> Job:
    return entry.job if entry.job.state is State.BURIED else original(shelf, now, entry)


@bug(Entry, "follow")
def a_freed_job_is_published_by_a_sign_only(original: Original, entry: Entry, now: datetime, fence: int) -> None:
    original(entry, now, fence)
    entry.next_check = now + timedelta(hours=1)


@bug(Entry, "amend")
def an_amended_body_does_not_reach_the_worker(original: Original, entry: Entry, *args: Any) -> None:
    original(entry, *args)
    entry.amended = False


@bug(MemoryStore, "revive")
def a_revival_ignores_a_newer_job(
    original: Original, store: MemoryStore, job_id: str, *, body: bytes | None = None, **other: Any
) -> object:
    if other:
        return original(store, job_id, body=body, **other)

    @atomic
    def careless(store: MemoryStore, now: datetime) -> a.ReviveAnswer:
        entry = store._shelf.readable(now, job_id)
        if entry is None:
            return a.Absent()
        if entry.job.state is not State.BURIED:
            return a.NotBuried(entry.job)
        entry.amend(body, entry.job.digest)
        entry.revive(now, store._shelf.fence(entry.job.key))
        store._shelf.make_last(entry)
        return a.Revived(entry.job)

    return careless(store)


@bug(Entry, "revive")
def a_revival_keeps_the_crashes(original: Original, entry: Entry, now: datetime, fence: int) -> None:
    crashes = entry.job.crashes
    original(entry, now, fence)
    entry.job = replace(entry.job, crashes=crashes)


@bug(Entry, "bury")
def a_dead_letter_loses_its_body(original: Original, entry: Entry, *args: Any) -> None:
    original(entry, *args)
    entry.job = replace(entry.job, body=None)


@bug(Entry, "complete")
def what_replaced_the_task_is_forgotten(original: Original, entry: Entry, now: datetime, how: Complete) -> None:
    original(entry, now, replace(how, replaced_by=None))


@bug(Entry, "complete")
def why_the_result_is_omitted_is_forgotten(original: Original, entry: Entry, now: datetime, how: Complete) -> None:
    original(entry, now, replace(how, omitted=""))


@bug(Entry, "complete")
def what_replaced_the_task_is_its_result(original: Original, entry: Entry, now: datetime, how: Complete) -> None:
    original(entry, now, replace(how, result=how.replaced_by or how.result))


@bug(Entry, "record")
def a_step_is_kept_under_the_escape_of_its_name(
    original: Original, entry: Entry, progress: object, step: tuple[str, bytes] | None
) -> None:
    original(entry, progress, (escaped(step[0]), step[1]) if step else None)


@bug(Entry, "record")
def a_steps_last_value_stays(
    original: Original, entry: Entry, progress: object, step: tuple[str, bytes] | None
) -> None:
    original(entry, progress, None)
    if step:
        entry.job = replace(entry.job, steps={**entry.job.steps, step[0]: step[1]})


@bug(submissions_module, "differ")
def another_payload_gets_the_result(_: Original, _one: str, _other: str) -> bool:
    return False


@bug(store_module, "differ")
def another_payload_is_run_as_a_duplicate(_: Original, _one: str, _other: str) -> bool:
    return False


@bug(Audit, "answer")
def duplicates_are_not_counted(
    _: Original, _audit: Audit, _now: datetime, entry: Entry, _offer: Submission, _answer: object
) -> Job:
    return entry.job


# Aliases


@bug(Shelf, "named")
def an_alias_is_forgotten(_: Original, _shelf: Shelf, _now: datetime, _alias: str) -> None:
    return None


@bug(Shelf, "named")
def the_payload_of_an_alias_is_not_compared(original: Original, *args: Any) -> object:
    named = original(*args)
    return named and (named[0], "")


BUGS["another payload under another alias is refused"] = lambda patch: patch.setattr(
    Submission, "key_digest", property(lambda offer: offer.digest)
)


@bug(Shelf, "bind")
def an_alias_is_bound_to_a_new_job_only(original: Original, shelf: Shelf, offer: Submission, job_id: str) -> None:
    if offer.id == job_id:
        original(shelf, offer, job_id)


@bug(Shelf, "bind")
def a_job_has_any_number_of_aliases(_: Original, shelf: Shelf, offer: Submission, job_id: str) -> None:
    if offer.alias:
        shelf._aliases[offer.alias] = job_id, offer.digest


@bug(Shelf, "bind")
def an_alias_stays_with_a_job_that_failed(original: Original, shelf: Shelf, offer: Submission, job_id: str) -> None:
    if offer.alias not in shelf._aliases:
        original(shelf, offer, job_id)


@bug(Submissions, "_reserve_by_key")
def a_rejected_request_is_bound_to_the_job_in_its_way(
    original: Original, those: Submissions, now: datetime, offer: Submission, how: object
) -> object:
    answer = original(those, now, offer, how)
    if isinstance(answer, a.Existing):
        those._shelf.bind(offer, answer.job.id)
    return answer


@bug(Entry, "answers_alias")
def an_alias_is_answered_no_longer_than_the_key(_: Original, entry: Entry, now: datetime) -> bool:
    return entry.job.keeps_key(now)


@bug(Entry, "answers_alias")
def an_alias_is_answered_with_a_failure(original: Original, entry: Entry, now: datetime) -> bool:
    return original(entry, now) or entry.job.state in (State.BURIED, State.CANCELLED)


@bug(Entry, "answers_alias")
def an_alias_is_answered_past_the_history(original: Original, entry: Entry, now: datetime) -> bool:
    return original(entry, now) or entry.job.state is State.COMPLETED


@bug(Shelf, "forget")
def aliases_outlive_their_job(original: Original, shelf: Shelf, job: Job) -> None:
    aliases = shelf._aliases
    original(shelf, job)
    shelf._aliases = aliases


# Other work in the place of a dead letter


@bug(Submissions, "resubmit")
def other_work_ignores_the_job_of_its_key(
    _: Original, those: Submissions, now: datetime, letter: Entry, offer: Submission
) -> object:
    letter.discard(now, f"revived as {offer.id}")
    return a.Resubmitted(those._shelf.accept(now, offer).job)


@bug(Submissions, "resubmit")
def a_dead_letter_stays_beside_what_takes_its_place(
    _: Original, those: Submissions, now: datetime, _letter: Entry, offer: Submission
) -> object:
    keeper = those._shelf.keeper(now, offer.key)
    return a.Existing(keeper.job) if keeper else a.Resubmitted(those._shelf.accept(now, offer).job)


@bug(store_module, "_position")
def a_page_ends_in_the_middle_of_an_instant(_: Original, job: Job) -> str:
    return job.changed_at.isoformat(timespec="microseconds")


def test_the_store_without_a_bug_keeps_every_sentence() -> None:
    assert first_false_sentence(_fresh) is None


@pytest.mark.parametrize("name", BUGS)
def test_the_suite_catches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[name](monkeypatch)

    assert first_false_sentence(_fresh) is not None


def test_the_races_catch_a_begin_that_looks_first_and_grants_later(monkeypatch: pytest.MonkeyPatch) -> None:
    all_have_looked = threading.Barrier(64)

    def begin(store: MemoryStore, offer: Submission, **terms: Any) -> object:
        job = store.get(offer.id)
        all_have_looked.wait(60)
        if job is None or job.state is not State.QUEUED:
            return a.Absent()
        entry = store._shelf.entries[offer.id]
        entry.grant(store._clock(), holder=terms["holder"], worker="", lease=terms["lease"])
        return entry.granted(offer, terms["lease"])

    monkeypatch.setattr(MemoryStore, "begin", begin)

    with pytest.raises(AssertionError):
        StoreConformance().test_of_many_begins_of_a_queued_job_one_is_granted(MemoryStore())


def _fresh() -> Opener:
    return functools.partial(open_store, "memory://")
