"""How many submissions, new ones and duplicates, does one publisher get answered in a second?"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.calls import Call, calls
from benchmarks.laboratory import Laboratory, say
from benchmarks.measure import Contender, Effort, compare
from benchmarks.ours import Oncelery
from benchmarks.report import Cell, Table
from benchmarks.sites import Site

#: How many different keys the duplicates are of.
KEYS = 100


def ask(laboratory: Laboratory) -> Table:
    """Compare the answers to a publisher with the rival's shortest one: skipped, as the key exists."""
    table = Table(
        title="Answering a publisher",
        note="One connection, one thread. The rival is asked for a key that it knows, and says so: one round trip.",
    )
    for site in laboratory.sites:
        for way, url in site.ways:
            say(f"answering a publisher: {site.name}, {way}")
            for row in _rates(site, url, laboratory.effort):
                table.rows.append({"server": site.name, "by": way, **row})
    return table


def _rates(site: Site, url: str, effort: Effort) -> Iterator[dict[str, Cell]]:
    with Oncelery(url) as ours, site.rival(url) as rival:
        live, completed, known = (list(calls(KEYS)) for _ in range(3))
        for call in live:
            ours.reserve(call)
        for call in completed:
            ours.guard(call)
        for call in known:
            rival.guard(call)
        theirs = Contender(_again(known), rival.guard)
        for name, contender in (
            ("reserve, a new key", Contender(calls, ours.reserve)),
            ("reserve, a live key", Contender(_again(live), ours.answer)),
            ("reserve, a completed key", Contender(_again(completed), ours.answer)),
        ):
            comparison = compare(contender, theirs, effort)
            yield {
                "submission": name,
                "answered per second": round(1 / comparison.ours),
                "rival, skipped per second": round(1 / comparison.theirs),
                "ratio of times": comparison.ratio,
                "Q1": comparison.low,
                "Q3": comparison.high,
            }


def _again(known: list[Call]) -> Callable[[int], Iterator[Call]]:
    """Give calls that have been made before, one after another and round again."""
    return lambda number: (known[index % len(known)] for index in range(number))
