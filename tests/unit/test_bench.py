"""The bench that users test their tasks on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery, chord
from guarded.world import unshared_tasks

from oncelery import Oncelery, current_run
from oncelery.errors import ConfigurationError
from oncelery.testing.bench import Bench, Place, WorkerCrash

#: Nobody is there.
NOWHERE = "redis://127.0.0.1:1/0"


class Shop:
    """An app on servers that do not exist, and what its tasks did."""

    def __init__(self) -> None:
        self.app = Celery("shop", broker=NOWHERE, backend=NOWHERE, set_as_current=False)
        self.once = Oncelery(self.app, store=NOWHERE)
        self.done: list[str] = []
        self.failures: list[BaseException] = []
        self.inside: Callable[[], object] = lambda: None

        @self.once.task(name="shop.charge", key="order", retry_on=(TimeoutError,), bury_on=(ValueError,), shared=False)
        def charge(order: str) -> str:
            self.inside()
            if self.failures:
                raise self.failures.pop()
            self.done.append(order)
            return f"charged {order} under {current_run().fence > 0}"

        self.charge: Any = charge


@pytest.fixture
def shop() -> Iterator[Shop]:
    with unshared_tasks():
        yield Shop()


@pytest.fixture
def bench(shop: Shop, oncelery_bench: Callable[[Oncelery], Bench]) -> Bench:
    return oncelery_bench(shop.once)


def test_an_app_itself_is_refused_with_what_to_give_instead(shop: Shop, oncelery_bench: Callable[[Any], Bench]) -> None:
    with pytest.raises(TypeError, match=r"your Oncelery \(`once`\), not a Celery"):
        oncelery_bench(shop.app)


def test_what_an_app_has_found_out_about_its_own_servers_does_not_hold_on_the_bench(
    shop: Shop, oncelery_bench: Callable[[Oncelery], Bench]
) -> None:
    shop.app.conf.update(broker_url="sqs://", result_backend="rpc://")
    shop.once.__dict__["marks_redeliveries"] = False  # as with SQS
    assert shop.once.answers_its_callers

    bench = oncelery_bench(shop.once)
    result = shop.charge.delay("o-1")
    bench.run_all()

    assert (shop.once.answers_its_callers, shop.once.marks_redeliveries) == (False, True)
    assert result.get(timeout=1) == "charged o-1 under True"


def test_a_retry_is_run_when_its_time_has_come(shop: Shop, bench: Bench) -> None:
    shop.failures.append(TimeoutError())
    result = shop.charge.delay("o-1")
    began = bench.clock.now

    states = [delivered.state for delivered in bench.run_all()]

    assert states == ["RETRY", "SUCCESS"]
    assert (bench.runs(result), bench.job(result).attempt) == (2, 2)
    assert bench.clock.now >= began


def test_a_countdown_passes_by_the_clock_and_earlier_messages_come_first(shop: Shop, bench: Bench) -> None:
    began = bench.clock.now
    shop.charge.apply_async(["later"], countdown=3600)
    shop.charge.delay("now")

    bench.run_all()

    assert shop.done == ["now", "later"]
    assert (bench.clock.now - began).total_seconds() > 3500


def test_a_job_that_was_run_twice_or_not_completed_did_not_run_once(shop: Shop, bench: Bench) -> None:
    shop.failures.append(ValueError("no such card"))
    result = shop.charge.delay("o-1")
    with pytest.raises(AssertionError, match="is queued, and was run 0 times"):
        bench.assert_ran_once(result)

    bench.run_all()

    with pytest.raises(AssertionError, match=r"is buried \(ValueError: no such card\), and was run 1 times"):
        bench.assert_ran_once(result)
    with pytest.raises(AssertionError, match="no job x is known"):
        bench.assert_ran_once("x")


@pytest.mark.parametrize(
    ("place", "runs"), [("before-begin", 1), ("after-begin", 1), ("before-settle", 2), ("after-settle", 1)]
)
def test_a_crash_anywhere_is_recovered_from(shop: Shop, bench: Bench, place: Place, runs: int) -> None:
    result = shop.charge.delay("o-1")

    with bench.crash_at(place):
        (crashed,) = bench.run_all()
    bench.recover()

    assert crashed.state == "CRASHED"
    assert bench.runs(result) == runs
    assert bench.job(result).state == "completed"
    assert result.get(timeout=1) == "charged o-1 under True"


def test_a_crash_in_the_task_itself_is_no_failure_of_it(shop: Shop, bench: Bench) -> None:
    result = shop.charge.delay("o-1")
    shop.inside = bench.crash

    assert [each.state for each in bench.run_all()] == ["CRASHED"]
    assert bench.job(result).state == "running"

    shop.inside = lambda: None
    bench.recover()
    assert (bench.job(result).state, bench.job(result).past[0].cause) == ("completed", "lapse")


def test_a_message_that_comes_again_while_its_task_runs_runs_nothing(shop: Shop, bench: Bench) -> None:
    result = shop.charge.delay("o-1")
    shop.inside = lambda: bench.redeliver(result)

    bench.run_all()

    bench.assert_ran_once(result)
    assert shop.done == ["o-1"]


def test_chains_and_chords_go_on_also_after_a_crash(shop: Shop, bench: Bench) -> None:
    @shop.once.task(name="shop.sum", shared=False)
    def total(receipts: list[str]) -> int:
        return len(receipts)

    shop.app.set_current()
    counted = chord([shop.charge.s("a"), shop.charge.s("b")], total.s())()

    with bench.crash_at("after-settle"):
        bench.run_all()
    bench.recover()

    assert counted.get(timeout=1) == 2
    assert sorted(shop.done) == ["a", "b"]


def test_a_test_that_breaks_nothing_fails(shop: Shop, bench: Bench) -> None:
    with pytest.raises(AssertionError, match="nothing crashed"), bench.crash_at("after-begin"):
        pass
    with pytest.raises(ConfigurationError, match="there are before-begin"), bench.crash_at("nowhere"):  # type: ignore[arg-type]
        pass
    with pytest.raises(AssertionError, match="no message waits"):
        bench.deliver()
    with pytest.raises(AssertionError, match="has not been delivered yet"):
        bench.redeliver(shop.charge.delay("o-1"))
    with pytest.raises(WorkerCrash):
        bench.crash()


def test_afterwards_the_app_is_as_it_was(shop: Shop) -> None:
    with Bench(shop.once).in_place() as bench:
        shop.charge.delay("o-1")
        bench.run_all()

    assert shop.app.conf.broker_url == shop.app.conf.result_backend == NOWHERE
    assert shop.once.settings.store == NOWHERE
    assert "ledger" not in vars(shop.once)
    assert not hasattr(shop.charge.run, "bench")
    assert shop.charge.run.__name__ == "charge"


def test_the_plugin_costs_a_test_run_that_does_not_use_it_next_to_nothing() -> None:
    program = "import sys; import oncelery.testing.plugin; print(*sys.modules)"

    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()

    assert not {"celery", "kombu", "redis", "psycopg", "click", "rich"} & set(loaded)
