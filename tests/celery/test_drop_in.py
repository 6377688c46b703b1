"""What people do with Celery they can do with guarded tasks: mocks, watchers of the log, task classes, several apps."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from celery import Celery, Task, uuid
from guarded.hand import Hand
from guarded.world import unshared_tasks

from oncelery import TASK_ID, ConfigurationError, DuplicateTaskError, IdempotentTask, Oncelery
from oncelery.job import State


@pytest.fixture
def app() -> Iterator[Celery]:
    """Give an app of this test alone, on nothing but memory."""
    with unshared_tasks():
        app = Celery("shop", set_as_current=False, broker="memory://", backend="cache+memory://")
        # A queue of this test alone: the memory transport is one for the whole process.
        app.conf.update(oncelery_store="memory://", task_default_queue=uuid())
        yield app


def add(x: int, y: int) -> int:
    return x + y


# Mocks


@pytest.mark.parametrize("kind", ["guarded", "plain"])
@pytest.mark.parametrize("autospec", [False, True])
def test_a_mock_of_celerys_send_task_catches_every_call(app: Celery, kind: str, *, autospec: bool) -> None:
    once = Oncelery(app)
    declare: Any = once.task if kind == "guarded" else app.task
    task = declare(name="add")(add)

    with mock.patch("celery.app.base.Celery.send_task", autospec=autospec or None) as sent:
        task.delay(1, 2)
        app.send_task("add", (3, 4))
        app.send_task("elsewhere", (5,))

    assert sent.call_count == 3
    with app.connection_for_read() as connection:
        assert connection.SimpleQueue(app.conf.task_default_queue).qsize() == 0


@pytest.mark.parametrize("autospec", [False, True])
def test_a_mock_of_celerys_apply_async_catches_a_guarded_call(app: Celery, *, autospec: bool) -> None:
    task = Oncelery(app).task(name="add")(add)

    with mock.patch("celery.app.task.Task.apply_async", autospec=autospec or None) as sent:
        task.delay(1, 2)

    assert sent.call_count == 1
    result: Any = task.delay(3, 4)
    assert result.published


# Watchers of the log


class ForeseenError(Exception):
    """An error that `throws=` names."""


@pytest.mark.parametrize(("error", "lines"), [(ForeseenError, 0), (ValueError, 1)])
def test_a_failure_is_one_line_of_an_error_and_one_that_is_foreseen_is_none(
    hand: Hand, caplog: pytest.LogCaptureFixture, error: type[Exception], lines: int
) -> None:
    @hand.once.task(name="fails", throws=(ForeseenError,))
    def fails() -> None:
        raise error("no")

    hand.watch()
    fails.delay()
    with caplog.at_level(logging.INFO):
        hand.deliver()

    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == lines
    assert [record.levelname for record in caplog.records if record.name == "oncelery.events"] == ["INFO"]


# Arguments


def test_wrong_arguments_are_refused_in_celerys_words(app: Celery) -> None:
    once = Oncelery(app)
    task = once.task(name="add", key="x")(add)

    @once.task(name="bound", bind=True)
    def bound(_self: Any, x: int, y: int) -> int:
        return x + y

    with pytest.raises(TypeError, match=r"^add\(\) missing 1 required positional argument: 'y'$"):
        task.delay(1)
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'y'$"):
        bound.delay(1)


@pytest.mark.parametrize("key", [None, "x", TASK_ID])
def test_without_typing_wrong_arguments_fail_in_the_worker(hand: Hand, key: Any) -> None:
    task = hand.once.task(name="add", typing=False, key=key)(add)

    results = [task.delay(1), task.delay(1, 2, 3), task.delay(1, 2)]
    hand.deliver_all()

    assert [result.state for result in results] == ["FAILURE", "FAILURE", "SUCCESS"]
    assert [hand.job(result).state for result in results] == [State.BURIED, State.BURIED, State.COMPLETED]


def test_without_typing_equal_wrong_arguments_are_one_job(hand: Hand) -> None:
    task = hand.once.task(name="add", typing=False, key="x")(add)

    first, second, other = task.delay(1), task.delay(1), task.delay(2)

    assert first.id == second.id != other.id


# Task classes


class Batching(Task):  # type: ignore[type-arg]
    """As celery-batches has it."""

    abstract = True
    Strategy = "somewhere:Strategy"


@pytest.mark.parametrize("guard", [lambda once: once.task, lambda once: once.app.task])
def test_a_base_with_its_own_strategy_is_refused_by_name(app: Celery, guard: Any) -> None:
    base = type("Guarded", (IdempotentTask, Batching), {"abstract": True})

    guard(Oncelery(app))(name="batch", base=base)(add)

    with pytest.raises(ConfigurationError, match=r"'batch'.*Batching.*Strategy.*@app\.task"):
        app.finalize()


# A second app


def test_a_second_app_without_a_store_sends_a_guarded_task_as_any_other() -> None:
    with unshared_tasks():
        shop = Celery("shop", set_as_current=False, broker="memory://")
        once = Oncelery(shop, store="memory://")
        once.task(name="shop.charge")(add)
        other = Celery("other", set_as_current=False, broker="memory://")
        other.conf.task_default_queue = "of-the-other"

        other.send_task("shop.charge", (1, 2))
        other.tasks["shop.charge"].delay(1, 2)

        with other.connection_for_read() as connection:
            messages = [connection.SimpleQueue("of-the-other").get(block=False) for _ in range(2)]
    assert [message.payload[0] for message in messages] == [[1, 2], [1, 2]]
    assert not any("oncelery_key" in message.headers for message in messages)


def test_the_only_app_of_a_task_needs_a_store() -> None:
    with unshared_tasks():
        app = Celery("shop", set_as_current=False, broker="memory://")
        task = Oncelery(app).task(name="shop.charge")(add)

        with pytest.raises(ConfigurationError, match="oncelery_store"):
            task.delay(1, 2)


# Options of a call


def test_on_duplicate_holds_for_one_call(hand: Hand) -> None:
    name = hand.name()
    first = hand.tasks.joining.delay(name)

    with pytest.raises(DuplicateTaskError) as refused:
        hand.tasks.joining.apply_async((name,), on_duplicate="reject")

    assert refused.value.task_id == refused.value.job_id == first.id
    assert hand.tasks.rejecting.delay(name).id != hand.tasks.joining.delay(name).id
    joined = hand.tasks.rejecting.s(name).set(on_duplicate="join").apply_async()
    assert joined.existing


def test_an_on_duplicate_that_does_not_exist_is_refused(hand: Hand) -> None:
    with pytest.raises(ConfigurationError, match="on_duplicate must be one of"):
        hand.tasks.joining.apply_async((hand.name(),), on_duplicate="ignore")


@pytest.mark.parametrize("option", ["key", "ignore", "retention", "lease", "history", "retry_on", "max_attempts"])
def test_an_option_of_the_task_is_refused_in_a_call(hand: Hand, option: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"'joining'.*{option}=.*@once\.task"):
        hand.tasks.joining.apply_async((hand.name(),), **{option: 1})


# Asking without sending


def test_whether_a_call_is_known_can_be_asked_without_sending_it(hand: Hand) -> None:
    name, jobs, task = hand.name(), hand.once.jobs, hand.tasks.joining

    assert jobs.of(task, name, 1) is None
    result = task.delay(name, 2)
    assert jobs.of(task, name=name) == hand.job(result)
    hand.deliver_all()
    found = jobs.of(task, name)
    assert found is not None
    assert (found.id, found.state) == (result.id, State.COMPLETED)
    assert jobs.of(task, hand.name()) is None
    assert found.duplicates == 0


def test_calls_that_are_known_by_their_id_alone_cannot_be_asked_for(hand: Hand) -> None:
    with pytest.raises(ConfigurationError, match=r"'notifying'.*TASK_ID.*jobs\.get"):
        hand.once.jobs.of(hand.tasks.notifying, hand.name())
