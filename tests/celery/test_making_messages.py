from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery, Task
from celery.app.amqp import AMQP
from celery.exceptions import QueueNotFound
from celery.signals import before_task_publish
from celery.utils.saferepr import saferepr
from guarded.hand import Hand
from hypothesis import given
from hypothesis import strategies as st

from oncelery.celery.message import shown
from oncelery.job import Query, State

#: What most calls are made of.
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)


def test_a_message_is_made_while_the_ledger_is_asked_and_sent_when_it_has_answered(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def noted(word: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def acting(*args: Any, **options: Any) -> Any:
            order.append(word)
            return act(*args, **options)

        return acting

    amqp, reserving = hand.app.amqp, hand.store.reserving

    def answered(*args: Any, **options: Any) -> Callable[[], Any]:
        return noted("answered", reserving(*args, **options))

    monkeypatch.setattr(hand.store, "reserving", noted("asked", answered))
    monkeypatch.setattr(amqp, "create_task_message", noted("made", amqp.create_task_message))
    monkeypatch.setattr(amqp, "send_task_message", noted("sent", amqp.send_task_message))
    # Not while the ledger is asked: others may be waiting for a producer.
    monkeypatch.setattr(hand.app.producer_pool, "acquire", noted("producer", hand.app.producer_pool.acquire))

    hand.tasks.joining.delay(hand.name())

    assert order == ["asked", "made", "answered", "producer", "sent"]


def test_nobody_is_told_of_a_message_that_is_not_sent(hand: Hand) -> None:
    name, told = hand.name(), []
    first = hand.tasks.joining.delay(name)

    def tell(headers: dict[str, Any], **_: object) -> None:
        told.append(headers["id"])

    before_task_publish.connect(tell)
    try:
        with hand.app.producer_or_acquire() as producer:
            connection = producer.connection
        second = hand.tasks.joining.delay(name)
        with hand.app.producer_or_acquire() as producer:
            kept = producer.connection
    finally:
        before_task_publish.disconnect(tell)

    assert (second.id, second.existing, told) == (first.id, True, [])
    assert kept is connection


def test_what_else_is_sent_while_a_message_is_made_is_sent(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    make = hand.app.amqp.create_task_message

    def make_another_too(task_id: str, name: str, *args: Any, **options: Any) -> Any:
        if name == "joining":
            hand.app.send_task("unknown here")
        return make(task_id, name, *args, **options)

    monkeypatch.setattr(hand.app.amqp, "create_task_message", make_another_too)
    name = hand.name()

    results = [hand.tasks.joining.delay(name) for _ in range(2)]

    assert [result.existing for result in results] == [False, True]
    # One for each call, and one job.
    assert hand.waiting() == 2 + 1


def test_the_apps_own_router_is_asked_once_for_a_call(hand: Hand) -> None:
    asked: list[str] = []

    def in_turns(name: str, *_: object, **__: object) -> dict[str, str]:
        asked.append(name)
        return {"queue": f"turn-{len(asked)}"}

    hand.app.conf.task_routes = (in_turns,)

    results = [hand.tasks.joining.delay(hand.name()) for _ in range(2)]

    assert [hand.job(result).queue for result in results] == ["turn-1", "turn-2"]
    assert [hand.waiting("turn-1"), hand.waiting("turn-2")] == [1, 1]
    assert asked == ["joining"] * 2


def test_a_router_may_be_given_with_the_call(hand: Hand) -> None:
    class Elsewhere:
        def route(self, options: dict[str, Any], *_: object) -> dict[str, Any]:
            return {**options, "queue": hand.app.amqp.queues["elsewhere"]}

    result = hand.tasks.joining.apply_async((hand.name(),), router=Elsewhere())

    assert hand.job(result).queue == "elsewhere"
    assert hand.waiting("elsewhere") == 1


def test_a_call_to_a_queue_that_may_not_be_made_leaves_no_job(hand: Hand) -> None:
    hand.app.conf.task_create_missing_queues = False

    with pytest.raises(QueueNotFound):
        hand.tasks.joining.apply_async((hand.name(),), queue="missing")

    assert not hand.once.ledger.find(Query()).items


def test_headers_that_are_passed_on_tell_of_no_other_job(hand: Hand) -> None:
    first = hand.tasks.scoped.apply_async(("acme", "order-1"), idempotency_key="k")
    headers = {**hand.deliver().headers, "oncelery_resent": True, "trace": "t-1"}

    hand.tasks.joining.apply_async((hand.name(),), headers=headers)

    ours = {name: value for name, value in hand.deliver().headers.items() if name.startswith("oncelery")}
    assert [*ours] == ["oncelery_key"]
    assert ours["oncelery_key"] != hand.job(first).key


def test_an_app_may_hide_what_a_message_shows(hand: Hand) -> None:
    class Hiding(Task):  # type: ignore[type-arg]
        def apply_async(self, *args: Any, **options: Any) -> Any:
            return super().apply_async(*args, **{"argsrepr": "(***)", **options})

    vars(hand.app)["task_cls"] = Hiding

    @hand.once.task(name="hiding")
    def hiding(secret: str) -> str:
        return secret

    hand.app.tasks["hiding"].delay("password1")

    assert hand.deliver().headers["argsrepr"] == "(***)"


def test_a_task_has_no_child_that_was_never_sent(hand: Hand) -> None:
    name = hand.name()
    hand.tasks.joining.delay(name)

    @hand.once.task(name="calling")
    def calling() -> str:
        return str(hand.tasks.joining.delay(name).id)

    outer = hand.app.tasks["calling"].delay()
    hand.deliver_all()

    assert outer.get(timeout=1)
    assert not outer.children


def test_code_of_the_apps_own_is_entered_for_new_jobs_only(hand: Hand) -> None:
    entered: list[dict[str, Any]] = []

    class Own(Task):  # type: ignore[type-arg]
        def apply_async(self, *args: Any, **options: Any) -> Any:
            entered.append(options)
            return super().apply_async(*args, **options)

    vars(hand.app)["task_cls"] = Own

    @hand.once.task(name="own")
    def own(x: int) -> int:
        return x

    results: list[Any] = [hand.app.tasks["own"].delay(1) for _ in range(2)]

    assert [result.existing for result in results] == [False, True]
    assert len(entered) == 1
    assert "oncelery_gate" not in entered[0]


@pytest.mark.parametrize("way", ["producer", "connection"])
def test_a_call_over_a_connection_of_the_callers_is_asked_for_and_sent(hand: Hand, way: str) -> None:
    name = hand.name()
    with hand.app.connection_for_write() as connection:
        given = {"producer": hand.app.amqp.Producer(connection), "connection": connection}[way]

        results = [hand.tasks.joining.apply_async((name,), **{way: given}) for _ in range(2)]

    assert [result.existing for result in results] == [False, True]
    assert hand.waiting() == 1


def test_a_job_is_reserved_although_its_sending_is_stood_in_for(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hand.app, "send_task", lambda *_, task_id, **__: hand.app.AsyncResult(task_id))

    name = hand.name()

    first, second = (hand.tasks.joining.delay(name) for _ in range(2))

    assert hand.job(first).state is State.QUEUED
    assert (first.job.id, first.existing) == (first.id, False)
    assert (second.id, second.existing) == (first.id, True)


# What a message shows of its call


@given(
    st.lists(SCALARS, max_size=3).map(tuple),
    st.dictionaries(st.text(max_size=5), SCALARS | st.lists(st.integers(), max_size=2), max_size=3),
)
def test_a_call_is_shown_as_celery_shows_it(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    found = shown(AMQP(Celery()), args, kwargs)

    if any(isinstance(value, list) for value in kwargs.values()):
        assert found == {}
    else:
        assert found == {"argsrepr": saferepr(args, 1024), "kwargsrepr": saferepr(kwargs, 1024)}


def test_what_is_long_or_for_the_app_to_say_is_left_to_celery_to_show() -> None:
    own, brief = type("OwnAMQP", (AMQP,), {})(Celery()), AMQP(Celery())
    brief.argsrepr_maxsize = 5

    assert shown(AMQP(Celery()), ("x" * 2000,), {}) == {}
    assert shown(own, (1,), {}) == shown(brief, (1,), {}) == {}
