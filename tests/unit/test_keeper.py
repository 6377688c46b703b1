"""The prefork parent's help, without children: what it reads on the board and asks of the ledger."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from billiard.process import current_process
from kombu.exceptions import ContentDisallowed
from msgspec.structs import replace

from oncelery.answers import Granted, RenewAnswer
from oncelery.celery import keeper
from oncelery.celery.background import Background
from oncelery.celery.board import Board
from oncelery.events import Event, LeaseLost
from oncelery.job import Cause, Lease, State, Submission
from oncelery.ledger import Ledger
from oncelery.policy import Policy
from oncelery.settlement import Complete, Release
from oncelery.stores.memory import MemoryStore
from oncelery.testing.clock import FakeClock


class Parent:
    """A worker's main process and the one child of it: both are this process, with a clock that a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = FakeClock()
        self.ledger = Ledger(MemoryStore(clock=self.clock))
        self.board = Board()
        self.told: list[Event] = []
        self.ledger.events.subscribe(self.told.append)
        self.asked: list[Sequence[Lease]] = []
        renew = self.ledger.renew

        def note(leases: Sequence[Lease]) -> Sequence[RenewAnswer]:
            self.asked.append(leases)
            return renew(leases)

        monkeypatch.setattr(self.ledger, "renew", note)
        monkeypatch.setattr(self.board, "_parent", os.getppid())
        monkeypatch.setattr(current_process(), "index", 0, raising=False)
        monkeypatch.setattr(keeper, "monotonic", lambda: self.clock().timestamp())
        self._consumer: Any = SimpleNamespace(
            app=SimpleNamespace(
                oncelery=SimpleNamespace(
                    ledger=self.ledger,
                    board=self.board,
                    background=Background(),
                    broker=SimpleNamespace(bounded=nullcontext),
                )
            ),
            pool=SimpleNamespace(maintain_pool=lambda: None),
        )
        self._keeper = keeper.Keeper(self._consumer)

    def forget_everything(self) -> None:
        self.ledger.store = MemoryStore(clock=self.clock)

    def begin(self, job_id: str, *, holder: str | None = None) -> Lease:
        submission = Submission(id=job_id, key=job_id[-1] * 64, task="charge", body=b"{}")
        granted = self.ledger.begin(submission, Policy(lease=timedelta(seconds=1)), holder=holder)
        assert isinstance(granted, Granted)
        return granted.lease

    def look(self, *, after: float) -> None:
        self.clock.advance(seconds=after)
        self._keeper._look(self._consumer)  # noqa: SLF001 - as the worker's timer does

    def is_held(self, lease: Lease) -> bool:
        job = self.ledger.get(lease.job_id)
        return bool(job and job.lease_until and job.lease_until > self.clock())


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch) -> Parent:
    return Parent(monkeypatch)


def test_the_parent_renews_the_lease_of_a_child_that_does_not(parent: Parent) -> None:
    lease = parent.begin("job-1")

    with parent.board.show(lease):
        for _ in range(4):
            parent.look(after=0.6)
            assert parent.is_held(lease)


def test_the_parent_asks_for_a_lost_lease_once(parent: Parent) -> None:
    lease = parent.begin("job-1")

    with parent.board.show(lease):
        parent.clock.advance(seconds=5)
        parent.begin("job-1")
        for _ in range(4):
            parent.look(after=0.6)

    assert parent.asked == [[lease]]


@pytest.mark.parametrize("verb", ["renew", "settle"])
def test_a_child_that_settles_while_the_parent_asks_has_lost_nothing(
    parent: Parent, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    lease, ask = parent.begin("job-1"), getattr(parent.ledger, verb)

    def settle_first(*args: object) -> object:
        parent.ledger.store.settle(lease, Complete(result=b"done"))
        return ask(*args)

    with parent.board.show(lease):
        monkeypatch.setattr(parent.ledger, verb, settle_first)
        # To let go of a job is what the parent does when it finds the child dead.
        monkeypatch.setattr(keeper, "_is_alive", lambda _pid: verb == "renew")
        parent.look(after=0.6)

    assert LeaseLost not in {type(event) for event in parent.told}


def test_the_parent_renews_the_lease_under_which_a_lost_job_was_recorded_again(parent: Parent) -> None:
    lost = parent.begin("job-1")
    with parent.board.show(lost):
        parent.forget_everything()
        parent.look(after=0.6)
        lease = parent.begin("job-1", holder=lost.holder)
        parent.board.show_instead(lease)
        for _ in range(4):
            parent.look(after=0.6)

        assert parent.is_held(lease)


def test_a_lease_inside_another_one_stays_shown_when_the_outer_is_recorded_again(parent: Parent) -> None:
    outer, inner = parent.begin("job-1"), parent.begin("job-2")

    with parent.board.show(outer), parent.board.show(inner):
        parent.board.show_instead(replace(outer, fence=outer.fence + 1))

        assert [held.lease for held in parent.board.held()] == [inner]


def test_the_next_lease_of_a_child_that_lost_one_is_renewed(parent: Parent) -> None:
    lost = parent.begin("job-1")
    with parent.board.show(lost):
        parent.clock.advance(seconds=5)
        parent.begin("job-1")
        parent.look(after=0.6)

    lease = parent.begin("job-2")
    with parent.board.show(lease):
        for _ in range(4):
            parent.look(after=0.6)

    assert parent.is_held(lease)


def test_a_lease_that_the_child_shows_meanwhile_is_not_given_up_for_the_lost_one(
    parent: Parent, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, renew = parent.begin("job-1"), parent.ledger.renew
    with parent.board.show(lost):
        parent.clock.advance(seconds=5)
        parent.begin("job-1")
        lease = parent.begin("job-2")
        shown = parent.board.show(lease)
        monkeypatch.setattr(parent.ledger, "renew", lambda leases: (shown.__enter__(), renew(leases))[1])
        parent.look(after=0.6)
        monkeypatch.setattr(parent.ledger, "renew", renew)

        for _ in range(4):
            parent.look(after=0.3)

    assert parent.is_held(lease)


@pytest.mark.parametrize(("settled", "cause"), [(False, Cause.HANDBACK), (True, Cause.CRASH)])
def test_a_child_that_was_told_to_end_hands_its_job_back_but_a_later_death_is_a_crash(
    parent: Parent, monkeypatch: pytest.MonkeyPatch, *, settled: bool, cause: Cause
) -> None:
    monkeypatch.setattr(keeper, "publish_again", lambda *_, **__: None)
    lease = parent.begin("job-1")
    parent.board.interrupted.add("job-1")
    if settled:
        parent.ledger.settle(lease, Release(cause=Cause.RETRY))
        parent.look(after=0.1)
        lease = parent.begin("job-1")

    with parent.board.show(lease):
        monkeypatch.setattr(keeper, "_is_alive", lambda _pid: False)
        parent.look(after=0.1)

    job = parent.ledger.get("job-1")
    assert job
    assert (job.state, job.past[-1].cause) == (State.QUEUED, cause)
    assert not parent.board.interrupted


def test_a_job_that_cannot_be_published_does_not_keep_the_parent_from_the_others(
    parent: Parent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ContentDisallowed

    monkeypatch.setattr(keeper, "publish_again", refuse)
    lease = parent.begin("job-1")

    with parent.board.show(lease):
        monkeypatch.setattr(keeper, "_is_alive", lambda _pid: False)
        parent.look(after=0.1)

    job = parent.ledger.get("job-1")
    assert job
    assert job.state is State.QUEUED
