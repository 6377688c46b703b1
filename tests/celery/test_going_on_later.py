"""Retries and trailing jobs: what is published when a run has let go, also where the broker refuses it."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from guarded.hand import Hand

from oncelery.job import State


def test_a_retry_is_sent_after_its_run_has_let_go(hand: Hand) -> None:
    name = hand.name()
    hand.tasks.asks_again.apply_async((name, 2), headers={"colour": "red"}, priority=3)

    states = [delivery.state for delivery in hand.deliver_all()]

    assert states == ["RETRY", "RETRY", None]
    assert [(entry.attempt, entry.payload) for entry in hand.told(name)] == [(1, "red"), (2, "red"), (3, "red")]


def test_a_retry_that_the_broker_refuses_is_left_to_the_sweeper(hand: Hand, caplog: pytest.LogCaptureFixture) -> None:
    name = hand.name()
    result = hand.tasks.asks_again.delay(name, 1)

    with hand.broker_down(), caplog.at_level(logging.WARNING, "oncelery"):
        assert hand.deliver().state == "RETRY"

    assert hand.job(result).state is State.QUEUED
    assert result.id in caplog.text
    hand.clock.advance(hours=2)
    hand.once.sweep()
    assert hand.deliver().value == 1


def test_a_policys_retry_that_the_broker_refuses_is_left_to_the_sweeper(hand: Hand) -> None:
    name = hand.name()
    result = hand.tasks.retried_by_policy.delay(name, 1)

    with hand.broker_down():
        assert hand.deliver().state == "RETRY"

    assert hand.job(result).state is State.QUEUED
    hand.clock.advance(hours=2)
    hand.once.sweep()
    assert hand.deliver().value == 1


def test_retries_of_a_policy_and_of_celery_are_counted_apart(hand: Hand) -> None:
    name = hand.name()
    errors = ["forbidden", "refused", "refused", "refused", "refused"]
    result = hand.tasks.retried_by_both.delay(name, errors)

    states = [delivery.state for delivery in hand.deliver_all()]

    assert states[-1] == "FAILURE"
    assert len(states) <= 4
    assert hand.job(result).state is State.BURIED


def test_a_retry_asked_for_quietly_is_another_attempt_of_the_same_job(hand: Hand) -> None:
    name = hand.name()
    result = hand.tasks.asks_quietly.delay(name)

    assert [delivery.value for delivery in hand.deliver_all()] == ["not yet", "done"]
    assert len(hand.told(name)) == 2
    assert hand.job(result).state is State.COMPLETED


def test_a_trailing_job_that_the_broker_refuses_does_not_fail_the_one_before_it(hand: Hand) -> None:
    name = hand.name()
    calls: list[Any] = []

    @hand.once.task(name="front", key="x", on_duplicate="trail")
    def front(x: str, payload: int) -> int:
        if not calls:
            calls.append(hand.app.tasks["front"].delay(x, payload + 1))
        return payload

    hand.app.tasks["front"].delay(name, 1)
    with hand.broker_down():
        assert hand.deliver().value == 1
    assert hand.waiting() == 0
    hand.clock.advance(hours=2)
    hand.once.sweep()
    assert (hand.deliver().value, hand.job(calls[0]).state) == (2, State.COMPLETED)


def test_a_trailing_job_is_published_when_the_one_before_it_ends(hand: Hand) -> None:
    name = hand.name()
    later: list[Any] = []

    @hand.once.task(name="front", key="x", on_duplicate="trail")
    def front(x: str, payload: int) -> int:
        if not later:
            later.extend(hand.app.tasks["front"].delay(x, n) for n in (2, 3))
            assert hand.waiting() == 0
        return payload

    hand.app.tasks["front"].delay(name, 1)

    assert [delivery.value for delivery in hand.deliver_all()] == [1, 3]
    assert later[0].id == later[1].id
