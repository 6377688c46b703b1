from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import chain, chord, group, signature
from guarded.hand import Hand

from oncelery import DuplicateTaskError, PayloadMismatchError
from oncelery.job import State
from oncelery.stores import memory

# A lone call


def test_a_lone_duplicate_is_answered_with_the_job_that_is_there(hand: Hand) -> None:
    name = hand.name()

    first = hand.tasks.joining.delay(name, 1)
    second = hand.tasks.joining.delay(name, 1)
    third = hand.tasks.joining.delay(name=name, payload=1)

    assert first.id == second.id == third.id
    assert [result.existing for result in (first, second, third)] == [False, True, True]
    assert [result.published for result in (first, second, third)] == [True, True, True]
    assert hand.waiting() == 1


def test_a_duplicate_of_a_completed_job_has_its_result(hand: Hand) -> None:
    name = hand.name()
    hand.tasks.joining.delay(name, "paid")
    hand.deliver_all()

    again = hand.tasks.joining.delay(name, "paid")

    assert again.existing
    assert again.get(timeout=1) == "paid"
    assert hand.waiting() == 0


def test_past_its_retention_the_work_is_done_anew(hand: Hand) -> None:
    name = hand.name()
    first = hand.tasks.joining.delay(name)
    hand.deliver_all()

    hand.clock.advance(hours=25)
    second = hand.tasks.joining.delay(name)

    assert second.id != first.id
    assert not second.existing


def test_without_retention_only_live_jobs_are_duplicates(hand: Hand) -> None:
    name = hand.name()
    first, joined = (hand.tasks.excluding.delay(name) for _ in range(2))
    hand.deliver_all()

    second = hand.tasks.excluding.delay(name)

    assert joined.id == first.id != second.id


def test_the_same_arguments_in_another_scope_are_another_work(hand: Hand) -> None:
    tenants = hand.name(), hand.name()

    results = [hand.tasks.scoped.delay(tenant, "order-1") for tenant in tenants]

    assert len({result.id for result in results}) == 2
    assert {job.scope for job in hand.jobs()} == set(tenants)


def test_a_call_that_the_task_cannot_take_is_refused_and_leaves_no_job(hand: Hand) -> None:
    with pytest.raises(TypeError):
        hand.tasks.joining.delay()

    assert hand.jobs() == []


def test_a_rejecting_task_names_the_job_that_is_there(hand: Hand) -> None:
    name = hand.name()
    first = hand.tasks.rejecting.delay(name)

    with pytest.raises(DuplicateTaskError) as refused:
        hand.tasks.rejecting.delay(name)

    assert (refused.value.job_id, refused.value.state) == (first.id, State.QUEUED)
    hand.deliver_all()
    assert hand.tasks.rejecting.delay(name).existing


def test_a_trailing_task_takes_the_newest_payload(hand: Hand) -> None:
    name = hand.name()

    first = hand.tasks.trailing.delay(name, "old")
    second = hand.tasks.trailing.delay(name, "new")
    hand.deliver_all()

    assert second.id == first.id
    assert [entry.payload for entry in hand.told(name)] == ["new"]


def test_a_replacing_task_cancels_the_job_that_waits(hand: Hand) -> None:
    name = hand.name()

    first = hand.tasks.replacing.delay(name, "old")
    second = hand.tasks.replacing.delay(name, "new")
    hand.deliver_all()

    assert not second.existing
    assert [entry.payload for entry in hand.told(name)] == ["new"]
    assert (first.state, second.state) == ("REVOKED", "SUCCESS")
    assert (hand.job(first).state, hand.job(first).reason) == (State.CANCELLED, "replaced")


# A key that the caller chose


def test_a_callers_key_and_the_tasks_both_hold(hand: Hand) -> None:
    name, task = hand.name(), hand.tasks.joining

    calls = [task.apply_async((name, 1), idempotency_key=key) for key in ("evt-1", "evt-2", "evt-2")]
    with pytest.raises(PayloadMismatchError) as refused:
        task.apply_async((name, 2), idempotency_key="evt-2")

    assert {call.id for call in calls} == {refused.value.job_id}
    assert hand.waiting() == 1
    assert task.delay(name, 2).id == calls[0].id


