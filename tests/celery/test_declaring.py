from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery, Task, shared_task
from guarded.world import unshared_tasks

from oncelery import TASK_ID, ConfigurationError, IdempotentTask, Oncelery, Policy, current_run
from oncelery.job import Durability, OnDuplicate


class RefusedError(Exception):
    pass


@pytest.fixture
def app() -> Celery:
    """Give an app of this test alone, on nothing but memory."""
    app = Celery("shop", set_as_current=False, broker="memory://", backend="cache+memory://")
    app.conf.update(oncelery_store="memory://", task_always_eager=True)
    return app


def runs_once(task: Any, *args: object) -> bool:
    first, second = task.delay(*args), task.delay(*args)
    return bool(first.get() == second.get() and second.existing)


# Ways to declare a guarded task


def test_an_apps_own_task_class_may_be_given_as_the_base(app: Celery) -> None:
    class DatabaseTask(Task):  # type: ignore[type-arg]
        abstract = True
        history = "its own"

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return f"{super().__call__(*args, **kwargs)} by way of {self.history}"

    @Oncelery(app).task(name="charge", base=DatabaseTask, key="order")
    def charge(order: str) -> str:
        return order

    assert runs_once(charge, "o-1")
    assert charge.delay("o-1").get() == "o-1 by way of its own"


def test_a_task_is_declared_with_options_of_ours_and_of_celerys(app: Celery) -> None:
    once = Oncelery(app)

    @once.task(
        name="charge",
        key=("order_id", "shop.id"),
        ignore="trace",
        scope="shop.id",
        retention=60,
        lease=timedelta(seconds=5),
        history=3600,
        on_duplicate="trail",
        retry_on=RefusedError,
        bury_on=(KeyError,),
        max_attempts=2,
        max_crashes=1,
        on_takeover="hold",
        durability="safe",
        rate_limit="10/m",
        ignore_result=True,
    )
    def charge(order_id: str, shop: dict[str, str], trace: str = "") -> None: ...

    policy = charge.policy
    assert (policy.key, policy.ignore, policy.scope) == (("order_id", "shop.id"), "trace", "shop.id")
    assert (policy.retention, policy.lease, policy.history) == (
        timedelta(minutes=1),
        timedelta(seconds=5),
        timedelta(hours=1),
    )
    assert (policy.on_duplicate, policy.durability, policy.on_takeover) == (
        OnDuplicate.TRAIL,
        Durability.SAFE,
        "hold",
    )
    assert (policy.retry_on, policy.bury_on, policy.max_attempts, policy.max_crashes) == (
        (RefusedError,),
        (KeyError,),
        2,
        1,
    )
    assert (charge.name, charge.rate_limit, charge.ignore_result) == ("charge", "10/m", True)


def test_the_decorator_works_without_parentheses(app: Celery) -> None:
    once = Oncelery(app)

    @once.task
    def bare(x: int) -> int:
        return x

    @once.task()
    def empty(x: int) -> int:
        return x

    assert runs_once(bare, 1)
    assert runs_once(empty, 1)


def test_the_task_class_works_alone(app: Celery) -> None:
    @app.task(base=IdempotentTask)
    def alone(x: int) -> int:
        return x

    @app.task(base=IdempotentTask, once={"key": "x"})
    def with_options(x: int, y: int) -> int:
        return x + y

    @app.task(base=IdempotentTask, once=Policy(key="x"))
    def with_policy(x: int, y: int) -> int:
        return x + y

    assert runs_once(alone, 1)
    assert [with_options.delay(1, y).get() for y in (1, 2)] == [2, 2]
    assert [with_policy.delay(1, y).get() for y in (1, 2)] == [2, 2]


def test_a_shared_task_works_with_nothing_but_a_store_in_the_apps_configuration(app: Celery) -> None:
    @shared_task(base=IdempotentTask, once={"key": "x"}, name="shared")
    def shared(x: int) -> int:
        return x

    assert runs_once(app.tasks["shared"], 1)


def test_a_task_that_is_a_class_works(app: Celery) -> None:
    class Adding(IdempotentTask):
        name = "adding"
        once = {"key": "x"}  # noqa: RUF012 - as users of Celery write options

        def run(self, x: int, y: int = 0) -> int:
            return x + y

    app.register_task(Adding())

    assert [app.tasks["adding"].delay(1, y).get() for y in (1, 2)] == [2, 2]


def test_tasks_declared_before_the_extension_are_covered(app: Celery) -> None:
    @app.task(base=IdempotentTask)
    def early(x: int) -> int:
        return x

    assert early.policy.lease == timedelta(seconds=30)

    once = Oncelery(app, lease=5)

    assert early.oncelery is once
    assert early.policy.lease == timedelta(seconds=5)
    assert runs_once(early, 1)


