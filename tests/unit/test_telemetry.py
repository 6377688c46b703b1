from __future__ import annotations

import logging
import multiprocessing
import threading
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import fields
from prometheus_client import CollectorRegistry, generate_latest

from oncelery import answers as a
from oncelery import events as e
from oncelery.errors import StoreUnavailableError
from oncelery.job import Answer, Cause, Lease, Lost, Reason, Submission, Tally
from oncelery.ledger import Ledger
from oncelery.policy import Policy
from oncelery.settlement import Bury, Cancel, Complete, Release, Settlement
from oncelery.stores.memory import MemoryStore
from oncelery.telemetry import counting as counting_module
from oncelery.telemetry.counting import Counting, flush_all
from oncelery.telemetry.logging import LINES, LOGGER, log
from oncelery.telemetry.prometheus import MOST_TASKS, LedgerCollector
from oncelery.testing.clock import FakeClock

#: What the fields of events that not all have may be.
DETAILS: dict[str, Any] = {
    "answer": Answer.REPLAYED,
    "fence": 7,
    "recovered": False,
    "cause": Cause.RETRY,
    "delay": timedelta(seconds=3),
    "reason": Reason.FAILED,
    "lost": Lost.MESSAGE,
}
COMMON = {"task": "shop.charge", "job_id": "job-1", "key": "k" * 64, "scope": "acme", "seconds": 0.01, "attempt": 2}

EVENTS = e.Event.__subclasses__()

#: Why jobs are buried without a word from Celery.
UNSAID = {Reason.CRASHED, Reason.NEVER_STARTED, Reason.OUTCOME_UNKNOWN}


def event_of(kind: type[e.Event], **details: object) -> e.Event:
    values: dict[str, Any] = {**DETAILS, **COMMON, **details}
    return kind(**{name: values[name] for name in (field.name for field in fields(kind))})


# Log lines


@pytest.mark.parametrize("kind", EVENTS)
def test_every_event_has_a_log_line_that_names_its_job(kind: type[e.Event], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)

    log(event_of(kind))

    (record,) = caplog.records
    assert all(name in record.getMessage() for name in ("shop.charge", "job-1", "attempt 2", "k" * 64))
    names = ("task", "job_id", "key", "scope", "attempt")
    assert {name: getattr(record, name) for name in names} == {name: COMMON[name] for name in names}
    assert record.__dict__["decision"] == kind.decision


@pytest.mark.parametrize(
    ("event", "level"),
    [
        *((event_of(e.JobBuried, reason=reason), logging.ERROR) for reason in UNSAID),
        *((event_of(e.JobBuried, reason=reason), logging.INFO) for reason in set(Reason) - UNSAID),
        (event_of(e.LeaseLost), logging.WARNING),
        (event_of(e.RunBegan, recovered=True), logging.WARNING),
        (event_of(e.JobReleased, cause=Cause.CRASH), logging.WARNING),
        (event_of(e.JobReleased, cause=Cause.RETRY), logging.INFO),
        (event_of(e.RunBegan), logging.DEBUG),
    ],
)
def test_a_line_is_as_loud_as_what_happened_is_bad(
    event: e.Event, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)

    log(event)

    assert [record.levelno for record in caplog.records] == [level]


def test_what_a_caller_has_written_is_one_line_of_the_log_and_whole_in_the_record(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)
    forged = "x): ok\n2026-11-16 INFO oncelery.audit admin: discard\r\x1b[2K\u2028\x85\ud800"

    log(event_of(e.JobCancelled, reason=forged, task="a\nb"))
    logging.getLogger("oncelery").warning("cannot look at job %s", "id\nid")

    lines = [record.getMessage() for record in caplog.records]
    assert [len(line.splitlines()) for line in lines] == [1, 1]
    assert r"(x): ok\n2026-11-16 INFO oncelery.audit admin: discard\r\x1b[2K\u2028\x85\ud800)" in lines[0]
    assert (caplog.records[0].reason, caplog.records[0].task) == (forged, "a\nb")  # type: ignore[attr-defined]


def test_what_happens_to_every_job_is_silent_at_the_level_that_workers_use(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)

    for kind in (e.JobAccepted, e.RunBegan, e.JobCompleted):
        log(event_of(kind))

    assert caplog.records == []
    assert all(isinstance(line, str) for _, line in LINES.values())


# Counting


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def ledger(clock: FakeClock) -> Ledger:
    return Ledger(MemoryStore(clock=clock))


@pytest.fixture
def counting(ledger: Ledger) -> Counting:
    counting = Counting(ledger.count)
    counting.by_itself = False
    ledger.events.subscribe(counting)
    return counting


def run(ledger: Ledger, *, number: int = 1) -> Lease:
    submission = Submission(id=f"job-{number}", key=f"{number:064x}", task="shop.charge", body=b"{}")
    ledger.reserve(submission)
    answer = ledger.begin(submission, Policy())
    assert isinstance(answer, a.Granted)
    return answer.lease