def test_a_callers_key_finds_its_job_by_a_worker_that_has_never_heard_of_it(hand: Hand) -> None:
    name = hand.name()
    hand.tasks.excluding.apply_async((name,), idempotency_key="evt-1")
    hand.once.__dict__["ledger"].store = memory.MemoryStore()

    hand.deliver_all()
    again = hand.tasks.excluding.apply_async((name,), idempotency_key="evt-1")

    assert again.existing


def test_a_call_whose_id_is_fixed_does_not_run_again_under_a_callers_key(hand: Hand) -> None:
    name = hand.name()
    hand.tasks.excluding.apply_async((name, "done"), idempotency_key="evt-1")
    hand.deliver_all()

    given = hand.tasks.excluding.apply_async((name, "done"), idempotency_key="evt-1", task_id="given")
    hand.deliver_all()

    assert given.get(timeout=1) == "done"
    assert len(hand.told(name, "effect")) == 1


def test_a_callers_key_with_another_payload_is_refused(hand: Hand) -> None:
    task = hand.tasks.asks_otherwise
    job = task.apply_async((hand.name(), 1), idempotency_key="evt-1")

    with pytest.raises(PayloadMismatchError) as refused:
        task.apply_async((hand.name(), 2), idempotency_key="evt-1")

    assert refused.value.job_id == job.id
    assert hand.waiting() == 1


def test_a_callers_key_travels_to_a_worker_that_has_never_heard_of_the_job(hand: Hand) -> None:
    names = hand.name(), hand.name()
    hand.tasks.asks_otherwise.apply_async((names[0], 0), idempotency_key="evt-1")
    hand.once.__dict__["ledger"].store = memory.MemoryStore()

    hand.deliver_all()
    again = hand.tasks.asks_otherwise.apply_async((names[0], 0), idempotency_key="evt-1")

    assert again.existing


# Every way to publish


def test_a_task_sent_by_name_is_covered(hand: Hand) -> None:
    name = hand.name()

    first = hand.app.send_task("joining", (name,))
    second = hand.app.send_task("joining", kwargs={"name": name})
    third = hand.tasks.joining.delay(name)

    assert first.id == second.id == third.id
    assert hand.waiting() == 1


def test_a_task_sent_by_name_takes_every_argument_of_celerys(hand: Hand) -> None:
    soon = datetime.now(UTC) + timedelta(hours=1)
    sent = hand.app.send_task("joining", (hand.name(),), {}, None, soon, "my-id", result_cls=None, task_type=None)
    plain = hand.app.send_task("elsewhere", (1,), {}, 3.0, None, "other-id")

    assert (sent.id, plain.id) == ("my-id", "other-id")
    assert hand.job("my-id").not_before is not None
    assert hand.waiting() == 2


def test_a_task_that_nobody_knows_here_is_sent_as_ever(hand: Hand) -> None:
    hand.app.send_task("elsewhere.charge", (1,))

    assert hand.waiting() == 1
    assert hand.jobs() == []


def test_a_signature_is_a_call_like_any_other(hand: Hand) -> None:
    name = hand.name()

    results = [
        hand.tasks.joining.s(name).delay(),
        hand.tasks.joining.si(name).apply_async(),
        signature("joining", (name,), app=hand.app).delay(),
        hand.tasks.joining.s().apply_async((name,)),
    ]

    assert len({result.id for result in results}) == 1
    assert hand.waiting() == 1


def test_a_signature_can_carry_a_callers_key(hand: Hand) -> None:
    results = [
        hand.tasks.asks_otherwise.s("a", 0).set(idempotency_key="evt-1").delay(),
        hand.tasks.asks_otherwise.s("a", 0).set(idempotency_key="evt-2").delay(),
    ]

    assert results[0].id != results[1].id


def test_a_call_whose_id_is_fixed_beforehand_keeps_it_and_is_answered_by_the_worker(hand: Hand) -> None:
    name = hand.name()
    hand.tasks.joining.delay(name, "done")
    hand.deliver_all()

    frozen = hand.tasks.joining.s(name, "done")
    promised = frozen.freeze()
    frozen.apply_async()
    given = hand.tasks.joining.apply_async((name,), {"payload": "done"}, task_id="given")
    hand.deliver_all()

    assert given.id == "given"
    assert promised.get(timeout=1) == given.get(timeout=1) == "done"
    assert len(hand.told(name)) == 1


