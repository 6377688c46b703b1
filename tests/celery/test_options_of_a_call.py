from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from guarded.hand import Hand
from kombu import Exchange, Queue

from oncelery.job import State, Submission
from oncelery.policy import Policy

# Options of a call


def test_options_reach_the_message_and_the_job_that_is_kept(hand: Hand) -> None:
    hand.app.conf.task_queues = [Queue(hand.queue), Queue("urgent")]
    name = hand.name()

    result = hand.tasks.joining.apply_async(
        (name,), queue="urgent", priority=3, headers={"colour": "red"}, soft_time_limit=5, time_limit=6, shadow="joined"
    )

    assert hand.waiting("urgent") == 1
    assert hand.job(result).queue == "urgent#3"
    hand.clock.advance(seconds=20)
    hand.once.sweep()
    assert hand.waiting("urgent") == 1
    hand.clock.advance(hours=2)
    hand.once.sweep()
    assert hand.waiting("urgent") == 2


def test_a_queue_and_an_exchange_may_be_given_as_objects(hand: Hand) -> None:
    queue = Queue("by-object", Exchange("by-object"), routing_key="by-object")

    result = hand.tasks.joining.apply_async(
        (hand.name(),), queue=queue, declare=[queue], retry_policy={"max_retries": 1}
    )

    assert hand.waiting("by-object") == 1
    assert hand.job(result).queue == "by-object"


def test_a_route_gives_the_job_its_queue(hand: Hand) -> None:
    hand.app.conf.task_routes = {"joining": {"queue": "routed", "priority": 4}}

    result = hand.tasks.joining.delay(hand.name())

    assert hand.job(result).queue == "routed#4"
    assert hand.waiting("routed") == 1


def test_a_call_may_take_the_route_of_another_name(hand: Hand) -> None:
    hand.app.conf.task_routes = {"elsewhere": {"queue": "by_name"}}

    result = hand.tasks.joining.apply_async((hand.name(),), route_name="elsewhere")

    assert hand.job(result).queue == "by_name"
    assert hand.waiting("by_name") == 1


def test_a_route_by_arguments_gives_the_job_its_queue(hand: Hand) -> None:
    def by_name(_name: str, args: Any, *_: object, **__: object) -> Any:
        return {"queue": f"for-{args[0]}"}

    hand.app.conf.task_routes = (by_name,)

    assert hand.job(hand.tasks.joining.delay("a")).queue == "for-a"


def test_the_worker_finds_the_label_that_the_publisher_gave(hand: Hand) -> None:
    for priority in (None, 0, 5):
        hand.once.send_unguarded("joining", (hand.name(),), task_id=f"unknown-{priority}", priority=priority)
        hand.tasks.joining.apply_async((hand.name(),), task_id=f"known-{priority}", priority=priority)

    hand.deliver_all()

    for priority in (None, 0, 5):
        assert hand.job(f"known-{priority}").queue == hand.job(f"unknown-{priority}").queue


@pytest.mark.parametrize(
    "options",
    [
        lambda _: {"countdown": 60},
        lambda soon: {"eta": soon},
        lambda soon: {"eta": soon.isoformat()},
        lambda soon: {"countdown": 60, "eta": soon + timedelta(hours=1)},
    ],
    ids=["countdown", "eta", "eta as text", "both"],
)
def test_a_delay_is_that_of_the_job(hand: Hand, options: Callable[[datetime], dict[str, Any]]) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=60)

    result = hand.tasks.joining.apply_async((hand.name(),), **options(soon))

    not_before = hand.job(result).not_before
    assert not_before
    assert timedelta(seconds=50) < not_before - hand.clock() <= timedelta(seconds=60)


def test_an_eta_without_a_zone_is_utc_as_celery_reads_it(hand: Hand) -> None:
    hand.app.conf.update(timezone="Asia/Tokyo")
    soon = datetime.now(UTC) + timedelta(seconds=60)

    result = hand.tasks.joining.apply_async((hand.name(),), eta=soon.replace(tzinfo=None))

    not_before = hand.job(result).not_before
    assert not_before
    assert timedelta(seconds=50) < not_before - hand.clock() <= timedelta(seconds=60)


def test_an_id_may_be_a_uuid(hand: Hand) -> None:
    task_id = uuid.uuid4()

    result = hand.tasks.joining.apply_async((hand.name(),), task_id=task_id)

    assert (result.id, hand.deliver().id) == (str(task_id), str(task_id))


