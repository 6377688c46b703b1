"""Any sequence of verbs is answered as the reference store answers it, and breaks no invariant on the way."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from msgspec.structs import replace

from oncelery.answers import Granted
from oncelery.job import (
    ALIAS_RETENTION,
    Cause,
    Job,
    JobSummary,
    Lease,
    OnDuplicate,
    Progress,
    Query,
    Reason,
    State,
    Submission,
)
from oncelery.settlement import Bury, Cancel, Complete, Release, Settlement
from oncelery.stores.base import Store
from oncelery.stores.memory import MemoryStore
from oncelery.testing.clock import FakeClock
from oncelery.testing.conformance.acts import BOOM, seen
from oncelery.testing.conformance.fixtures import Fixtures

#: More than there can be at once.
ALL = 1000

#: Longer than any delay, lease or history of the model.
LONG = timedelta(days=2)

#: Longer than aliases are answered at least.
HISTORY = timedelta(hours=25)

#: Between two verbs, so that no two changes have the same time.
MOMENT = timedelta(milliseconds=1)

# Few names, so that they meet. Each id belongs to one key; under another one it comes only as an error of its sender.
KEYS = {"a": "key 1", "b": "key 1", "c": "key 1", "d": "key 2"}
STRANGE = "key 3"

names = st.sampled_from(sorted(KEYS))
queues = st.sampled_from(["q1", "q2"])
# What is usual comes often: a rare thing ends a job early, and then nothing more can happen to it.
bodies = st.sampled_from([b"one", b"one", b"two", b"two", b"", None])
delays = st.sampled_from([timedelta(0), timedelta(0), timedelta(0), timedelta(seconds=15)])
offers = st.builds(
    Submission,
    id=names,
    key=st.sampled_from(["", "", "", "", STRANGE]),
    task=st.just(""),
    body=bodies,
    alias=st.sampled_from(["", "", "", "x", "y"]),
    digest=st.sampled_from(["", "", "", "d1", "d2"]),
    follows=st.sampled_from(["", "", "f1", "f2"]),
    scope=st.sampled_from(["", "s"]),
    queue=queues,
    delay=delays,
    retention=st.sampled_from([timedelta(0), timedelta(minutes=1), timedelta(hours=1)]),
    history=st.just(HISTORY),
)
terms = st.fixed_dictionaries(
    {
        "holder": st.sampled_from(["h1", "h2", "h3"]),
        "worker": st.just("w"),
        "lease": st.sampled_from([timedelta(seconds=10), timedelta(seconds=30)]),
        "max_crashes": st.sampled_from([2, 2, 1, 0]),
        "hold": st.sampled_from([False, False, False, True]),
    }
)
#: Which lease, counted from the one that was granted last; and what is wrong with it, if it is a stranger who has it.
claims = st.tuples(
    st.sampled_from([0, 0, 0, 1, 2, 3, 5]),
    st.sampled_from([{}, {}, {}, {"holder": "h1"}, {"holder": "h2"}, {"fence": -1}, {"fence": 1}]),
)
settlements: st.SearchStrategy[Settlement] = st.one_of(
    st.builds(
        Complete,
        result=st.sampled_from([b"", b"result"]),
        replaced_by=st.sampled_from([None, b"another"]),
        omitted=st.sampled_from(["", "too large"]),
    ),
    st.builds(
        Release,
        cause=st.sampled_from(Cause),
        delay=delays,
        error=st.sampled_from([None, BOOM]),
        body=st.sampled_from([None, None, b"three"]),
    ),
    st.builds(Bury, reason=st.sampled_from([Reason.FAILED, Reason.EXHAUSTED]), error=st.sampled_from([None, BOOM])),
    st.builds(Cancel, reason=st.just("heeded")),
)


Claim = tuple[int, dict[str, Any]]
J = TypeVar("J", bound=JobSummary)


class Model(Fixtures):
    """The reference store is the model of all others."""

    def test_any_sequence_of_verbs_is_answered_as_the_reference_answers_it(
        self, store: Store, clock: FakeClock
    ) -> None:
        comparison = type("Comparison", (Comparison,), {"store": store, "clock": clock})
        run_state_machine_as_test(
            comparison,
            settings=settings(
                max_examples=self.model_examples,
                stateful_step_count=self.model_steps,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )


class Comparison(RuleBasedStateMachine):
    """Says every verb to the store and to the reference, and compares what they answer and keep."""

    store: ClassVar[Store]
    clock: ClassVar[FakeClock]
    #: Tells the names of one example from those of another: audit and counters of a ledger are never emptied.
    example: ClassVar = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.reference = MemoryStore(clock=self.clock)
        self.mark = f"example {next(self.example)}"
        self.leases: dict[tuple[str, int, str], Lease] = {}
        self.was_set_back = False
        #: By how much the clock is ahead.
        self.ahead = timedelta(0)
        #: Jobs that had ended when we last looked; they stay as they are.
        self.ended: dict[tuple[str, datetime], Job] = {}

    # Time

    @rule(by=st.sampled_from([0.1, 5, 10, 15, 30, 60, 3_600]))
    def wait(self, by: float) -> None:
        self.clock.advance(seconds=by)

    @rule(by=st.sampled_from([0.0137, 20.0131]))
    def set_back(self, by: float) -> None:
        self.was_set_back = True
        self.clock.advance(seconds=-by)

    @rule(by=st.sampled_from([15, 1_800, 80_000]))
    def leap(self, by: float) -> None:
        """Let the clock be ahead for the next verb that is said."""
        if not self.ahead:
            self.was_set_back = True
            self.ahead = timedelta(seconds=by)
            self.clock.now += self.ahead

    @rule(which=st.integers(0, 9))
    def wait_for_an_edge(self, which: int) -> None:
        """To the very moment at which a lease, a delay, a retention or a history is over, as the next verb is said."""
        jobs = self.jobs(self.reference)
        ends = {job.settled_at + HISTORY for job in jobs if job.settled_at}
        ends |= {job.settled_at + ALIAS_RETENTION for job in jobs if job.settled_at}
        edges = {edge for job in jobs for edge in (job.lease_until, job.not_before, job.retained_until) if edge} | ends
        ahead = sorted(edge for edge in edges if edge > self.clock.now + MOMENT)
        if ahead:
            self.clock.now = ahead[which % len(ahead)] - MOMENT

    # Verbs

    @rule(offer=offers, on_duplicate=st.sampled_from(OnDuplicate))
    def reserve(self, offer: Submission, on_duplicate: OnDuplicate) -> None:
        offer = self.named(offer)
        self.same(lambda store: store.reserve(offer, on_duplicate=on_duplicate))

    @rule(offer=offers, terms=terms)
    def begin(self, offer: Submission, terms: dict[str, Any]) -> None:
        offer = self.named(offer)
        answer = self.same(lambda store: store.begin(offer, **terms))
        if isinstance(answer, Granted):
            self.note_grant(answer.lease)

    @rule(offer=offers, terms=terms, settlement=settlements)
    def run(self, offer: Submission, terms: dict[str, Any], settlement: Settlement) -> None:
        """Begin and settle at once: so more of the sequences come far."""
        grants = len(self.leases)
        self.begin(offer, terms)
        if len(self.leases) > grants:
            self.same(lambda store: store.settle(self.lease((0, {})), settlement))

    @precondition(lambda self: self.leases)
    @rule(chosen=st.lists(claims, min_size=1, max_size=3))
    def renew(self, chosen: list[Claim]) -> None:
        self.same(lambda store: list(store.renew([self.lease(claim) for claim in chosen])))

    @precondition(lambda self: self.leases)
    @rule(claim=claims, settlement=settlements)
    def settle(self, claim: Claim, settlement: Settlement) -> None:
        self.same(lambda store: store.settle(self.lease(claim), settlement))

    @precondition(lambda self: self.leases)
    @rule(claim=claims, step=st.sampled_from([None, ("s1", b"one"), ("s1", b"two")]), done=st.integers(0, 2))
    def record(self, claim: Claim, step: tuple[str, bytes] | None, done: int) -> None:
        progress = Progress(done=done, total=2, stage="stage") if done else None
        self.same(lambda store: store.record(self.lease(claim), progress=progress, step=step))

    @rule(name=names, reason=st.sampled_from(["r1", "r2"]), force=st.booleans())
    def cancel(self, name: str, reason: str, force: bool) -> None:  # noqa: FBT001
        self.same(lambda store: store.cancel(self.name(name), reason=reason, force=force))

    @rule(name=names)
    def withdraw(self, name: str) -> None:
        self.same(lambda store: store.withdraw(self.name(name), reason="withdrawn"))

    @rule(name=names, body=bodies)
    def revive(self, name: str, body: bytes | None) -> None:
        self.ended = {named: job for named, job in self.ended.items() if job.id != self.name(name)}
        self.same(lambda store: store.revive(self.name(name), body=body))

    @rule(name=names, offer=offers)
    def resubmit(self, name: str, offer: Submission) -> None:
        self.ended = {named: job for named, job in self.ended.items() if job.id != self.name(name)}
        # As a caller makes it: under an id that nobody has had.
        fresh = next((one for one in KEYS if self.reference.get(self.name(one)) is None), offer.id)
        offer = self.named(replace(offer, id=fresh, body=offer.body or b"mended"))
        self.same(lambda store: store.revive(self.name(name), submission=offer))

    @rule(name=names)
    def discard(self, name: str) -> None:
        self.ended = {named: job for named, job in self.ended.items() if job.id != self.name(name)}
        self.same(lambda store: store.discard(self.name(name)))

    @rule(name=names, limit=st.integers(0, 2), seconds=st.sampled_from([None, 0, 1, 30]))
    def received(self, name: str, limit: int, seconds: int | None) -> None:
        lease = None if seconds is None else timedelta(seconds=seconds)
        self.same(lambda store: store.received(self.name(name), limit=limit, lease=lease))

    @rule(empty=st.sets(queues))
    def due(self, empty: set[str]) -> None:
        self.same(lambda store: _by_id(store.due(limit=ALL, empty_queues=empty)))

    # Where the clock was set back, stores may keep what is past its history for longer, and each for another time.
    @precondition(lambda self: not self.was_set_back)
    @rule(limit=st.sampled_from([1, ALL]))
    def prune(self, limit: int) -> None:
        self.same(lambda store: sum(iter(lambda: store.prune(limit=limit), 0)))

    @rule(states=st.sets(st.sampled_from(State)), limit=st.integers(1, 3))
    def find(self, states: set[State], limit: int) -> None:
        query = Query(states=frozenset(states), task=self.mark, limit=limit)
        self.same(lambda store: _by_id(_all_pages(store, query)))
        self.check_order(_all_pages(self.store, query))

    @rule()
    def tally(self) -> None:
        tally, expected = self.store.tally(), self.reference.tally()
        # What is past its history may be counted until it is pruned.
        counted = (State.QUEUED, State.RUNNING, State.BURIED)
        assert [tally.states[state] for state in counted] == [expected.states[state] for state in counted]
        assert (tally.lapsed, tally.overdue) == (expected.lapsed, expected.overdue)

    # What must be true after each

    @invariant()
    def nothing_is_amiss(self) -> None:
        jobs = self.jobs(self.store)
        assert _by_id(jobs) == _by_id(self.jobs(self.reference))
        self.check_order(jobs)
        for key in {*KEYS.values(), STRANGE}:
            assert self.store.last(self.name(key)) == self.reference.last(self.name(key))
        for job in jobs:
            _check_fields(job)
            _check_company(job, [other for other in jobs if other.key == job.key and other is not job])
        self.check_ended(jobs)

    def check_order(self, jobs: Sequence[JobSummary]) -> None:
        changes = [job.changed_at for job in jobs]
        # Where the clock was set back, what changed later may say that it was earlier.
        assert self.was_set_back or changes == sorted(changes, reverse=True), "newest change first"

    def check_ended(self, jobs: list[Job]) -> None:
        # By the time as well: an id that is past its history may be used again.
        ended = {(job.id, job.created_at): replace(job, duplicates=0) for job in jobs if not job.state.live}
        for name, job in self.ended.items():
            assert ended.get(name, job) == job, "what has ended stays as it is"
        self.ended = ended

    def note_grant(self, lease: Lease) -> None:
        earlier = [other for other in self.leases.values() if other.key == lease.key]
        if (lease.job_id, lease.fence, lease.holder) in self.leases:
            return
        # Where a key is forgotten and the clock then set back, a fence may come again; its holder does not.
        assert self.was_set_back or all(lease.fence > other.fence for other in earlier), "a fence grows with each grant"
        self.leases[lease.job_id, lease.fence, lease.holder] = lease

    def teardown(self) -> None:
        try:
            assert self.audit(self.store) == self.audit(self.reference)
            self.find_every_live_job_due()
        finally:
            self.empty_the_ledger()

    def find_every_live_job_due(self) -> None:
        """A live job is published again one day, or ends: otherwise it would be lost."""
        self.clock.now += LONG
        before = {job.id for job in self.jobs(self.store) if job.state.live and not job.behind}
        taken = {job.id for job in self.store.due(limit=ALL) if job.state.live}
        assert before - {job.id for job in self.jobs(self.store) if not job.state.live} == taken

    # How it is done

    def same(self, say: Callable[[Store], object]) -> object:
        """Say it to both, a moment later than anything before; they must answer the same."""
        self.clock.now += MOMENT
        answer, expected = say(self.store), say(self.reference)
        assert answer == expected
        self.clock.now -= self.ahead
        self.ahead = timedelta(0)
        return answer

    def name(self, name: str) -> str:
        return f"{self.mark}: {name}"

    def named(self, offer: Submission) -> Submission:
        job_id, key = self.name(offer.id), self.name(KEYS[offer.id])
        if offer.key and self.reference.get(job_id):
            key = self.name(offer.key)
        alias = offer.alias and self.name(offer.alias)
        return replace(offer, id=job_id, key=key, alias=alias, task=self.mark, caller=offer.id)

    def lease(self, claim: Claim) -> Lease:
        age, wrong = claim
        lease = list(self.leases.values())[-1 - age % len(self.leases)]
        return replace(lease, holder=wrong.get("holder", lease.holder), fence=lease.fence + wrong.get("fence", 0))

    def jobs(self, store: Store) -> list[Job]:
        return [seen(store, job.id) for job in store.find(Query(task=self.mark, limit=ALL)).items]

    def audit(self, store: Store) -> object:
        since = self.clock.now - LONG * 100
        counts = store.duplicate_counts(since=since, task=self.mark)
        return store.duplicates(task=self.mark, limit=ALL).items, set(counts)

    def empty_the_ledger(self) -> None:
        """Leave nothing to the next example, by verbs alone."""
        for job in self.jobs(self.store):
            self.store.cancel(job.id, reason="the example is over", force=True)
            self.store.discard(job.id)
        self.clock.now += LONG
        self.store.prune(limit=ALL)


def _check_fields(job: Job) -> None:
    assert (job.settled_at is None) == job.state.live
    assert (job.lease_until is not None) == (job.state is State.RUNNING)
    assert (job.retained_until is not None) == (job.result is not None) == (job.state is State.COMPLETED)
    assert job.not_before is None or job.state is State.QUEUED
    assert not job.cancel_requested or job.state is State.RUNNING
    assert job.body is None or job.state not in (State.COMPLETED, State.CANCELLED)


def _check_company(job: Job, others: list[Job]) -> None:
    live = [other for other in others if other.state.live]
    if job.state.live and job.behind:
        assert [other.id for other in live] == [job.behind], "it waits behind the one live job of its key"
    elif job.state.live:
        assert all(other.behind == job.id for other in live), "a key has one live job, and one that waits behind it"


def _by_id(jobs: Sequence[J]) -> list[J]:
    return sorted(jobs, key=lambda job: job.id)


def _all_pages(store: Store, query: Query) -> list[JobSummary]:
    page = store.find(query)
    jobs = [*page.items]
    while page.cursor:
        page = store.find(replace(query, cursor=page.cursor))
        jobs += page.items
    return jobs
