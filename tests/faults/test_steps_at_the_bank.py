"""Steps whose effect is with a receiver that honours a key: once each, wherever the child dies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from faults.bank import VARIABLE, Bank
from faults.scene import SOON, Scene
from faults.traps import Trap
from oncelery.embedded.process import eventually
from oncelery.job import Cause
from oncelery.testing.proxy import FaultProxy

#: Where a child is killed in the midst of the second step, and how often the bank is then asked to charge.
PLACES = [
    ("before-charge", 1),
    # The bank has charged and nobody knows: what the key is for.
    ("after-charge", 2),
    ("charge-recorded", 1),
]


@pytest.fixture(scope="module")
def bank() -> Iterator[Bank]:
    with Bank() as bank:
        yield bank


@pytest.fixture(scope="module")
def line(bank: Bank) -> Iterator[FaultProxy]:
    """Give the workers' line to the bank, on which replies may be lost."""
    with FaultProxy(bank.port) as line:
        yield line


@pytest.fixture(scope="module")
def traps(stage: Scene) -> dict[str, Trap]:
    return {place: Trap(place, "kill", stage.folder) for place, _ in PLACES}


@pytest.fixture(scope="module")
def sleep(stage: Scene) -> Trap:
    return Trap("before-charge", "stop", stage.folder)


@pytest.fixture(scope="module", autouse=True)
def worker(stage: Scene, line: FaultProxy, bank: Bank, traps: dict[str, Trap], sleep: Trap) -> Iterator[None]:
    points = [trap.point for trap in (*traps.values(), sleep)]
    worker = stage.start(*points, env={VARIABLE: line.url(bank.environment[VARIABLE])})
    yield
    worker.kill()


@pytest.mark.parametrize(("place", "times"), PLACES)
def test_the_bank_charges_once_wherever_the_child_is_killed(
    stage: Scene, bank: Bank, traps: dict[str, Trap], place: str, times: int
) -> None:
    order = f"{stage.folder.name} {place}"
    traps[place].set()

    job_id = stage.shop.pay.delay(order).id

    assert eventually(lambda: stage.result(job_id).state == "SUCCESS", SOON)
    assert traps[place].caught
    assert [attempt.cause for attempt in stage.job(job_id).past] == [Cause.CRASH]
    holds, charges = bank.of(order, "hold"), bank.of(order, "charge")
    assert [asked.answer for asked in charges] == ["taken", "known"][:times]
    # Finished steps are not done again.
    assert [(asked.attempt, asked.answer) for asked in holds] == [(1, "taken")]
    # Each step has one key, whichever run asks.
    assert len({asked.key for asked in charges}) == 1
    assert charges[0].key != holds[0].key
    # A later run has a higher fence.
    runs = [(asked.attempt, asked.fence) for asked in (*holds, *charges)]
    assert runs == sorted(runs)
    assert len({fence for _, fence in runs}) == len({attempt for attempt, _ in runs})
    # The caller gets the receipts that the bank gave first.
    receipts = {"hold": bank.receipts[holds[0].key], "charge": bank.receipts[charges[0].key]}
    assert stage.result(job_id).result == receipts


def test_a_reply_that_is_lost_makes_no_second_charge(stage: Scene, bank: Bank, line: FaultProxy) -> None:
    order = f"{stage.folder.name} lost reply"
    lost = line.lose_reply(b"POST /charge")

    job_id = stage.shop.pay.delay(order).id

    assert eventually(lambda: stage.result(job_id).state == "SUCCESS", SOON)
    assert lost.happened.is_set()
    assert [asked.answer for asked in bank.of(order, "charge")] == ["taken", "known"]
    assert [asked.attempt for asked in bank.of(order, "charge")] == [1, 2]
    assert len(bank.of(order, "hold")) == 1


def test_a_run_that_slept_until_another_had_charged_is_refused_by_its_fence(
    stage: Scene, bank: Bank, sleep: Trap
) -> None:
    order = f"{stage.folder.name} sleeper"
    sleep.set()

    job_id = stage.shop.pay.delay(order).id
    assert eventually(lambda: stage.result(job_id).state == "SUCCESS", SOON)
    recorded = stage.job(job_id).result
    sleep.wake()

    assert eventually(lambda: len(bank.of(order, "charge")) == 2, SOON)
    assert [(asked.attempt, asked.answer) for asked in bank.of(order, "charge")] == [(2, "taken"), (1, "superseded")]
    assert stage.job(job_id).result == recorded