def test_a_call_made_by_a_task_may_have_its_priority(hand: Hand) -> None:
    hand.app.conf.task_inherit_parent_priority = True

    @hand.once.task(name="parent", shared=False)
    def parent() -> None:
        hand.tasks.joining.delay("child")

    parent.apply_async(priority=6)
    hand.deliver()

    with hand.app.connection_for_read() as connection:
        message: Any = connection.SimpleQueue(hand.queue).get_nowait()
        assert message.properties["priority"] == 6
        message.ack()


def test_a_result_does_not_keep_the_body_of_its_job(hand: Hand) -> None:
    name = hand.name()

    results = [hand.tasks.joining.delay(name) for _ in range(2)]

    assert [result.job.body for result in results] == [None, None]
    assert hand.job(results[0]).body


# Jobs that expire


@pytest.mark.parametrize("expires", [-1, 0])
def test_a_lost_job_that_has_expired_is_cancelled_and_not_published_again(hand: Hand, expires: int) -> None:
    result = hand.tasks.joining.apply_async((hand.name(),), expires=expires)
    hand.app.control.purge()

    hand.clock.advance(hours=2)
    hand.once.sweep()

    assert (hand.job(result).state, hand.job(result).reason) == (State.CANCELLED, "expired")
    assert result.state == "REVOKED"
    assert hand.waiting() == 0


def test_a_job_published_again_expires_when_it_would_have(hand: Hand) -> None:
    result = hand.tasks.expiring.delay(hand.name())
    hand.clock.advance(hours=2)
    hand.once.sweep()

    first, second = hand.deliver(), hand.deliver()
    assert first.id == second.id == result.id
    assert abs(
        datetime.fromisoformat(first.headers["expires"]) - datetime.fromisoformat(second.headers["expires"])
    ) < timedelta(seconds=1)


@pytest.mark.parametrize("serializer", ["json", "yaml", "msgpack", "pickle"])
@pytest.mark.parametrize("expires", [60, datetime(2096, 1, 1, tzinfo=UTC)])
def test_a_call_may_expire_whatever_its_serialiser(hand: Hand, serializer: str, expires: object) -> None:
    hand.app.conf.accept_content = ["json", "yaml", "msgpack", "pickle"]

    result = hand.tasks.joining.apply_async((hand.name(),), expires=expires, serializer=serializer)
    hand.deliver()

    assert hand.job(result).state is State.COMPLETED


@pytest.mark.parametrize("expires", [3600, None])
def test_a_call_does_not_join_a_job_that_has_expired_unseen(hand: Hand, expires: int | None) -> None:
    name = hand.name()
    stale = hand.tasks.joining.apply_async((name,), expires=datetime.now(UTC) - timedelta(seconds=1))

    fresh = hand.tasks.joining.apply_async((name,), expires=expires)

    assert fresh.id != stale.id
    assert (hand.job(stale).state, hand.job(stale).reason) == (State.CANCELLED, "expired")


@pytest.mark.parametrize("wanted", [True, False])
def test_an_expired_job_is_told_only_where_its_result_is_wanted(hand: Hand, *, wanted: bool) -> None:
    task = hand.tasks.returns if wanted else hand.tasks.returns_unseen
    result = task.apply_async((hand.name(), 1), expires=0)
    hand.clock.advance(hours=2)

    hand.once.sweep()

    assert hand.job(result).reason == "expired"
    assert hand.app.AsyncResult(result.id).state == ("REVOKED" if wanted else "PENDING")


def test_a_call_goes_on_although_nobody_can_be_told_of_the_expired_one(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise ConnectionError

    monkeypatch.setattr(hand.app.backend, "mark_as_revoked", away)
    name = hand.name()
    stale = hand.tasks.joining.apply_async((name,), expires=0)

    fresh = hand.tasks.joining.delay(name)

    assert fresh.id != stale.id
    assert hand.job(stale).reason == "expired"


def test_a_job_that_begins_just_before_it_is_found_expired_is_joined(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = hand.name()
    first = hand.tasks.joining.apply_async((name,), expires=0)
    cancel = hand.once.ledger.cancel

    def cancel_late(job_id: str, **options: Any) -> object:
        job = hand.job(job_id)
        hand.once.ledger.begin(Submission(id=job.id, key=job.key, task=job.task), Policy())
        return cancel(job_id, **options)

    monkeypatch.setattr(hand.once.ledger, "cancel", cancel_late)

    again = hand.tasks.joining.delay(name)

    assert (again.id, again.existing) == (first.id, True)
    assert hand.app.AsyncResult(first.id).state == "PENDING"
