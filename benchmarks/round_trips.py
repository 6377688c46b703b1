"""How often does a verb of the ledger wait for its server?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from benchmarks.calls import calls
from benchmarks.laboratory import Laboratory, say
from benchmarks.ours import Oncelery
from benchmarks.proxy import CountingProxy
from benchmarks.report import Cell, Table
from oncelery.job import Cause, Progress, Reason
from oncelery.settlement import Bury, Release

T = TypeVar("T")
R = TypeVar("R")

#: How often each verb is done: enough that a round trip now and then shows in the mean.
REPEATS = 10


def ask(laboratory: Laboratory) -> Table:
    """Count the round trips of each transition, on the wire."""
    say("round trips of a transition")
    counts = {site.name: _count(CountingProxy(site)) for site in laboratory.sites}
    transitions = next(iter(counts.values()), {})
    rows: list[dict[str, Cell]] = [
        {"transition": each} | {site: count[each] for site, count in counts.items()} for each in transitions
    ]
    return Table(title="Round trips of a transition", rows=rows, note=f"Counted on the wire; means of {REPEATS}.")


def _count(proxy: CountingProxy) -> dict[str, float]:
    with proxy, Oncelery(proxy.url) as ours:
        # The first time hands over scripts and prepares statements, once in the life of a connection.
        _live_through(proxy, ours)
        return _live_through(proxy, ours)


def _live_through(proxy: CountingProxy, ours: Oncelery) -> dict[str, float]:
    """Take some jobs through all their states, and give the round trips of each transition."""
    counts: dict[str, float] = {}
    ledger = ours.ledger

    def observe(transition: str, act: Callable[[T], R], given: Sequence[T]) -> list[R]:
        counts[transition], results = proxy.observe(act, given)
        return results

    work = list(calls(REPEATS))
    jobs = observe("reserve", ours.reserve, work)
    ids = [job.id for job in jobs]
    observe("reserve, a duplicate", ours.answer, work)
    leases = observe("begin", ours.begin, jobs)
    observe(f"renew {REPEATS} leases", ledger.renew, [leases])
    observe("record progress", lambda lease: ledger.record(lease, progress=Progress(done=1)), leases)
    observe("release", lambda lease: ours.settle(lease, Release(cause=Cause.HANDBACK)), leases)
    leases = [ours.begin(job) for job in jobs]
    observe("bury", lambda lease: ours.settle(lease, Bury(reason=Reason.FAILED)), leases)
    observe("revive", ledger.revive, ids)
    leases = [ours.begin(job) for job in jobs]
    observe("complete", ours.complete, leases)
    observe("cancel", ledger.cancel, [ours.reserve(call).id for call in calls(REPEATS)])
    return counts