def test_what_was_decided_reaches_the_ledger_when_it_is_flushed(ledger: Ledger, counting: Counting) -> None:
    ledger.settle(run(ledger), Release(cause=Cause.RETRY, delay=timedelta(0)))

    before = ledger.tally().decisions
    counting.flush()
    after = ledger.tally().decisions
    counting.flush()

    assert before == {}
    assert {word: count for (_, word), count in after.items() if not word.startswith("run")} == {
        "accepted": 1,
        "began": 1,
        "released": 1,
        "released/retry": 1,
    }
    assert ledger.tally().decisions == after


def test_hearing_an_event_asks_nothing_of_the_store() -> None:
    counting = Counting(lambda _counts: pytest.fail("the store was asked"))
    counting.by_itself = False

    for kind in EVENTS:
        counting(event_of(kind))


def test_a_thread_flushes_what_waits_and_is_gone_when_nothing_does(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting_module, "FLUSH_EVERY", 0.0)
    flushed = threading.Event()
    flushers: list[threading.Thread] = []

    def count(decisions: Mapping[tuple[str, str], int]) -> None:
        ledger.count(decisions)
        flushers.append(threading.current_thread())
        flushed.set()

    counting = Counting(count)
    for kind in (e.JobAccepted, e.JobCompleted):
        counting(event_of(kind))
        assert flushed.wait(10)
        flushers[-1].join(10)
        flushed.clear()

    assert ledger.tally().decisions == {("shop.charge", "accepted"): 1, ("shop.charge", "completed"): 1}
    assert not any(flusher.is_alive() for flusher in flushers)
    assert all(flusher.daemon for flusher in flushers)


def test_counts_wait_for_a_store_that_is_away(ledger: Ledger) -> None:
    away = [StoreUnavailableError()]

    def count(decisions: Mapping[tuple[str, str], int]) -> None:
        if away:
            raise away.pop()
        ledger.count(decisions)

    counting = Counting(count)
    counting.by_itself = False
    counting(event_of(e.JobAccepted))
    counting.flush()
    counting(event_of(e.JobAccepted))
    counting.flush()

    assert ledger.tally().decisions == {("shop.charge", "accepted"): 2}


def test_the_end_of_a_process_flushes_all(ledger: Ledger, counting: Counting) -> None:
    counting(event_of(e.JobAccepted))

    flush_all()

    assert ledger.tally().decisions == {("shop.charge", "accepted"): 1}


def test_the_end_of_a_process_hurries_the_thread_that_would_flush_later(ledger: Ledger) -> None:
    counting = Counting(ledger.count)
    counting(event_of(e.JobAccepted))

    flush_all()

    assert ledger.tally().decisions == {("shop.charge", "accepted"): 1}


@pytest.mark.parametrize("asked_before", [False, True])
def test_a_store_that_does_not_answer_does_not_hold_up_the_end_of_a_process(
    monkeypatch: pytest.MonkeyPatch,
    asked_before: bool,  # noqa: FBT001
) -> None:
    monkeypatch.setattr(counting_module, "FLUSH_EVERY", 0.0 if asked_before else 60.0)
    monkeypatch.setattr(counting_module, "FAREWELL_SECONDS", 0.1)
    asked, answer = threading.Event(), threading.Event()
    flushers: list[threading.Thread] = []

    def count(_decisions: Mapping[tuple[str, str], int]) -> None:
        flushers.append(threading.current_thread())
        asked.set()
        assert answer.wait(10)

    counting = Counting(count)
    counting(event_of(e.JobAccepted))
    if asked_before:
        assert asked.wait(10)

    flush_all()

    assert asked.wait(10)
    assert flushers[0].is_alive()
    assert flushers[0] is not threading.current_thread()
    answer.set()
    flushers[0].join(10)
    assert len(flushers) == 1


def test_a_store_that_is_away_is_asked_once_at_the_end_of_a_process() -> None:
    asked = []

    def count(decisions: Mapping[tuple[str, str], int]) -> None:
        asked.append(decisions)
        raise StoreUnavailableError

    counting = Counting(count)
    counting(event_of(e.JobAccepted))

    flush_all()

    assert len(asked) == 1
    assert "oncelery-counting" not in {thread.name for thread in threading.enumerate()}


def test_a_forked_child_counts_its_own_events_and_not_those_of_its_parent(ledger: Ledger, counting: Counting) -> None:
    counting(event_of(e.JobAccepted))

    def child() -> None:
        counting.flush()
        counting(event_of(e.JobCompleted))
        counting.flush()
        told.send((dict(ledger.tally().decisions), counting.by_itself))

    heard, told = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    counts, by_itself = heard.recv()
    process.join()

    assert counts == {("shop.charge", "completed"): 1}
    assert by_itself


# Metrics


def scrape(ledger: Ledger) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(LedgerCollector(ledger))
    lines = generate_latest(registry).decode().splitlines()
    samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}


@pytest.mark.parametrize("kind", EVENTS)
def test_every_event_has_a_metric(ledger: Ledger, counting: Counting, kind: type[e.Event]) -> None:
    counting(event_of(kind))
    counting.flush()

    name = f'oncelery_decisions_total{{decision="{kind.decision}",task="shop.charge"}}'
    assert scrape(ledger)[name] == 1


