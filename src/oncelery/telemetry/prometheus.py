"""The ledger as Prometheus metrics: `REGISTRY.register(LedgerCollector(once.ledger))` in one process is enough.

All figures are read from the ledger when they are scraped: those of workers that are gone are in them, and neither
prefork children nor several hosts need a shared directory. Use `max` over exporters, not `sum`, if several expose them.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from oncelery.errors import OnceleryError
from oncelery.events import DuplicateAnswered, JobBuried, JobReleased, JobSwept
from oncelery.job import Cause, State, Tally
from oncelery.ledger import Ledger
from oncelery.telemetry.counting import RUN, RUN_BOUNDS, RUN_MICROSECONDS, SEPARATOR

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

_logger = logging.getLogger("oncelery")

#: Decisions that are also counted by a detail: the metric and its label.
DETAILED = {
    DuplicateAnswered.decision: ("oncelery_duplicates", "answer", "Duplicates, by what they were answered"),
    JobReleased.decision: (
        "oncelery_releases",
        "cause",
        "Runs that ended without finishing their job, and said so or had a parent that did, by cause",
    ),
    JobBuried.decision: ("oncelery_burials", "reason", "Jobs that became dead letters, by reason"),
    JobSwept.decision: ("oncelery_sweeps", "lost", "Jobs that were published again, by what seemed lost"),
}

Counts = Mapping[tuple[str, str], int]

#: How many tasks have their own label: those with the most decisions. The others share one; each costs some 40 series.
MOST_TASKS = 200
OTHER = "(other)"


class LedgerCollector(Collector):
    """Reads the ledger at each scrape, in one round trip."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def describe(self) -> Iterable[Metric]:
        """Name nothing beforehand, so that registering does not need the store."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Give all metrics; of a store that is away only that it is."""
        up = GaugeMetricFamily("oncelery_up", "Whether the ledger's store answers")
        try:
            tally = self._ledger.tally()
        except OnceleryError as error:
            _logger.warning("no metrics, the store does not answer: %s", error)
            up.add_metric([], 0)
            yield up
            return
        up.add_metric([], 1)
        yield up
        decisions = _bounded(tally.decisions)
        yield from _gauges(tally)
        yield from _counters(decisions)
        yield _run_seconds(decisions)


#: The type of an exposition.
EXPOSITION = CONTENT_TYPE_LATEST


#: What is exposed while the store is known to be silent.
DOWN = b"# HELP oncelery_up Whether the ledger's store answers\n# TYPE oncelery_up gauge\noncelery_up 0.0\n"


def exposition(ledger: Ledger) -> bytes:
    """Give all metrics of a ledger as the text that Prometheus reads."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(LedgerCollector(ledger))
    return generate_latest(registry)


def _bounded(counts: Counts) -> Counts:
    """Add up the tasks past the limit, so that invented task names cannot fill a Prometheus server."""
    totals: Counter[str] = Counter()
    for (task, _), count in counts.items():
        totals[task] += count
    named = {task for task, _ in totals.most_common(MOST_TASKS)}
    bounded: Counter[tuple[str, str]] = Counter()
    for (task, counted), count in counts.items():
        bounded[task if task in named else OTHER, counted] += count
    return bounded


def _gauges(tally: Tally) -> Iterator[Metric]:
    jobs = GaugeMetricFamily("oncelery_jobs", "Jobs in the ledger, by state", labels=["state"])
    for state in State:
        jobs.add_metric([state], tally.states.get(state, 0))
    yield jobs
    for name, text, value in (
        ("oncelery_leases", "Leases under which jobs run", tally.states.get(State.RUNNING, 0)),
        ("oncelery_lapsed", "Leases that have lapsed: their workers are gone or paused", tally.lapsed),
        ("oncelery_dead_letters", "Jobs that wait for a person", tally.states.get(State.BURIED, 0)),
        (
            "oncelery_overdue_seconds",
            "How long the most overdue job has waited for the sweeper",
            tally.overdue.total_seconds(),
        ),
    ):
        yield GaugeMetricFamily(name, text, value)


def _counters(counts: Counts) -> Iterator[Metric]:
    decisions = CounterMetricFamily("oncelery_decisions", "What the ledger decided", labels=["task", "decision"])
    retries = CounterMetricFamily("celery_task_retries", "Runs that ended in a retry", labels=["name"])
    detailed = {
        word: CounterMetricFamily(name, text, labels=["task", label]) for word, (name, label, text) in DETAILED.items()
    }
    for (task, counted), count in sorted(counts.items()):
        word, _, detail = counted.partition(SEPARATOR)
        if word in {RUN, RUN_MICROSECONDS}:
            continue
        if not detail:
            decisions.add_metric([task, word], count)
        elif word in detailed:
            detailed[word].add_metric([task, detail], count)
            if (word, detail) == (JobReleased.decision, Cause.RETRY):
                retries.add_metric([task], count)
    yield from (decisions, retries, *detailed.values())


def _run_seconds(counts: Counts) -> Metric:
    runs: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for (task, counted), count in counts.items():
        word, _, bound = counted.partition(SEPARATOR)
        if word == RUN:
            runs[task][bound] = count
    seconds = HistogramMetricFamily("oncelery_run_seconds", "From begin to settlement", labels=["task"])
    for task, by_bound in sorted(runs.items()):
        total = 0
        buckets = []
        for bound in RUN_BOUNDS:
            total += by_bound.get(bound, 0)
            buckets.append((bound, float(total)))
        seconds.add_metric([task], buckets, counts.get((task, RUN_MICROSECONDS), 0) / 1e6)
    return seconds
