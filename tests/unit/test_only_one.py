from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta
from time import monotonic
from typing import Any

import pytest
from celery import Celery, _state
from celery.local import Proxy

from oncelery import Oncelery, current_run, only_one
from oncelery.errors import ConfigurationError, JobCancelledError, LeaseLostError, StoreUnavailableError
from oncelery.job import Answer, Cause, State
from oncelery.ledger import Ledger
from oncelery.stores.memory import MemoryStore
from oncelery.testing.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Celery:
    """Give an app that is the current one in every thread."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.task_always_eager = True
    app.conf.task_store_eager_result = False
    monkeypatch.setattr(_state, "default_app", app)
    monkeypatch.setattr("celery._state._tls.current_app", None)
    return app


@pytest.fixture
def once(app: Celery, clock: FakeClock) -> Oncelery:
    once = Oncelery(app, store="memory://")
    once.ledger = Ledger(MemoryStore(clock=clock))
    return once


class Errand:
    """A body that tells when it runs, and goes on when it is told to."""

    def __init__(self) -> None:
        self.runs = 0
        self._running = threading.Semaphore(0)
        self._go_on = threading.Semaphore(0)

    def __call__(self, value: str = "done") -> str:
        self.runs += 1
        self._running.release()
        assert self._go_on.acquire(timeout=10)
        return value

    def has_begun(self) -> bool:
        """Whether an instance begins, sooner or later."""
        return self._running.acquire(timeout=10)

    def finish(self) -> None:
        """Let one instance go on."""
        self._go_on.release()

    @contextmanager
    def under_way(self, call: Callable[[], Any]) -> Iterator[Future[Any]]:
        """Run `call`, which comes to this errand, in a thread while the block runs; then let it finish."""
        with ThreadPoolExecutor(1) as threads:
            future = threads.submit(call)
            assert self.has_begun()
            try:
                yield future
            finally:
                self.finish()


@pytest.fixture
def errand() -> Errand:
    return Errand()


@pytest.mark.usefixtures("once")
def test_a_later_instance_is_skipped_while_one_runs_and_what_that_returns_is_kept(errand: Errand) -> None:
    @only_one
    def report(value: str) -> str:
        return errand(value)

    with errand.under_way(lambda: report("first")) as first:
        skipped = report("second")

    assert skipped is None
    assert first.result() == "first"
    assert errand.runs == 1


@pytest.mark.usefixtures("once")
def test_the_next_instance_begins_when_one_has_ended() -> None:
    @only_one
    def report(value: int) -> int:
        return value

    assert [report(1), report(2)] == [1, 2]


@pytest.mark.usefixtures("once")
def test_an_error_passes_through_and_frees_the_lock(once: Oncelery) -> None:
    errors: list[BaseException] = [ValueError("no rows"), SystemExit(1)]

    @only_one
    def report() -> str:
        if errors:
            raise errors.pop()
        return "done"

    with pytest.raises(SystemExit):
        report()
    with pytest.raises(ValueError, match="no rows"):
        report()
    assert report() == "done"
    assert {found.reason for found in once.jobs.find(states="cancelled").items} == {
        "ValueError: no rows",
        "SystemExit: 1",
    }
    assert once.dead_letters.find().items == ()


class UnspeakableError(Exception):
    """An error that cannot even be printed."""

    def __str__(self) -> str:
        raise KeyError


@pytest.mark.usefixtures("once")
def test_an_error_that_cannot_be_printed_frees_the_lock_too() -> None:
    errors = [UnspeakableError()]

    @only_one
    def report() -> str:
        if errors:
            raise errors.pop()
        return "done"

    with pytest.raises(UnspeakableError):
        report()
    assert report() == "done"


def test_a_dead_holders_lock_lapses(once: Oncelery, clock: FakeClock, errand: Errand) -> None:
    @only_one
    def report(body: Callable[[], str]) -> str:
        return body()

    with errand.under_way(lambda: report(errand)):  # its heartbeat does not come to renew before the clock is moved
        assert report(lambda: "new") is None
        clock.advance(seconds=31)
        assert report(lambda: "new") == "new"
    (lapsed,) = once.jobs.find(states="cancelled").items
    assert lapsed.reason == "lapsed"
    ended = once.jobs.get(lapsed.id)
    assert ended
    assert [attempt.cause for attempt in ended.past] == [Cause.LAPSE]


@pytest.mark.usefixtures("once")
def test_the_lock_is_its_holders_alone_and_a_late_one_does_not_free_it(clock: FakeClock) -> None:
    late, heir = Errand(), Errand()
    errands = iter([late, heir])

    @only_one
    def report() -> str:
        return next(errands)()

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(report)
        assert late.has_begun()
        clock.advance(seconds=31)
        second = threads.submit(report)
        assert heir.has_begun()

        late.finish()
        assert first.result(10) == "done"
        third = report()
        heir.finish()

    assert third is None
    assert second.result() == "done"


@pytest.mark.usefixtures("once")
def test_one_that_lost_its_lock_is_told_so_when_it_asks(clock: FakeClock) -> None:
    asked = Errand()

    @only_one(timeout=60)
    def report(*, first: bool) -> str:
        if first:
            asked()
            current_run().progress(1, 2)
        return "done"

    with pytest.raises(LeaseLostError), asked.under_way(lambda: report(first=True)) as late:  # noqa: PT012 - one story
        clock.advance(seconds=31)
        assert report(first=False) == "done"
        asked.finish()
        late.result(10)


def test_the_lease_is_renewed_while_it_runs_but_not_after_its_timeout(once: Oncelery) -> None:
    due: dict[str, list[int]] = {}

    def look() -> None:
        now = monotonic()
        due[current_run().lease.task.rpartition(".")[2]] = [
            len(once.heartbeat.due(now + seconds)) for seconds in (1, 11, 59, 61, 10_000)
        ]

    @only_one
    def patient() -> None:
        look()

    @only_one(timeout=60)
    def hasty() -> None:
        look()

    patient()
    hasty()

    assert due == {"patient": [0, 1, 1, 1, 1], "hasty": [0, 1, 1, 0, 0]}
    assert once.heartbeat.due(monotonic() + 11) == []


def test_after_its_timeout_asking_does_not_renew_either(
    once: Oncelery, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def until() -> datetime:
        (running,) = once.jobs.find(states="running").items
        assert running.lease_until
        return running.lease_until

    @only_one(timeout=60)
    def report() -> None:
        for seconds, renewed in ((40, True), (100, False)):
            before = until()
            clock.advance(seconds=1)
            monkeypatch.setattr("oncelery.run.monotonic", lambda later=begun + seconds: later)
            monkeypatch.setattr("oncelery.celery.only_one.monotonic", lambda later=begun + seconds: later)
            current_run().raise_if_cancelled()
            assert (until() > before) == renewed
        once.jobs.cancel(current_run().job_id)
        current_run().raise_if_cancelled()

    begun = monotonic()
    with pytest.raises(JobCancelledError):
        report()


@pytest.mark.parametrize(("timeout", "lease"), [(None, 30), (timedelta(hours=1), 30), (5, 5), (0.1, 1)])
@pytest.mark.usefixtures("once")
def test_a_lease_is_no_longer_than_the_timeout(timeout: timedelta | float | None, lease: int) -> None:
    @only_one(timeout=timeout)
    def report() -> timedelta:
        return current_run().lease.duration

    assert report() == timedelta(seconds=lease)


@pytest.mark.usefixtures("once")
def test_instances_that_a_key_tells_apart_run_side_by_side(errand: Errand) -> None:
    @only_one(key=lambda tenant, _body: tenant)
    def report(tenant: str, body: Callable[[], str]) -> str:
        return f"{tenant} {body()}"

    with errand.under_way(lambda: report("acme", errand)):
        assert report("acme", lambda: "2") is None
        assert report("bolt", lambda: "2") == "bolt 2"


@pytest.mark.usefixtures("once")
def test_functions_that_share_a_text_as_key_share_a_lock_and_others_do_not(errand: Errand) -> None:
    @only_one(key="books")
    def close_month() -> str:
        return errand()

    @only_one("books")
    def close_year() -> str:
        return "closed"

    @only_one
    def report() -> str:
        return "reported"

    with errand.under_way(close_month):
        assert close_year() is None
        assert report() == "reported"
    assert close_year() == "closed"


@pytest.mark.usefixtures("once")
def test_a_function_that_calls_itself_is_one_instance() -> None:
    @only_one
    def countdown(number: int) -> list[int]:
        return [number, *((countdown(number - 1) or [-1]) if number else [])]

    assert countdown(2) == [2, 1, 0]
    assert countdown(0) == [0]


def test_what_was_skipped_is_in_the_audit_and_what_ran_among_the_jobs(once: Oncelery, errand: Errand) -> None:
    @only_one
    def report() -> str:
        return errand()

    with errand.under_way(report):
        report()
    (skipped,) = once.duplicates.find().items
    (ran,) = once.jobs.find().items

    assert (skipped.answer, skipped.job_id) == (Answer.BUSY, ran.id)
    assert ran.state is State.COMPLETED
    assert ran.task.endswith("report")
    assert ran.retained_until == ran.settled_at


@pytest.mark.usefixtures("once")
@pytest.mark.parametrize("bind", [False, True])
@pytest.mark.parametrize("over", [False, True])
def test_it_works_below_and_above_a_task(app: Celery, errand: Errand, *, over: bool, bind: bool) -> None:
    def report(*args: str) -> str:
        return errand(args[-1]) if errand.runs == 0 else args[-1]

    options: dict[str, Any] = {"name": "shop.report", "bind": bind, "shared": False}
    declare = app.task(**options)
    one_each = only_one(key=lambda tenant: tenant)
    task: Any = one_each(declare(report)) if over else declare(one_each(report))

    with errand.under_way(lambda: task.delay("acme").result) as first:
        assert task.delay("acme").result is None
        assert task.delay("bolt").result == "bolt"

    assert task.name == "shop.report"
    assert first.result() == "acme"


@pytest.mark.usefixtures("once")
@pytest.mark.parametrize("over", [False, True])
def test_celery_still_checks_the_arguments_of_a_guarded_body(app: Celery, *, over: bool) -> None:
    def report(day: int) -> int:
        return day

    app.conf.task_always_eager = False
    declare = app.task(shared=False)
    task: Any = only_one(declare(report)) if over else declare(only_one(report))

    with pytest.raises(TypeError, match="day"):
        task.delay()


def test_inside_a_guarded_task_the_run_is_that_of_its_job(once: Oncelery) -> None:
    from oncelery.run import Run, running  # noqa: PLC0415

    seen: list[Run] = []

    @only_one
    def report() -> None:
        seen.append(current_run())

    outer = current_run()
    with running(outer):
        report()
    report()

    assert seen[0] is outer
    assert seen[1].key == once.jobs.find().items[0].key


def test_a_lock_that_the_ledger_has_lost_is_taken_again(once: Oncelery) -> None:
    answers: list[object] = []

    @only_one
    def report() -> str:
        once.ledger.store = MemoryStore()
        current_run().progress(1, 2)
        with ThreadPoolExecutor(1) as other:
            answers.append(other.submit(report).result())
        return "done"

    assert report() == "done"
    assert answers == [None]
    assert once.jobs.find().items[0].state is State.COMPLETED


@pytest.mark.usefixtures("app")
def test_a_store_that_is_away_does_not_mean_yes(once: Oncelery, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_args: object, **_options: object) -> None:
        raise StoreUnavailableError

    @only_one
    def report() -> str:
        return pytest.fail("it ran")

    monkeypatch.setattr(once.ledger, "begin", away)

    with pytest.raises(StoreUnavailableError):
        report()


def test_a_lock_that_cannot_be_freed_costs_neither_result_nor_error(
    once: Oncelery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(*_args: object, **_options: object) -> None:
        raise StoreUnavailableError

    @only_one
    def report() -> str:
        return "done"

    monkeypatch.setattr(once.ledger, "settle", away)

    assert report() == "done"
    assert "lapses by itself" in caplog.text


async def _coroutine() -> None: ...


def _generator() -> Iterator[int]:
    yield 1


async def _asynchronous_generator() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("function", [_coroutine, _generator, _asynchronous_generator])
def test_a_function_that_returns_before_it_has_run_is_refused(function: Callable[[], object]) -> None:
    with pytest.raises(ConfigurationError, match="before it has run"):
        only_one(function)


def test_a_shared_task_is_refused_with_its_remedy() -> None:
    task = Proxy(lambda: None)  # what @shared_task answers

    with pytest.raises(ConfigurationError, match="write it below"):
        only_one(task)


@pytest.mark.parametrize("timeout", [0, -1, timedelta(0)])
def test_a_timeout_of_nothing_is_refused(timeout: float | timedelta) -> None:
    with pytest.raises(ConfigurationError, match="timeout"):
        only_one(timeout=timeout)
