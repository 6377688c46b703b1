"""Dead letters whose arguments are corrected: what they may be, and whose work they then are."""

from __future__ import annotations

from typing import Any

import pytest
from guarded.hand import Hand
from guarded.versions import resolves_annotations
from pydantic import BaseModel

from oncelery.answers import Existing, Revived
from oncelery.job import State

pytestmark = resolves_annotations


class Parcel(BaseModel):
    number: str
    weight: int


@pytest.fixture
def parcels(hand: Hand) -> list[Parcel]:
    """Give what is sent, by a task that takes a model and refuses what weighs nothing."""
    sent: list[Parcel] = []

    @hand.once.task(name="ship", key="parcel.number", pydantic=True, shared=False)
    def ship(parcel: Parcel) -> None:
        if not parcel.weight:
            raise ValueError("it weighs nothing")
        sent.append(parcel)

    return sent


def dead(hand: Hand, **options: Any) -> str:
    result = hand.app.tasks["ship"].apply_async(({"number": "p-1", "weight": 0},), **options)
    hand.deliver_all()
    assert hand.job(result).state is State.BURIED
    return str(result.id)


def test_a_task_that_takes_a_model_is_corrected_by_its_own_signature(hand: Hand, parcels: list[Parcel]) -> None:
    job_id = dead(hand)

    with pytest.raises(TypeError, match="parcel"):
        # It was called by place.
        hand.once.dead_letters.revive(job_id, kwargs={"parcel": {"number": "p-1", "weight": 2}})
    assert hand.job(job_id).state is State.BURIED

    hand.once.dead_letters.revive(job_id, args=[{"number": "p-1", "weight": 2}])
    hand.deliver_all()

    assert parcels == [Parcel(number="p-1", weight=2)]


def test_a_correction_that_makes_it_the_work_of_another_job_is_answered_with_that_one(
    hand: Hand, parcels: list[Parcel]
) -> None:
    job_id = dead(hand)
    other = hand.app.tasks["ship"].delay({"number": "p-2", "weight": 1})
    hand.deliver_all()

    answer = hand.once.dead_letters.revive(job_id, args=[{"number": "p-2", "weight": 1}])

    assert answer == Existing(hand.job(other))
    hand.deliver_all()
    assert parcels == [Parcel(number="p-2", weight=1)]
    assert hand.job(job_id).state is State.BURIED


def test_a_correction_may_make_it_work_that_no_other_job_does(hand: Hand, parcels: list[Parcel]) -> None:
    job_id = dead(hand)

    assert isinstance(hand.once.dead_letters.revive(job_id, args=[{"number": "p-9", "weight": 1}]), Revived)

    hand.deliver_all()
    assert parcels == [Parcel(number="p-9", weight=1)]


def test_a_key_that_the_caller_chose_stays_whatever_the_arguments(hand: Hand, parcels: list[Parcel]) -> None:
    job_id = dead(hand, idempotency_key="request-1")
    hand.app.tasks["ship"].delay({"number": "p-1", "weight": 1})
    hand.deliver_all()

    assert isinstance(hand.once.dead_letters.revive(job_id, args=[{"number": "p-1", "weight": 3}]), Revived)

    hand.deliver_all()
    assert [parcel.weight for parcel in parcels] == [1, 3]
