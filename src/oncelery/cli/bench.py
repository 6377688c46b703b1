"""`oncelery bench`: how fast a ledger is from here."""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from statistics import median, quantiles
from time import perf_counter
from typing import TYPE_CHECKING

import click
import msgspec

from oncelery.answers import Granted
from oncelery.cli.output import console, json_option, print_json, table
from oncelery.cli.target import Target, private_server, target_options
from oncelery.fingerprint import fingerprint
from oncelery.job import DEFAULT_NAMESPACE, Submission
from oncelery.policy import Policy
from oncelery.settlement import Complete

if TYPE_CHECKING:
    from oncelery.ledger import Ledger

TASK = "oncelery.bench"
VERBS = ("reserve", "duplicate", "begin", "settle")


@click.command()
@click.option("--jobs", type=click.IntRange(10, 100_000), default=500, show_default=True, help="How many.")
@json_option
@target_options
def bench(target: Target, *, jobs: int, as_json: bool) -> None:
    """Time the verbs of a ledger from this machine, one after the other; on a private Valkey if none is named.

    The jobs are in a namespace of their own, called like yours with `_bench` behind: your ledger and its audit see
    none of them.
    """
    with ExitStack() as stack:
        if not target.store and not target.app:
            target.store = stack.enter_context(private_server())
        ledger = _beside(target).ledger()
        timings = _measure(ledger, jobs)
        while ledger.prune():
            pass
    figures = {verb: _summed_up(seconds) for verb, seconds in timings.items()}
    if as_json:
        print_json({"jobs": jobs, "milliseconds": figures})
        return
    rows = [(verb, *(f"{value:.3f}" for value in figure.values())) for verb, figure in figures.items()]
    console().print(table(("MILLISECONDS", "MEDIAN", "P99", "MOST"), rows))


def _beside(target: Target) -> Target:
    """Name the same store, and a namespace that nobody else has."""
    if target.store:
        store, namespace = target.store, target.namespace or DEFAULT_NAMESPACE
    else:
        settings = target.once().settings
        store, namespace = settings.store, settings.namespace
    return replace(target, store=store, namespace=f"{namespace}_bench")


def _measure(ledger: Ledger, jobs: int) -> dict[str, list[float]]:
    timings: dict[str, list[float]] = {verb: [] for verb in VERBS}
    batch, policy = secrets.token_hex(8), Policy()
    for number in range(jobs):
        submission = Submission(
            id=f"{batch}-{number}",
            key=fingerprint(TASK, [batch, number]),
            task=TASK,
            body=b'["oncelery.bench", [], {}, {}]',
            retention=timedelta(0),
            history=timedelta(0),
        )
        marks = [perf_counter()]
        ledger.reserve(submission)
        marks.append(perf_counter())
        ledger.reserve(msgspec.structs.replace(submission, id=f"{submission.id}-again"))
        marks.append(perf_counter())
        granted = ledger.begin(submission, policy)
        marks.append(perf_counter())
        assert isinstance(granted, Granted)  # noqa: S101 - nobody else knows of it
        ledger.settle(granted.lease, Complete(result=b"null"))
        marks.append(perf_counter())
        for verb, start, end in zip(VERBS, marks, marks[1:], strict=False):
            timings[verb].append(end - start)
    return timings


def _summed_up(seconds: list[float]) -> dict[str, float]:
    figures = {
        "median": median(seconds),
        "p99": quantiles(seconds, n=100, method="inclusive")[-1],
        "most": max(seconds),
    }
    return {name: round(value * 1000, 3) for name, value in figures.items()}
