"""Call-backs: told once under one id, whoever dies in between."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from faults.brokers import Broker
from faults.workers import Workers
from guarded.hand import Hand
from guarded.receiver import OLD_SECRET, SECRET, Receiver, receiving
from guarded.world import SOON, World

from oncelery import Oncelery, WebhookTargetError
from oncelery.answers import Resubmitted
from oncelery.celery.callbacks import FIRST_LOOK, NOTIFY_TASK, WATCH_TASK
from oncelery.celery.publishing import publish_again
from oncelery.embedded.process import eventually
from oncelery.job import OWN_REASONS, Job, Query, State
from oncelery.testing.failpoints import Failpoint, environment

SETTINGS: dict[str, object] = {"oncelery_webhook_secrets": [SECRET, OLD_SECRET], "oncelery_allow_private": True}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def telling(hand: Hand) -> Hand:
    """Give a world that signs call-backs, and may send them to this machine."""
    hand.app.conf.update(SETTINGS)
    return hand


def jobs(hand: Hand, task: str, state: State | None = None) -> list[Job]:
    found = hand.once.ledger.find(Query(task=task, states=frozenset({state} if state else ())))
    return [hand.job(job.id) for job in found.items]


def sweep_after(hand: Hand, time: timedelta) -> None:
    hand.clock.advance(seconds=time.total_seconds())
    hand.once.sweep()


# Told


def test_the_end_of_a_job_is_told_under_its_id_and_signed(telling: Hand, receiver: Receiver) -> None:
    job = telling.tasks.joining.apply_async((telling.name(), "paid"), notify=receiver.url())

    telling.deliver_all()

    (call,) = receiver.calls
    assert call.id == f"{job.id}.completed.{telling.job(job).fence}"
    event = call.verified()
    assert event == call.verified(OLD_SECRET)
    assert (event["type"], event["data"]["id"], event["data"]["result"]) == ("job.completed", job.id, "paid")


@pytest.mark.parametrize("kind", ["object", "large"])
def test_a_result_that_was_not_kept_is_told_as_omitted(telling: Hand, receiver: Receiver, kind: str) -> None:
    job = telling.tasks.returns.apply_async((telling.name(), kind), notify=receiver.url())

    telling.deliver_all()

    (call,) = receiver.calls
    data = call.verified()["data"]
    assert (data["state"], "result" in data) == ("completed", False)
    assert data["result_omitted"] == telling.job(job).result_omitted


def test_a_result_that_looks_like_a_mark_of_ours_is_told_as_it_is(telling: Hand, receiver: Receiver) -> None:
    payload = {"oncelery_replaced_by": {"task": "joining"}}
    telling.tasks.joining.apply_async((telling.name(), payload), notify=receiver.url())

    telling.deliver_all()

    assert receiver.calls[0].verified()["data"]["result"] == payload


@pytest.mark.parametrize("reason", sorted(OWN_REASONS))
def test_a_cancellation_is_told_whatever_reason_is_given(telling: Hand, receiver: Receiver, reason: str) -> None:
    job = telling.tasks.joining.apply_async((telling.name(),), countdown=86_400, notify=receiver.url())
    # Only its watch is left to tell of it.
    telling.drop()

    telling.once.jobs.cancel(job.id, reason=reason)
    sweep_after(telling, timedelta(minutes=2))
    telling.deliver_all()

    assert [call.verified()["data"]["reason"] for call in receiver.calls] == [f'"{reason}"']


def test_once_it_is_told_no_watch_is_left(telling: Hand, receiver: Receiver) -> None:
    telling.tasks.joining.apply_async((telling.name(),), notify=receiver.url())
    assert [watch.state for watch in jobs(telling, WATCH_TASK)] == [State.QUEUED]

    telling.deliver_all()

    assert [(watch.state, watch.reason) for watch in jobs(telling, WATCH_TASK)] == [(State.CANCELLED, "told")]
    sweep_after(telling, timedelta(hours=2))
    telling.deliver_all()
    assert len(receiver.calls) == 1


def test_a_task_may_have_its_call_back_declared(telling: Hand, receiver: Receiver) -> None:
    @telling.once.task(name="declared", notify=receiver.url("/declared"))
    def declared() -> None: ...

    declared.delay()
    declared.delay()
    telling.deliver_all()

    assert [call.path for call in receiver.calls] == ["/declared"]


def test_when_it_is_told_the_key_is_free(telling: Hand, receiver: Receiver) -> None:
    name = telling.name()
    first = telling.tasks.excluding.apply_async((name,), notify=receiver.url())
    telling.deliver()

    second = telling.tasks.excluding.apply_async((name,))

    assert telling.waiting() == 2
    assert second.id != first.id


def test_a_dead_letter_is_told_and_its_end_after_a_revival_as_well(telling: Hand, receiver: Receiver) -> None:
    result = telling.tasks.raises.apply_async((telling.name(), "refused"), notify=receiver.url())
    telling.deliver_all()
    telling.once.dead_letters.revive(result.id)
    telling.deliver_all()

    events = [call.verified() for call in receiver.calls]
    assert [(event["type"], event["data"]["reason"]) for event in events] == [("job.buried", "failed")] * 2
    assert events[0]["data"]["error"]["type"].endswith("Error")
    assert len({call.id for call in receiver.calls}) == 2


def test_the_end_of_the_job_in_the_place_of_a_dead_letter_is_told_under_its_own_id(
    telling: Hand, receiver: Receiver
) -> None:
    letter = telling.tasks.raises.apply_async((telling.name(), "refused"), notify=receiver.url())
    telling.deliver_all()
    answer = telling.once.dead_letters.revive(letter.id, args=[telling.name(), "key"])
    assert isinstance(answer, Resubmitted)
    telling.deliver_all()

    events = [call.verified() for call in receiver.calls]
    assert [(event["type"], event["data"]["id"]) for event in events] == [
        ("job.buried", letter.id),
        ("job.buried", answer.job.id),
    ]


def test_another_who_joins_a_live_job_is_told_as_well_and_nobody_twice(telling: Hand, receiver: Receiver) -> None:
    name = telling.name()
    for path in ("/one", "/two", "/one"):
        telling.tasks.joining.apply_async((name,), notify=receiver.url(path))

    telling.deliver_all()
    sweep_after(telling, FIRST_LOOK + timedelta(seconds=11))
    telling.deliver_all()

    assert sorted(call.path for call in receiver.calls) == ["/one", "/two"]
    assert len({call.id for call in receiver.calls}) == 1


def test_a_job_that_is_cancelled_before_it_ran_is_told(telling: Hand, receiver: Receiver) -> None:
    job = telling.tasks.joining.apply_async((telling.name(),), notify=receiver.url())
    telling.once.jobs.cancel(job.id, reason="changed my mind")

    telling.deliver_all()

    (call,) = receiver.calls
    assert call.verified()["type"] == "job.cancelled"
    assert call.verified()["data"]["reason"] == "changed my mind"


# Never lost


@pytest.fixture
def speechless(telling: Hand, monkeypatch: pytest.MonkeyPatch) -> Hand:
    """Give a worker that ends jobs, and dies before it can tell of it."""
    monkeypatch.setattr(telling.once.callbacks, "tell", lambda *_: None)
    return telling


def test_what_was_not_told_when_its_job_ended_is_told_by_its_watch(speechless: Hand, receiver: Receiver) -> None:
    job = speechless.tasks.joining.apply_async((speechless.name(),), notify=receiver.url())
    speechless.deliver_all()
    assert not receiver.calls

    sweep_after(speechless, FIRST_LOOK + timedelta(seconds=11))
    speechless.deliver_all()

    assert [call.verified()["data"]["id"] for call in receiver.calls] == [job.id]


def test_a_watch_waits_for_as_long_as_its_job_takes(speechless: Hand, receiver: Receiver) -> None:
    job = speechless.tasks.joining.apply_async((speechless.name(),), countdown=86_400, notify=receiver.url())
    speechless.clock.advance(seconds=FIRST_LOOK.total_seconds())
    publish_again(speechless.once, jobs(speechless, WATCH_TASK)[0])
    for _ in range(12):
        # The job's message, which is too early, and that of its watch.
        speechless.deliver()
        speechless.deliver()
        speechless.clock.advance(seconds=660)
    (watch,) = jobs(speechless, WATCH_TASK)
    assert (watch.state, watch.attempt, receiver.calls) == (State.QUEUED, 12, [])

    speechless.once.jobs.cancel(job.id)
    speechless.deliver_all()

    assert [call.verified()["type"] for call in receiver.calls] == ["job.cancelled"]


def test_a_redelivery_of_a_finished_job_tells_what_was_not_told_and_else_nothing(
    telling: Hand, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with telling.captured() as sent, monkeypatch.context() as patch:
        patch.setattr(telling.once.callbacks, "tell", lambda *_: None)
        result = telling.tasks.joining.apply_async((telling.name(),), notify=receiver.url())
        telling.deliver_all()
    result.forget()

    for _ in range(3):
        sent.again()
        telling.deliver_all()

    assert len(receiver.calls) == 1


def test_a_call_back_that_is_refused_is_tried_again_under_the_same_id(telling: Hand) -> None:
    with receiving([503, 500, 204]) as receiver:
        telling.tasks.joining.apply_async((telling.name(),), notify=receiver.url())
        telling.deliver()
        for _ in range(3):
            telling.deliver()
            telling.clock.advance(hours=7)

    assert len(receiver.calls) == 3
    assert len({call.id for call in receiver.calls}) == 1
    assert [job.state for job in jobs(telling, NOTIFY_TASK)] == [State.COMPLETED]


def test_a_call_back_that_nobody_takes_is_a_dead_letter_that_can_be_revived(telling: Hand) -> None:
    with receiving([500]) as receiver:
        telling.tasks.joining.apply_async((telling.name(),), notify=receiver.url())
        telling.deliver()
        for _ in range(10):
            telling.deliver()
            telling.clock.advance(hours=7)
        (dead,) = jobs(telling, NOTIFY_TASK, State.BURIED)
        assert (dead.reason, len(receiver.calls)) == ("exhausted", 10)

        receiver.statuses = [204]
        telling.once.dead_letters.revive(dead.id)
        telling.deliver_all()

    assert telling.job(dead.id).state is State.COMPLETED


def test_one_that_could_not_be_published_is_not_told_of(telling: Hand, receiver: Receiver) -> None:
    telling.app.conf.oncelery_on_broker_down = "refuse"
    with telling.broker_down(), pytest.raises(Exception, match="broker is down"):
        telling.tasks.joining.apply_async((telling.name(),), notify=receiver.url())

    sweep_after(telling, FIRST_LOOK + timedelta(seconds=11))
    telling.deliver_all()

    assert not receiver.calls


def test_an_eager_task_tells_nobody(telling: Hand, receiver: Receiver) -> None:
    telling.app.conf.task_always_eager = True

    telling.tasks.joining.apply_async((telling.name(),), notify=receiver.url())

    assert not receiver.calls
    assert not jobs(telling, WATCH_TASK)


# Refused


def test_a_url_that_must_not_be_called_is_refused_before_there_is_a_job(hand: Hand) -> None:
    hand.app.conf.oncelery_webhook_secrets = SECRET

    for url in ("http://example.com/", "https://127.0.0.1/", "https://169.254.169.254/"):
        with pytest.raises(WebhookTargetError):
            hand.tasks.joining.apply_async((hand.name(),), notify=url)

    assert not hand.jobs()


def test_without_a_secret_there_are_no_call_backs(hand: Hand) -> None:
    with pytest.raises(WebhookTargetError, match="webhook_secrets"):
        hand.tasks.joining.apply_async((hand.name(),), notify="https://example.com/")


def test_each_tenant_may_have_a_secret_of_its_own(hand: Hand, receiver: Receiver) -> None:
    secrets = {"acme": OLD_SECRET, "": SECRET}
    Oncelery(hand.app, webhook_secrets=secrets, allow_private=True).__dict__["ledger"] = hand.once.ledger
    for scope in ("acme", "other"):
        hand.tasks.joining.apply_async((scope,), scope=scope, notify=receiver.url(f"/{scope}"))

    hand.deliver_all()

    by_path = {call.path: call for call in receiver.calls}
    assert by_path["/acme"].verified(OLD_SECRET)["data"]["scope"] == "acme"
    assert by_path["/other"].verified(SECRET)["data"]["scope"] == "other"


# Real workers


@pytest.fixture(scope="module")
def settings_here() -> dict[str, object]:
    """Let call-backs be signed, and sent to this machine."""
    return SETTINGS


def test_a_worker_that_is_killed_before_it_tells_is_stood_in_for(
    world: World, crew: Workers, broker_here: Broker, tmp_path: Path
) -> None:
    halfway = Failpoint("after-settle", "wait", tmp_path)
    fast: dict[str, Any] = {"oncelery_sweep_every": 0.5}
    doomed = world.start(crew, broker=broker_here, env=environment(halfway), settings=fast, concurrency=1)
    with receiving([500, 204]) as receiver:
        job = world.tasks.joining.apply_async((world.name(), "paid"), notify=receiver.url())
        assert eventually(lambda: halfway.fired == 1, SOON)
        assert world.job(job).state is State.COMPLETED
        doomed.kill()
        assert not receiver.calls

        world.start(crew, broker=broker_here, settings=fast, concurrency=1)

        assert eventually(lambda: len(receiver.calls) == 2, 3 * SOON)
        find = world.once.jobs.find
        assert eventually(lambda: not find(task=NOTIFY_TASK, states=["queued", "running"]).items, SOON)
    assert {call.id for call in receiver.calls} == {f"{job.id}.completed.{world.job(job).fence}"}
    assert receiver.calls[-1].verified()["data"]["result"] == "paid"
