"""What does it cost to guard one run?"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.calls import calls
from benchmarks.laboratory import Laboratory, say
from benchmarks.measure import Comparison, Contender, Effort, compare
from benchmarks.ours import Oncelery
from benchmarks.proxy import CountingProxy
from benchmarks.report import Table, figures
from benchmarks.sites import Site

#: How many cycles are sent through the proxy that counts round trips, after as many that warm up.
COUNTED = 10


def ask(laboratory: Laboratory) -> Table:
    """Compare begin + complete, with and without reserve, with what people write by hand on the same server."""
    table = Table(
        title="Guarding one run",
        note="The publisher makes Oncelery's key, in `reserve`; the rivals make theirs in the worker. "
        "The third line of each is the rival against itself: the noise.",
    )
    for site in laboratory.sites:
        round_trips = list(_round_trips(site))
        for way, url in site.ways:
            say(f"guarding one run: {site.name}, {way}")
            compared = _compare(site, url, laboratory.effort)
            for (cycle, comparison), count in zip(compared, round_trips, strict=True):
                name = {"server": site.name, "by": way, "cycle": cycle}
                table.rows.append({**name, "round trips": count, **figures(comparison)})
    return table


def _compare(site: Site, url: str, effort: Effort) -> Iterator[tuple[str, Comparison]]:
    with Oncelery(url) as ours, site.rival(url) as rival:
        theirs = Contender(calls, rival.guard)
        yield "begin + complete", compare(Contender(ours.reserved, ours.run), theirs, effort)
        yield "reserve + begin + complete", compare(Contender(calls, ours.guard), theirs, effort)
        yield rival.name, compare(theirs, theirs, effort)


def _round_trips(site: Site) -> Iterator[float]:
    with CountingProxy(site) as proxy, Oncelery(proxy.url) as ours, site.rival(proxy.url) as rival:
        for call in calls(COUNTED):
            ours.guard(call)
            rival.guard(call)
        jobs = list(ours.reserved(COUNTED))
        yield proxy.observe(ours.run, jobs)[0]
        yield proxy.observe(ours.guard, list(calls(COUNTED)))[0]
        yield proxy.observe(rival.guard, list(calls(COUNTED)))[0]
