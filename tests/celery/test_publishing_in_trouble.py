from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from celery import Celery, chain
from guarded.hand import Hand
from kombu.exceptions import OperationalError

from oncelery import Oncelery, StoreUnavailableError
from oncelery.celery.publishing import publish_again
from oncelery.job import State


def test_a_job_that_the_broker_refuses_is_kept_for_the_sweeper(hand: Hand, caplog: pytest.LogCaptureFixture) -> None:
    with hand.broker_down(), caplog.at_level(logging.WARNING, "oncelery"):
        result = hand.tasks.joining.delay(hand.name())

    assert not result.published
    assert hand.job(result).state is State.QUEUED
    assert result.id in caplog.text
    hand.clock.advance(hours=2)
    assert hand.once.sweep().published == 1
    assert hand.deliver().id == result.id


def test_a_job_that_the_broker_refuses_can_be_refused(hand: Hand) -> None:
    hand.app.conf.oncelery_on_broker_down = "refuse"

    with hand.broker_down(), pytest.raises(OperationalError):
        hand.tasks.joining.delay(hand.name())

    (job,) = hand.jobs()
    assert (job.state, job.reason) == (State.CANCELLED, "not published")


def test_a_job_that_was_joined_meanwhile_is_not_refused_to_those_who_were_told_yes(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand.app.conf.oncelery_on_broker_down = "refuse"
    name, joined = hand.name(), []

    def refuse(*_: object, **__: object) -> None:
        joined.append(hand.tasks.trailing.delay(name, "newer"))
        raise OperationalError("the broker is down")

    with monkeypatch.context() as down:
        down.setattr(hand.app.amqp, "send_task_message", refuse)
        with pytest.raises(OperationalError):
            hand.tasks.trailing.delay(name, "older")

    (other,) = joined
    assert hand.job(other).state is State.QUEUED
    hand.clock.advance(hours=2)
    assert hand.once.sweep().published == 1
    assert (hand.deliver().id, hand.job(other).state) == (other.id, State.COMPLETED)


def test_a_job_that_is_joined_at_the_last_moment_is_not_refused_either(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand.app.conf.oncelery_on_broker_down = "refuse"
    name, joined, withdraw = hand.name(), [], hand.store.withdraw

    def join_first(*args: Any, **options: Any) -> Any:
        joined.append(hand.tasks.joining.delay(name))
        return withdraw(*args, **options)

    monkeypatch.setattr(hand.store, "withdraw", join_first)
    with hand.broker_down(), pytest.raises(OperationalError):
        hand.tasks.joining.delay(name)

    (other,) = joined
    assert (other.existing, hand.job(other).state) == (True, State.QUEUED)


def test_a_call_that_celery_refuses_before_the_ledger_has_answered_leaves_no_live_job(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise TypeError("no such message")

    monkeypatch.setattr(hand.app.amqp, "create_task_message", refuse)

    with pytest.raises(TypeError, match="no such message"):
        hand.tasks.joining.delay(hand.name())

    (job,) = hand.jobs()
    assert (job.state, job.reason) == (State.CANCELLED, "not published")


def test_a_call_that_celery_cannot_send_leaves_no_live_job(hand: Hand) -> None:
    hand.tasks.joining.soft_time_limit, hand.tasks.joining.time_limit = 9, 5

    with pytest.raises(ValueError, match="soft_time_limit"):
        hand.tasks.joining.delay(hand.name())

    assert [job.state for job in hand.jobs()] in ([], [State.CANCELLED])


def test_without_its_store_nothing_is_published(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise StoreUnavailableError

    monkeypatch.setattr(hand.store, "reserve", away)

    with pytest.raises(StoreUnavailableError):
        hand.tasks.joining.delay(hand.name())

    assert hand.waiting() == 0


def test_a_job_published_again_answers_whoever_made_the_call(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Oncelery(Celery(backend="rpc://", set_as_current=False), store="memory://")
    monkeypatch.setitem(vars(hand.once), "answers_its_callers", other.answers_its_callers)
    result = hand.tasks.joining.apply_async((hand.name(),))

    with ThreadPoolExecutor(1) as elsewhere:
        elsewhere.submit(publish_again, hand.once, hand.job(result)).result()

    with hand.app.connection_for_read() as connection:
        queue = connection.SimpleQueue(hand.queue)
        first, second = (queue.get(block=False).properties["reply_to"] for _ in range(2))
    assert first == second == hand.app.thread_oid


def test_whoever_joins_a_job_that_answers_another_is_answered_by_a_message_of_its_own(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(vars(hand.once), "answers_its_callers", 1)
    name = hand.name()
    first, second = (hand.tasks.joining.delay(name, 1) for _ in range(2))

    hand.deliver_all()

    assert first.id != second.id
    assert first.get(timeout=1) == second.get(timeout=1) == 1
    assert len(hand.told(name)) == 1


def test_what_follows_a_task_is_sent_on_while_the_store_is_away(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise StoreUnavailableError

    @hand.app.task(name="plain", shared=False)
    def plain() -> None: ...

    name = hand.name()
    result = chain(plain.si(), hand.tasks.joining.si(name, 2)).delay()

    with monkeypatch.context() as patch:
        patch.setattr(hand.store, "reserve", away)
        assert hand.deliver().state is None
        with pytest.raises(StoreUnavailableError):
            hand.tasks.joining.delay(name, 2)

    assert hand.deliver().value == 2
    assert (result.get(timeout=1), len(hand.told(name))) == (2, 1)
    assert hand.tasks.joining.delay(name, 2).existing