def test_tasks_beyond_a_number_share_a_label(ledger: Ledger) -> None:
    ledger.count({(f"task {number:03}", "completed"): 1 + (number < MOST_TASKS) for number in range(MOST_TASKS + 50)})
    ledger.count({("task 000", "run/0.5"): 3, (f"task {MOST_TASKS}", "run/0.5"): 2})

    scraped = scrape(ledger)

    decisions = [name for name in scraped if name.startswith("oncelery_decisions_total")]
    assert len(decisions) == MOST_TASKS + 1
    assert scraped['oncelery_decisions_total{decision="completed",task="task 000"}'] == 2
    assert sum(scraped[name] for name in decisions) == 2 * MOST_TASKS + 50
    assert scraped['oncelery_run_seconds_count{task="task 000"}'] == 3


def test_duplicates_releases_burials_and_sweeps_are_told_apart(ledger: Ledger, counting: Counting) -> None:
    for event in (
        event_of(e.DuplicateAnswered, answer=Answer.REPLAYED),
        event_of(e.DuplicateAnswered, answer=Answer.BUSY),
        event_of(e.JobReleased, cause=Cause.RETRY),
        event_of(e.JobReleased, cause=Cause.CRASH),
        event_of(e.JobBuried, reason=Reason.CRASHED),
        event_of(e.JobSwept, lost=Lost.WORKER),
    ):
        counting(event)
    counting.flush()

    metrics = scrape(ledger)
    assert metrics['oncelery_duplicates_total{answer="replayed",task="shop.charge"}'] == 1
    assert metrics['oncelery_duplicates_total{answer="busy",task="shop.charge"}'] == 1
    assert metrics['oncelery_decisions_total{decision="duplicate",task="shop.charge"}'] == 2
    assert metrics['oncelery_releases_total{cause="crash",task="shop.charge"}'] == 1
    assert metrics['oncelery_burials_total{reason="crashed",task="shop.charge"}'] == 1
    assert metrics['oncelery_sweeps_total{lost="worker",task="shop.charge"}'] == 1
    assert metrics['celery_task_retries_total{name="shop.charge"}'] == 1


def test_the_state_of_the_ledger_is_read_when_it_is_scraped(clock: FakeClock, ledger: Ledger) -> None:
    run(ledger, number=1)
    ledger.settle(run(ledger, number=2), Bury(reason=Reason.FAILED))
    clock.advance(seconds=40)

    metrics = scrape(ledger)

    assert metrics["oncelery_up"] == 1
    assert metrics['oncelery_jobs{state="running"}'] == metrics["oncelery_leases"] == 1
    assert metrics['oncelery_jobs{state="buried"}'] == metrics["oncelery_dead_letters"] == 1
    assert metrics['oncelery_jobs{state="queued"}'] == 0
    assert metrics["oncelery_lapsed"] == 1
    assert metrics["oncelery_overdue_seconds"] == 10


def test_runs_are_a_histogram_from_begin_to_settlement(
    ledger: Ledger, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    runs: list[tuple[float, Settlement]] = [
        (0.02, Complete(result=b"1")),
        (2.0, Release(cause=Cause.RETRY)),
        (7200.0, Cancel(reason="by ops")),
    ]
    monkeypatch.setattr(counting_module, "monotonic", lambda: now)
    for number, (seconds, settlement) in enumerate(runs):
        lease = run(ledger, number=number)
        now += seconds
        ledger.settle(lease, settlement)
    counting.flush()

    metrics = scrape(ledger)
    buckets = {
        le: metrics[f'oncelery_run_seconds_bucket{{le="{le}",task="shop.charge"}}']
        for le in ("0.01", "0.05", "5", "3600", "+Inf")
    }
    assert buckets == {"0.01": 0, "0.05": 1, "5": 2, "3600": 2, "+Inf": 3}
    assert metrics['oncelery_run_seconds_count{task="shop.charge"}'] == 3
    assert metrics['oncelery_run_seconds_sum{task="shop.charge"}'] == pytest.approx(7202.02)


def test_a_run_that_lost_its_lease_is_not_timed_and_the_one_that_took_over_is(
    clock: FakeClock, ledger: Ledger, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(counting_module, "monotonic", lambda: now)
    late = run(ledger)
    clock.advance(seconds=31)
    now += 31
    heir = run(ledger)
    ledger.settle(late, Complete(result=b"late"))
    now += 2
    ledger.settle(heir, Complete(result=b"1"))
    counting.flush()

    assert {word: count for (_, word), count in ledger.tally().decisions.items() if word.startswith("run")} == {
        "run/5": 1,
        "run microseconds": 2_000_000,
    }


def test_a_store_that_is_away_is_a_metric_and_does_not_break_the_page(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> Tally:
        raise StoreUnavailableError

    monkeypatch.setattr(ledger, "tally", away)

    assert scrape(ledger) == {"oncelery_up": 0}
