"""Many at once, from one barrier: each race has exactly one winner, whoever it is."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import TypeVar

import pytest

from oncelery.answers import Existing, Fenced, Finished, RenewAnswer, Renewed, Reserved, Revived, Settled
from oncelery.job import Answer, Cause, Lease, OnDuplicate, Progress, Query, State
from oncelery.settlement import Complete, Release
from oncelery.stores.base import PUBLISH_GRACE, Store
from oncelery.testing.clock import FakeClock
from oncelery.testing.conformance.acts import (
    JOB,
    KEY,
    accepted,
    begin,
    buried,
    granted,
    lapsed,
    reserve,
    running,
    seen,
    work,
)
from oncelery.testing.conformance.fixtures import Fixtures, Opener
from oncelery.testing.conformance.fleet import Fleet

T = TypeVar("T")

#: How often a race between two is run: the order in which they come is left to the machine.
ROUNDS = 25

#: How long the slowest runner may take to the start, and the race to its end.
PATIENCE_SECONDS = 60


def race(*runners: Callable[[], T]) -> list[T]:
    """Start all runners at one moment, each in a thread of its own, and give their answers in order."""
    start = threading.Barrier(len(runners))

    def run(runner: Callable[[], T]) -> T:
        start.wait(PATIENCE_SECONDS)
        return runner()

    with ThreadPoolExecutor(len(runners)) as threads:
        return list(threads.map(run, runners, timeout=PATIENCE_SECONDS))


def _renew(store: Store, lease: Lease) -> RenewAnswer:
    return store.renew([lease])[0]


def kinds(answers: Sequence[object]) -> Counter[str]:
    """Count the answers by their class."""
    return Counter(type(answer).__name__ for answer in answers)


class ThreadRaces(Fixtures):
    """Threads of one process, on one store."""

    def test_of_many_begins_of_a_queued_job_one_is_granted(self, store: Store) -> None:
        accepted(store)

        answers = race(*[partial(begin, store, holder=str(n)) for n in range(64)])

        assert kinds(answers) == {"Granted": 1, "Busy": 63}
        assert (seen(store).attempt, seen(store).duplicates) == (1, 63)

    def test_of_many_begins_of_an_unknown_key_one_is_granted(self, store: Store) -> None:
        answers = race(*[partial(begin, store, work(str(n)), holder=str(n)) for n in range(64)])

        assert kinds(answers) == {"Granted": 1, "Busy": 63}
        assert len(store.find(Query()).items) == 1

    def test_of_many_begins_of_a_lapsed_run_one_takes_over(self, store: Store, clock: FakeClock) -> None:
        lapsed(store, clock)

        answers = race(*[partial(begin, store, holder=str(n)) for n in range(32)])

        assert kinds(answers) == {"Granted": 1, "Busy": 31}
        assert (seen(store).attempt, seen(store).crashes) == (2, 1)

    def test_the_same_holder_asking_many_times_at_once_has_one_grant(self, store: Store) -> None:
        grants = race(*[partial(granted, store, holder="me")] * 16)

        assert len({grant.lease for grant in grants}) == 1
        assert seen(store).attempt == 1

    def test_of_many_submissions_of_a_key_one_is_accepted(self, store: Store) -> None:
        answers = race(*[partial(reserve, store, str(n)) for n in range(200)])

        assert kinds(answers) == {"Reserved": 1, "Existing": 199}
        (winner,) = [answer.job for answer in answers if isinstance(answer, Reserved)]
        assert {answer.job.id for answer in answers if isinstance(answer, Existing)} == {winner.id}
        assert seen(store, winner.id).duplicates == 199
        assert [count.count for count in store.duplicate_counts(since=winner.created_at)] == [199]

    def test_behind_a_running_job_one_submission_waits_with_all_the_others_in_it(self, store: Store) -> None:
        running(store)

        answers = race(*[partial(reserve, store, str(n), on_duplicate=OnDuplicate.TRAIL) for n in range(16)])

        assert kinds(answers) == {"Reserved": 1, "Existing": 15}
        assert len(store.find(Query(states=frozenset({State.QUEUED}))).items) == 1

    def test_of_many_replacements_one_is_left(self, store: Store) -> None:
        answers = race(*[partial(reserve, store, str(n), on_duplicate=OnDuplicate.REPLACE) for n in range(16)])

        assert kinds(answers) == {"Reserved": 16}
        assert dict(store.tally().states) == dict.fromkeys(State, 0) | {State.QUEUED: 1, State.CANCELLED: 15}

    def test_a_renewal_or_a_takeover_wins(self, store: Store, clock: FakeClock) -> None:
        for number in range(ROUNDS):
            offer = work(f"job {number}", f"key {number}")
            lease = lapsed(store, clock, offer)

            renewal, takeover = race(partial(_renew, store, lease), partial(begin, store, offer, holder="second"))

            assert kinds([renewal, takeover]) in ({"Renewed": 1, "Busy": 1}, {"Fenced": 1, "Granted": 1})
            winner = "first" if isinstance(renewal, Renewed) else "second"
            assert seen(store, offer.id).holder == winner

    def test_a_completion_or_a_takeover_wins(self, store: Store, clock: FakeClock) -> None:
        for number in range(ROUNDS):
            offer = work(f"job {number}", f"key {number}")
            lease = lapsed(store, clock, offer)

            answers = race(
                partial(store.settle, lease, Complete(result=b"slow")),
                partial(begin, store, offer, holder="second"),
            )

            assert kinds(answers) in ({"Settled": 1, "Finished": 1}, {"Fenced": 1, "Granted": 1})

    def test_a_completion_or_a_forced_cancel_wins(self, store: Store) -> None:
        for number in range(ROUNDS):
            offer = work(f"job {number}", f"key {number}")
            lease = running(store, offer)

            settled, cancelled = race(
                partial(store.settle, lease, Complete(result=b"done")),
                partial(store.cancel, offer.id, reason="stop", force=True),
            )

            job = seen(store, offer.id)
            if job.state is State.COMPLETED:
                assert (settled, cancelled) == (Settled(State.COMPLETED), Finished(job))
            else:
                assert job.state is State.CANCELLED
                assert settled == Fenced(State.CANCELLED)
                assert job.result is None

    def test_a_completion_sent_many_times_at_once_completes_once(self, store: Store) -> None:
        lease = running(store)

        answers = race(*[partial(store.settle, lease, Complete(result=str(n).encode())) for n in range(16)])

        assert answers == [Settled(State.COMPLETED)] * 16
        assert seen(store).result in {str(n).encode() for n in range(16)}
        assert store.tally().states[State.COMPLETED] == 1

    def test_a_release_sent_many_times_at_once_counts_one_crash(self, store: Store) -> None:
        lease = running(store)

        answers = race(*[partial(store.settle, lease, Release(cause=Cause.CRASH))] * 16)

        assert answers == [Settled(State.QUEUED)] * 16
        assert (seen(store).crashes, len(seen(store).past)) == (1, 1)

    def test_a_trailing_submission_is_neither_lost_nor_stuck_when_its_front_ends(self, store: Store) -> None:
        for number in range(ROUNDS):
            key = f"key {number}"
            lease = running(store, work(f"front {number}", key, retention=timedelta(0)))

            settled, _ = race(
                partial(store.settle, lease, Complete(result=b"done")),
                partial(accepted, store, f"trail {number}", key, on_duplicate=OnDuplicate.TRAIL),
            )

            assert settled in (Settled(State.COMPLETED), Settled(State.COMPLETED, next_id=f"trail {number}"))
            assert running(store, work(f"trail {number}", key), holder="second").attempt == 1

    def test_no_sweeper_takes_what_another_has_taken(self, store: Store, clock: FakeClock) -> None:
        for number in range(60):
            accepted(store, f"job {number}", f"key {number}")
        lapsed(store, clock, work("run", "key of the run"))
        clock.now += PUBLISH_GRACE

        taken = race(*[partial(store.due, limit=20, empty_queues={"celery"})] * 8)

        ids = [job.id for jobs in taken for job in jobs]
        assert len(ids) == len(set(ids))
        rest = [job.id for job in store.due(limit=100, empty_queues={"celery"})]
        assert sorted(ids + rest) == sorted(["run", *(f"job {number}" for number in range(60))])

    def test_of_many_revivals_one_counts(self, store: Store) -> None:
        buried(store)

        answers = race(*[partial(store.revive, JOB)] * 8)

        assert kinds(answers) == {"Revived": 1, "NotBuried": 7}

    def test_of_two_revivals_into_one_key_one_is_accepted(self, store: Store) -> None:
        for number in range(ROUNDS):
            key, letters = f"key {number}", [f"{side} {number}" for side in ("left", "right")]
            for letter in letters:
                buried(store, work(letter, f"key of {letter}"))

            answers = race(
                *[partial(store.revive, letter, submission=work(f"new {letter}", key)) for letter in letters]
            )

            assert kinds(answers) == {"Resubmitted": 1, "Existing": 1}
            assert sorted(seen(store, letter).state for letter in letters) == [State.BURIED, State.CANCELLED]

    def test_two_dead_letters_that_take_each_others_keys_do_not_wait_for_each_other(self, store: Store) -> None:
        for number in range(ROUNDS):
            left, right = f"left {number}", f"right {number}"
            for letter in (left, right):
                buried(store, work(letter, f"key of {letter}"))

            answers = race(
                partial(store.revive, left, submission=work(f"new {left}", f"key of {right}")),
                partial(store.revive, right, submission=work(f"new {right}", f"key of {left}")),
            )

            assert kinds(answers) == {"Resubmitted": 2}

    def test_a_resubmission_or_a_new_submission_keeps_the_key(self, store: Store) -> None:
        for number in range(ROUNDS):
            key, letter, new, other = (f"{name} {number}" for name in ("key", "letter", "new", "other"))
            buried(store, work(letter, f"old {key}"))

            answers = race(
                partial(store.revive, letter, submission=work(new, key)), partial(reserve, store, other, key)
            )

            assert kinds(answers) in ({"Resubmitted": 1, "Existing": 1}, {"Existing": 1, "Reserved": 1})
            assert len({answer.job.id for answer in answers if hasattr(answer, "job")}) == 1

    def test_two_requests_for_one_work_at_once_are_one_job_that_both_find_again(self, store: Store) -> None:
        for number in range(ROUNDS):
            key = f"key {number}"
            offers = [work(f"{n}/{number}", key, alias=f"click {n}/{number}", digest=f"d{n}") for n in range(4)]

            answers = race(*[partial(store.reserve, offer, on_duplicate=OnDuplicate.JOIN) for offer in offers])

            assert kinds(answers) == {"Reserved": 1, "Existing": 3}
            winners = {answer.job.id for answer in answers if hasattr(answer, "job")}
            again = [reserve(store, "again", alias=offer.alias, digest=offer.digest) for offer in offers]
            found = {(answer.job.id, answer.repeated) for answer in again if isinstance(answer, Existing)}
            assert found == {(winner, True) for winner in winners}
            assert (len(again), len(winners)) == (4, 1)

    def test_of_one_request_with_many_payloads_at_once_one_is_accepted(self, store: Store) -> None:
        for number in range(ROUNDS):
            offers = [
                work(f"{n}/{number}", f"key {n}/{number}", alias=f"click {number}", digest=f"d{n}") for n in range(4)
            ]

            answers = race(*[partial(store.reserve, offer, on_duplicate=OnDuplicate.JOIN) for offer in offers])

            assert kinds(answers) == {"Reserved": 1, "Mismatched": 3}

    def test_a_revival_or_a_new_submission_keeps_the_key(self, store: Store) -> None:
        for number in range(ROUNDS):
            key = f"key {number}"
            buried(store, work(f"dead {number}", key))

            revived, reserved = race(
                partial(store.revive, f"dead {number}"),
                partial(reserve, store, f"new {number}", key),
            )

            assert isinstance(revived, Revived) != isinstance(reserved, Reserved)
            assert isinstance(revived, Existing) != isinstance(reserved, Existing)

    def test_of_many_values_of_a_step_one_stays(self, store: Store) -> None:
        lease = running(store)

        race(*[partial(store.record, lease, step=("paid", str(n).encode())) for n in range(16)])
        (kept,) = seen(store).steps.values()
        race(*[partial(store.record, lease, step=("paid", b"late"), progress=Progress(done=1))] * 4)

        assert dict(seen(store).steps) == {"paid": kept}

    def test_pruning_and_reviving_do_not_meet(self, store: Store, clock: FakeClock) -> None:
        for number in range(ROUNDS):
            buried(store, work(f"job {number}", f"key {number}", retention=timedelta(0), history=timedelta(0)))
            clock.advance(seconds=1)

            revived, pruned = race(partial(store.revive, f"job {number}"), partial(store.prune, limit=10))

            assert isinstance(revived, Revived)
            assert pruned == 0
            assert seen(store, f"job {number}").state is State.QUEUED

    def test_deliveries_are_counted_each(self, store: Store) -> None:
        accepted(store)

        answers = race(*[partial(store.received, JOB, limit=50)] * 16)

        assert sorted(getattr(answer, "received", 0) for answer in answers) == list(range(1, 17))

    def test_decisions_are_counted_each(self, store: Store) -> None:
        race(*[partial(store.count, {("t", "run"): 1})] * 16)

        assert dict(store.tally().decisions) == {("t", "run"): 16}


class ProcessRaces(Fixtures):
    """Processes that open the same ledger, on the clock of its server."""

    @pytest.fixture(scope="class")
    @classmethod
    def fleet(cls) -> Iterator[Fleet]:
        """Give the processes that all races of the class share; they are started when one is run."""
        with Fleet(size=8) as fleet:
            yield fleet

    @pytest.fixture
    def ledger(self, opener: Opener) -> Iterator[Store]:
        """Give the store as the other processes see it."""
        store = opener()
        if not store.shared:
            pytest.skip("the store is not shared: other processes do not see its ledger")
        yield store
        store.close()

    def test_of_a_thousand_begins_by_eight_processes_one_is_granted(
        self, ledger: Store, opener: Opener, fleet: Fleet
    ) -> None:
        accepted(ledger)

        answers = fleet.race("begin", opener, each=125)

        assert Counter(answers) == {"Granted": 1, "Busy": 999}
        assert (seen(ledger).attempt, seen(ledger).duplicates) == (1, 999)

    def test_of_submissions_by_eight_processes_one_is_accepted(
        self, ledger: Store, opener: Opener, fleet: Fleet
    ) -> None:
        answers = fleet.race("reserve", opener, each=25)

        assert Counter(answers) == {"Reserved": 1, "Existing": 199}
        job = ledger.last(KEY)
        assert job is not None
        assert job.duplicates == 199
        assert {duplicate.answer for duplicate in ledger.duplicates().items} == {Answer.JOINED}

    def test_no_process_sweeps_what_another_has_taken(self, ledger: Store, opener: Opener, fleet: Fleet) -> None:
        for number in range(100):
            running(ledger, work(f"job {number}", f"key {number}"), lease=timedelta(microseconds=1))

        taken = fleet.race("sweep", opener, each=2)

        # A sweeper may pass over what another is at; then it is due at the next call.
        rest = [job.id for job in ledger.due(limit=100)]
        assert sorted(taken + rest) == sorted(f"job {number}" for number in range(100))

    def test_eight_processes_run_each_job_once(self, ledger: Store, opener: Opener, fleet: Fleet) -> None:
        for number in range(25):
            accepted(ledger, f"job {number}", f"key {number}")

        done = fleet.race("work", opener, each=25)

        assert sorted(done) == sorted(f"job {number}" for number in range(25))
        assert ledger.tally().states[State.COMPLETED] == 25