def test_a_second_extension_does_not_send_through_the_first(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    monkeypatch.setattr(app, "send_task", sent.append)

    first = Oncelery(app)
    second = Oncelery(app)
    first.send_unguarded("one")
    second.send_unguarded("two")

    assert sent == ["one", "two"]


def test_a_guarded_task_keeps_the_apps_own_task_class_however_it_is_declared() -> None:
    class Polite(Task):  # type: ignore[type-arg]
        ignore_result = True

        def __init__(self) -> None:
            self.word = "please"

        def greeting(self) -> str:
            return f"{self.word} {self.name}"

    class Stern(IdempotentTask):
        abstract = True

    def nothing() -> None: ...

    app: Any = Celery("shop", set_as_current=False, task_cls=Polite)
    once: Any = Oncelery(app, store="memory://")

    once.task(name="charge")(nothing)
    app.task(name="refund", base=IdempotentTask)(nothing)
    shared_task(name="rebate", base=IdempotentTask)(nothing)
    app.task(name="bill", base=Stern)(nothing)

    guarded = [app.tasks[name] for name in ("charge", "refund", "rebate")]
    assert [task.greeting() for task in guarded] == ["please charge", "please refund", "please rebate"]
    assert all(isinstance(task, IdempotentTask) and task.ignore_result for task in guarded)
    # A class of your own is all that you say it is.
    assert not isinstance(app.tasks["bill"], Polite)


def test_a_run_goes_by_way_of_the_apps_own_class_once_for_each_job() -> None:
    seen: list[object] = []

    class InContext(Task):  # type: ignore[type-arg] # generic only in the stubs
        abstract = True

        def __init_subclass__(cls) -> None:
            seen.append(cls.__name__)

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            seen.append("context")
            return self.run(*args, **kwargs)

    app = Celery("shop", set_as_current=False, broker="memory://", backend="cache+memory://", task_cls=InContext)
    app.conf.task_always_eager = True

    @Oncelery(app, store="memory://").task(bind=True, name="charge", shared=False)
    def charge(self: Any, x: int) -> None:
        seen.append((x, self.request.called_directly))

    charge.delay(1)
    charge.delay(1)

    assert seen[seen.index("charge") :] == ["charge", "context", (1, False)]


def test_a_task_called_directly_is_a_plain_function(app: Celery) -> None:
    seen = []

    @Oncelery(app).task(bind=True)
    def bound(self: Any, x: int) -> int:
        seen.append(current_run().attempt)
        return x + len(self.name) - len(self.name)

    assert [bound(1), bound(1)] == [1, 1]
    assert seen == [1, 1]


def test_a_tasks_name_type_and_documentation_stay_its_own(app: Celery) -> None:
    @Oncelery(app).task
    def documented(x: int) -> int:
        """Tell."""
        return x

    task: Any = documented
    assert task.__doc__ == "Tell."
    assert task.__wrapped__(3) == 3


# What is left alone


def test_plain_and_builtin_tasks_are_untouched(app: Celery) -> None:
    once = Oncelery(app)

    @app.task(name="plain")
    def plain(x: int) -> int:
        return x

    @once.task(name="guarded")
    def guarded(x: int) -> int:
        return x

    ours = ("guarded", "oncelery.")
    others = [task for task in app.tasks.values() if not task.name.startswith(ours)]
    assert len(others) > 5
    assert not any(isinstance(task, IdempotentTask) for task in others)
    assert {task.Request for task in others} == {Task.Request}
    assert not any(task.acks_late for task in others)


def test_where_all_tasks_are_guarded_by_the_apps_class_the_builtin_ones_are_not() -> None:
    app = Celery("shop", set_as_current=False, broker="memory://", backend="cache+memory://", task_cls=IdempotentTask)
    app.conf.update(oncelery_store="memory://", task_always_eager=True)
    calls = []

    @app.task(name="charge")
    def charge(x: int) -> None:
        calls.append(x)

    charge.delay(1)
    charge.delay(1)
    accumulated = [app.tasks["celery.accumulate"].delay(1, 2).get() for _ in range(2)]

    assert calls == [1]
    assert [tuple(each) for each in accumulated] == [(1, 2), (1, 2)]


def test_an_app_without_a_store_is_told_when_a_guarded_task_is_used_and_not_before() -> None:
    app = Celery("shop", set_as_current=False, broker="memory://")

    with unshared_tasks():

        @app.task(base=IdempotentTask, name="guarded")
        def guarded(x: int) -> int:
            return x

        app.finalize()

    with pytest.raises(ConfigurationError, match="oncelery_store"):
        app.tasks["guarded"].delay(1)


# Threads


def test_threads_that_come_first_together_share_one_ledger(app: Celery) -> None:
    once = Oncelery(app)
    together = threading.Barrier(8)
    ledgers = []

    def ask() -> None:
        together.wait()
        ledgers.append((once.ledger, once.heartbeat))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(ledgers)) == 1


def test_a_key_of_task_id_makes_every_call_its_own_work(app: Celery) -> None:
    calls = []

    @Oncelery(app).task(key=TASK_ID)
    def notify(x: float) -> None:
        calls.append(x)

    notify.delay(1)
    notify.delay(1)
    notify.apply_async((2,), task_id="given")
    notify.apply_async((2,), task_id="given")

    assert calls == [1, 1, 2]
