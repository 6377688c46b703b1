from __future__ import annotations

import pytest

from .configurations import QUICK
from .invariants import INVARIANTS
from .ledger import NEVER_STARTED, RUNNING, Record, Store
from .mutants import MUTANTS, AcknowledgesFirst, Mutant, SkipAndAcknowledge, mutated
from .protocol import Protocol
from .search import Search
from .steps import Bounds


@pytest.mark.parametrize("bounds", QUICK.values(), ids=QUICK)
def test_every_invariant_holds_in_every_state_within_the_bounds(bounds: Bounds) -> None:
    verdict = Search(Protocol(bounds)).run()

    print(verdict)  # noqa: T201 - how much was searched; pytest -rP shows it
    assert not verdict.broken, str(verdict)


@pytest.mark.parametrize(
    ("mutant", "invariant"),
    [
        pytest.param(mutant, broken, id=f"{mutant.bug.__name__}-{broken}")
        for mutant in MUTANTS
        for broken in mutant.breaks
    ],
)
def test_a_planted_bug_is_found_by_the_invariant_it_breaks(mutant: Mutant, invariant: str) -> None:
    verdict = Search(mutant.protocol(), watch={invariant}).run()

    assert verdict.broken == invariant, str(verdict)


def test_every_invariant_is_broken_by_a_planted_bug() -> None:
    assert {broken for mutant in MUTANTS for broken in mutant.breaks} == set(INVARIANTS)


def test_the_usual_recipe_loses_the_job_of_a_worker_that_dies_and_the_trace_tells_how() -> None:
    verdict = Search(mutated(SkipAndAcknowledge)(Bounds(faults=1, acts=0)), watch={"I5"}).run()

    assert verdict.trace == (
        "caller: reserve J1: Reserved",
        "caller publishes J1",
        "A receives J1",
        "A: begin J1: Granted",
        "A dies (running)  [fault]",
        "... and no way leads on to an end without another fault",
    )


def test_a_trace_tells_workers_apart_although_the_search_does_not() -> None:
    (two_step,) = [mutant for mutant in MUTANTS if mutant.bug.__name__ == "TwoStepTakeover"]

    verdict = Search(two_step.protocol(), watch={"I1"}).run()

    assert verdict.trace[-6:] == (
        "B receives J1",
        "B reads that the lease of J1 is over",
        "A: complete J1: Settled",
        "B: begin J1: Granted",
        "B takes effect for J1",
        "B: complete J1: Settled",
    )


class FenceAlone(Store):
    def owns(self, record: Record, fence: int, holder: int) -> bool:  # noqa: ARG002 - the point of it
        return record.state == RUNNING and record.fence == fence


class HolderAlone(Store):
    def owns(self, record: Record, fence: int, holder: int) -> bool:  # noqa: ARG002 - the point of it
        return record.state == RUNNING and record.holder == holder


@pytest.mark.parametrize("store", [FenceAlone, HolderAlone])
def test_fence_and_holder_guard_twice_what_each_guards_alone(store: type[Store]) -> None:
    verdict = Search(mutated(store)(Bounds(faults=2, acts=1))).run()

    assert not verdict.broken, str(verdict)


def test_an_early_acknowledgement_loses_nothing_once_the_job_is_reserved() -> None:
    verdict = Search(AcknowledgesFirst(Bounds(faults=2, acts=1))).run()

    assert not verdict.broken, str(verdict)


@pytest.mark.parametrize("max_crashes", [0, 1, 2])
def test_one_commit_may_have_as_many_effects_outside_as_runs_may_crash_and_one_more(max_crashes: int) -> None:
    verdict = Search(Protocol(Bounds(faults=max_crashes + 1, acts=0, max_crashes=max_crashes, effects=True))).run()

    assert not verdict.broken, str(verdict)
    assert verdict.effects == max_crashes + 1


def test_what_a_person_has_discarded_does_not_run_again() -> None:
    verdict = Search(Protocol(Bounds(faults=1, acts=2, discards=True)), watch={"I10"}).run()

    assert not verdict.broken, str(verdict)


def test_copies_of_a_message_that_wait_for_busy_workers_do_not_bury_its_job() -> None:
    verdict = Search(Protocol(Bounds(workers=3, faults=2, acts=0, receipts=2)), watch={"I6"}).run()

    assert not verdict.broken, str(verdict)


@pytest.mark.parametrize("redis", [True, False])
def test_deaths_before_a_run_bury_a_job(*, redis: bool) -> None:
    protocol = Protocol(Bounds(faults=3, acts=0, receipts=2, redis=redis))
    search = Search(protocol)

    search.run()

    ends = {record.reason for books in search.books.in_order for record in books.ledger.records if record}
    assert NEVER_STARTED in ends
