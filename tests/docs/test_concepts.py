"""What docs/concepts.md says of apps that exist, and of periodic tasks, without showing it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery, Task, chain
from guarded.versions import dumps_models
from pydantic import BaseModel

from oncelery import TASK_ID, Oncelery
from oncelery.job import State
from oncelery.testing.bench import Bench

app = Celery("concepts", broker="redis://localhost:1", backend="redis://localhost:1", set_as_current=False)
once = Oncelery(app, store="redis://localhost:1")
ran: list[object] = []


class Order(BaseModel):
    """An order, with something that may be left out."""

    id: str
    note: str = "none"


@once.task
def by_default() -> None:
    ran.append("tick")


@once.task(retention=0)
def one_at_a_time() -> None:
    ran.append("tick")


@once.task(key=TASK_ID)
def every_tick() -> None:
    ran.append("tick")


@once.task(key="order_id")
def charge(order_id: str, amount: int) -> int:
    ran.append(order_id)
    return amount


@once.task(bind=True, max_retries=6, max_attempts=2)
def asks_for_a_retry(self: Task[..., Any]) -> None:
    ran.append("attempt")
    raise self.retry(exc=ValueError(), countdown=1)


@once.task(autoretry_for=(ValueError,), retry_on=(ValueError,), max_retries=6, max_attempts=2)
def retried_by_celery() -> None:
    ran.append("attempt")
    raise ValueError


@once.task(on_duplicate="reject")
def add(x: int, y: int) -> int:
    ran.append((x, y))
    return x + y


@once.task(pydantic=True)
def pay(order: Order) -> str:
    return order.id


@once.task(pydantic=True, key="order.id")
def pay_by_id(order: Order) -> str:
    return order.id


@pytest.fixture
def bench(oncelery_bench: Callable[[Oncelery], Bench]) -> Bench:
    """Give a fresh ledger, and a worker."""
    ran.clear()
    return oncelery_bench(once)


@pytest.mark.parametrize(("task", "runs"), [(by_default, 1), (one_at_a_time, 4), (every_tick, 4)])
def test_a_periodic_task_runs_at_each_tick_only_if_it_says_so(bench: Bench, task: Task[..., Any], runs: int) -> None:
    for _tick in range(4):
        task.delay()
        bench.run_all()

    assert len(ran) == runs


@pytest.mark.parametrize(("task", "runs"), [(one_at_a_time, 1), (every_tick, 2)])
def test_ticks_of_which_none_has_run_yet_are_one_job_unless_each_is_work_of_its_own(
    bench: Bench, task: Task[..., Any], runs: int
) -> None:
    task.delay()
    task.delay()
    bench.run_all()

    assert len(ran) == runs


def test_what_the_key_of_a_task_does_not_name_is_not_compared(bench: Bench) -> None:
    charge.delay("o-1", 5)
    bench.run_all()

    assert charge.delay("o-1", 999).get(timeout=1) == 5


@pytest.mark.parametrize("task", [asks_for_a_retry, retried_by_celery])
def test_retries_of_celery_go_by_its_own_limit(bench: Bench, task: Task[..., Any]) -> None:
    result = task.delay()
    bench.run_all()

    assert len(ran) == 7
    assert bench.job(result).state is State.BURIED


def test_part_of_a_chain_takes_the_result_of_the_same_work_and_the_next_one_goes_on(bench: Bench) -> None:
    add.delay(1, 1)
    both = chain(add.s(1, 1), add.s(10)).delay()
    bench.run_all()

    assert both.get(timeout=1) == 12
    assert ran == [(1, 1), (2, 10)]


@dumps_models
def test_a_model_is_its_dump_but_not_a_dictionary_without_its_default(bench: Bench) -> None:
    order = Order(id="o-1")
    first, same, other = (pay.delay(given).id for given in (order, order.model_dump(), {"id": "o-1"}))

    assert first == same != other
    assert pay_by_id.delay(order).id == pay_by_id.delay({"id": "o-1"}).id
    assert len(bench.run_all()) == 3