def test_the_same_id_sent_again_is_the_same_job(hand: Hand) -> None:
    name = hand.name()
    hand.tasks.joining.apply_async((name,), task_id="given")
    hand.deliver_all()

    again = hand.tasks.joining.apply_async((name,), task_id="given")

    assert again.existing
    assert hand.waiting() == 0


def test_an_id_that_stands_for_other_work_is_refused(hand: Hand) -> None:
    hand.tasks.joining.apply_async((hand.name(),), task_id="given")

    with pytest.raises(PayloadMismatchError):
        hand.tasks.joining.apply_async((hand.name(),), task_id="given")


@pytest.mark.parametrize("shape", ["group", "chain", "chord", "link", "link_error"])
def test_part_of_a_canvas_is_published_under_its_own_id_although_the_work_is_there(hand: Hand, shape: str) -> None:
    name = hand.name()
    task = hand.tasks.joining
    first = task.delay(name)
    part, after = task.s(name), hand.app.tasks["guarded-lament"].si("", name)

    canvases: dict[str, Callable[[], Any]] = {
        "group": lambda: group(part, after).apply_async(),
        "chain": lambda: chain(part, after).apply_async(),
        "chord": lambda: chord([part], after).apply_async(),
        "link": lambda: part.apply_async(link=after),
        "link_error": lambda: part.apply_async(link_error=after),
    }
    result = canvases[shape]()

    assert result.id != first.id
    assert hand.waiting() == (3 if shape == "group" else 2)


def test_part_of_a_canvas_does_not_change_the_job_that_it_joins(hand: Hand) -> None:
    name = hand.name()
    lone = hand.tasks.trailing.delay(name, "old")
    before = hand.job(lone).body

    group(hand.tasks.trailing.s(name, "new"), hand.tasks.rejecting.s(name)).apply_async()

    assert hand.job(lone).body == before


def test_part_of_a_canvas_is_never_rejected(hand: Hand) -> None:
    name = hand.name()
    hand.tasks.rejecting.delay(name)

    group(hand.tasks.rejecting.s(name), hand.tasks.rejecting.s(name)).apply_async()

    assert hand.waiting() == 3


# Results of earlier calls


@pytest.mark.parametrize("forgotten", [True, False], ids=["forgotten", "never stored"])
def test_a_duplicate_of_a_completed_job_has_its_result_whatever_the_backend_knows(
    hand: Hand, *, forgotten: bool
) -> None:
    name = hand.name()
    first = hand.tasks.joining.apply_async((name, {"n": 1}), ignore_result=not forgotten)
    hand.deliver()
    first.forget()

    again = hand.tasks.joining.delay(name, {"n": 1})

    assert again.existing
    assert (again.state, again.get(timeout=1)) == ("SUCCESS", {"n": 1})


@pytest.mark.parametrize("wanted", [True, False])
def test_a_duplicate_of_a_live_job_whose_result_nobody_wanted_has_one_if_it_wants_it(
    hand: Hand, *, wanted: bool
) -> None:
    name = hand.name()
    first = hand.tasks.joining.apply_async((name, 1), ignore_result=True)

    again = hand.tasks.joining.apply_async((name, 1), ignore_result=not wanted)
    hand.deliver_all()

    assert (again.id == first.id) is not wanted
    assert again.get(timeout=1) == (1 if wanted else None)
    assert len(hand.told(name)) == 1


def test_a_duplicate_of_a_job_in_another_tasks_place_has_its_result(hand: Hand) -> None:
    name = hand.name()

    @hand.app.task(name="outer", bind=True, shared=False)
    def outer(self: Any) -> None:
        raise self.replace(hand.tasks.joining.si(name, 1))

    result = hand.app.tasks["outer"].delay()
    hand.deliver()
    while_live = hand.tasks.joining.delay(name, 1)
    hand.deliver()
    afterwards = hand.tasks.joining.delay(name, 1)

    assert [each.get(timeout=1) for each in (result, while_live, afterwards)] == [1, 1, 1]
