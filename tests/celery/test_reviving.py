"""Dead letters whose arguments are corrected: what they may be, and whose work they then are."""

from __future__ import annotations

from typing import Any

import pytest
from celery.signals import import_modules
from guarded.hand import Hand
from guarded.versions import resolves_annotations
from pydantic import BaseModel

from oncelery import current_run
from oncelery.answers import Existing, Resubmitted, Revived
from oncelery.errors import RevivalError
from oncelery.job import Job, State
from oncelery.operations.dead_letters import Fate
from oncelery.operations.redaction import HIDDEN

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

    rehearsed = hand.once.dead_letters.rehearse(job_id, args=[{"number": "p-2", "weight": 1}])
    answer = hand.once.dead_letters.revive(job_id, args=[{"number": "p-2", "weight": 1}])

    assert answer == Existing(hand.job(other))
    assert rehearsed == {job_id: (Fate.SUPERSEDED, f"by job {other.id}, which is completed")}
    hand.deliver_all()
    assert parcels == [Parcel(number="p-2", weight=1)]
    assert hand.job(job_id).state is State.BURIED


def test_a_correction_that_makes_other_work_is_a_job_of_its_own(hand: Hand, parcels: list[Parcel]) -> None:
    job_id = dead(hand)
    corrected = {"number": "p-9", "weight": 1}

    rehearsed = hand.once.dead_letters.rehearse(job_id, args=[corrected])
    answer = hand.once.dead_letters.revive(job_id, args=[corrected])

    assert isinstance(answer, Resubmitted)
    assert rehearsed == {job_id: (Fate.RESUBMITTED, "as a new job: the arguments make another key")}
    assert (hand.job(job_id).state, hand.job(job_id).reason) == (State.CANCELLED, f"revived as {answer.job.id}")
    # Whoever submits the same work, before it ran or after, gets that job: one effect.
    before = hand.app.tasks["ship"].delay(corrected)
    (delivered,) = hand.deliver_all()
    after = hand.app.tasks["ship"].delay(corrected)
    assert delivered.id == before.id == after.id == answer.job.id
    assert parcels == [Parcel(number="p-9", weight=1)]
    # And nobody who sends what was wrong gets the result of what was right.
    assert hand.app.tasks["ship"].delay({"number": "p-1", "weight": 1}).id != answer.job.id


def test_the_job_in_its_place_has_all_that_was_asked_for_but_its_steps(hand: Hand) -> None:
    calls: list[Any] = []

    @hand.once.task(name="refund", key="order", shared=False, scope="tenant")
    def refund(tenant: str, order: str) -> str:
        calls.append((tenant, order, current_run().step("look", order.upper), current_run().job_id))
        if order.startswith("bad"):
            raise ValueError(order)
        return order

    @hand.once.task(name="receipt", shared=False)
    def receipt(order: str) -> None:
        calls.append(order)

    options: dict[str, Any] = {
        "link": receipt.s(),
        "priority": 3,
        "headers": {"colour": "red"},
        "ignore_result": True,
        "caller": "ann",
    }
    letter = refund.apply_async(("acme", "bad"), idempotency_key="click-1", **options)
    hand.deliver_all()
    answer = hand.once.dead_letters.revive(letter.id, args=["acme", "good"])
    first, second = hand.deliver_all()

    assert isinstance(answer, Resubmitted)
    assert (answer.job.scope, answer.job.caller, answer.job.queue) == ("acme", "ann", f"{hand.queue}#3")
    assert calls == [("acme", "bad", "BAD", letter.id), ("acme", "good", "GOOD", answer.job.id), "good"]
    assert (first.id, first.headers["colour"], first.headers["ignore_result"]) == (answer.job.id, "red", True)
    assert second.task == "receipt"
    # The request that the dead letter came from asked for something else.
    assert refund.apply_async(("acme", "bad"), idempotency_key="click-1").id != answer.job.id


def test_a_key_that_the_caller_chose_stays_whatever_the_arguments(hand: Hand) -> None:
    sent: list[int] = []

    @hand.once.task(name="send", shared=False)
    def send(weight: int) -> None:
        sent.append(1 // weight)

    job_id = send.apply_async((0,), idempotency_key="request-1").id
    send.delay(1)
    hand.deliver_all()

    assert isinstance(hand.once.dead_letters.revive(job_id, args=[1]), Revived)

    hand.deliver_all()
    assert sent == [1, 1]


# Tasks whose modules only workers import


@pytest.fixture
def letter(hand: Hand) -> Job:
    """Give a dead letter of a task that this process does not know."""
    declare(hand)
    result = hand.app.tasks["set-password"].delay("ada", "hunter2")
    hand.deliver_all()
    hand.app.tasks.unregister("set-password")
    return hand.job(result)


def args_of(hand: Hand, job: Job) -> tuple[Any, ...]:
    call = hand.once.jobs.call(job)
    assert call
    return call.args


def declare(hand: Hand) -> None:
    @hand.once.task(name="set-password", shared=False)
    def set_password(user: str, password: str) -> None:
        raise ValueError(user, len(password))


def test_a_module_that_only_workers_import_is_imported_to_know_which_arguments_are_secret(
    hand: Hand, letter: Job
) -> None:
    def discover(**_: object) -> None:
        declare(hand)

    import_modules.connect(discover, sender=hand.app)
    try:
        assert args_of(hand, letter) == ("ada", HIDDEN)
    finally:
        import_modules.disconnect(discover, sender=hand.app)
    with pytest.raises(TypeError):
        hand.once.dead_letters.revive(letter.id, args=["ada", "hunter2", 3])


def test_of_a_task_that_nobody_knows_no_argument_is_shown_or_corrected(hand: Hand, letter: Job) -> None:
    assert args_of(hand, letter) == (HIDDEN, HIDDEN)
    with pytest.raises(RevivalError, match="does not know the task 'set-password'"):
        hand.once.dead_letters.revive(letter.id, args=["ada", "hunter3"])
    assert isinstance(hand.once.dead_letters.revive(letter.id), Revived)


def test_a_module_that_cannot_be_imported_is_told_and_hides_all(
    hand: Hand, letter: Job, caplog: pytest.LogCaptureFixture
) -> None:
    hand.app.conf.imports = ("there_is_no_such_module",)

    assert args_of(hand, letter) == (HIDDEN, HIDDEN)
    assert "could not import" in caplog.text
