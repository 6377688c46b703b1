"""What each page reads, from the same operations as the JSON API."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

from oncelery.codec import decode, escaped
from oncelery.http.auth import Caller
from oncelery.http.dashboard.desk import Desk, ElsewhereError, Shown
from oncelery.http.dashboard.figures import OUTCOMES, TaskFigures, by_hour, by_task, ranked
from oncelery.http.dashboard.story import runs_of, story_of
from oncelery.http.problems import FORBIDDEN, INVALID_REQUEST, ProblemError
from oncelery.job import Answer, Duplicate, DuplicateCount, Job, JobSummary, State
from oncelery.operations.jobs import Call
from oncelery.operations.redaction import HIDDEN

#: What is asked for in the address; of a word that stands there twice, the last.
Asked = Mapping[str, str]
Page = Callable[[Desk, Caller, Asked], Shown]

#: Spans of time, as they stand in the address.
SPANS: Final[Mapping[str, timedelta]] = MappingProxyType(
    {
        "15m": timedelta(minutes=15),
        "1h": timedelta(hours=1),
        "6h": timedelta(hours=6),
        "24h": timedelta(hours=24),
        "7d": timedelta(days=7),
    }
)

#: How many jobs are on one page.
TO_A_PAGE: Final = 50

#: How many running jobs are looked at to know who runs them.
HOLDERS: Final = 200

#: How much of the audit is read for the duplicates of one job, and how many of them are shown.
AUDIT_READ: Final = 500
AUDIT_SHOWN: Final = 50

_KEY = re.compile(r"[0-9a-f]{64}")


def overview(desk: Desk, caller: Caller, asked: Asked) -> Shown:
    """Show how it goes."""
    _unbound(caller)
    tally = desk.pulse.tally()
    span = asked.get("span", "1h")
    minutes = desk.pulse.minutes(_span(span, "15m", "1h", "6h") or SPANS["1h"])
    totals: Counter[str] = Counter()
    for minute in minutes:
        totals.update(minute.counts)
    running = desk.once.jobs.find(states=State.RUNNING, limit=HOLDERS).items
    answering = desk.workers()
    return Shown(
        template="overview.html",
        values={
            "tally": tally,
            "span": span,
            "minutes": minutes,
            "totals": totals,
            "outcomes": OUTCOMES,
            "round_trip": desk.pulse.round_trip,
            "broker": desk.broker(),
            "answering": answering,
            "workers": _workers(desk, answering, running),
            "running": running[:8],
            "sweep_every": timedelta(seconds=desk.once.settings.sweep_every),
        },
    )


def jobs(desk: Desk, caller: Caller, asked: Asked) -> Shown:
    """Show the jobs that were asked for, newest change first."""
    wanted = asked.get("q", "").strip()
    if wanted:
        _look_up(desk, caller, wanted)
    scope = caller.within(asked.get("scope", ""))
    span = _span(asked.get("within", ""))
    try:
        page = desk.once.jobs.find(
            states=asked["state"] if asked.get("state") else (),
            task=asked.get("task", ""),
            scope=scope,
            since=datetime.now(UTC) - span if span else None,
            cursor=asked.get("cursor", ""),
            limit=TO_A_PAGE,
        )
    except ValueError as error:
        raise ProblemError(INVALID_REQUEST, str(error)) from error
    names = ("state", "task", "scope", "within", "q")
    return Shown(
        template="jobs.html",
        values={
            "page": page,
            "asked": {name: asked.get(name, "") for name in names},
            "first": not asked.get("cursor"),
            "counts": desk.counts(caller),
            "states": tuple(State),
            "spans": tuple(SPANS),
            "tasks": task_names(desk, caller),
        },
    )


def job(desk: Desk, caller: Caller, asked: Asked) -> Shown:
    """Show one job's whole story."""
    found = desk.job(asked.get("job_id", ""), caller)
    duplicates = list(_duplicates_of(desk, found)) if found.duplicates else []
    call = desk.call(found)
    result = desk.once.jobs.result(found)
    return Shown(
        template="job.html",
        values={
            "job": found,
            "policy": desk.policy(found.task),
            "call": desk.named(found, call) if call else None,
            "result": None if result is None else desk.hidden(result),
            "steps": {escaped(name): desk.hidden(decode(value, object)) for name, value in found.steps.items()},
            "runs": runs_of(found, desk.lease(found.task)),
            "story": story_of(found, duplicates),
            "duplicates": duplicates,
            "curl": _curl(desk, found, call, asked.get("origin", "")),
        },
    )


def duplicates(desk: Desk, caller: Caller, asked: Asked) -> Shown:
    """Show what was answered instead of done again."""
    span = asked.get("span", "24h")
    since = datetime.now(UTC) - (_span(span, "24h", "7d") or SPANS["24h"])
    task, scope = asked.get("task", ""), caller.within(asked.get("scope", ""))
    counts = desk.once.duplicates.counts(since=since, task=task, scope=scope)
    try:
        page = desk.once.duplicates.find(task=task, scope=scope, cursor=asked.get("cursor", ""), limit=TO_A_PAGE)
    except ValueError as error:
        raise ProblemError(INVALID_REQUEST, str(error)) from error
    return Shown(
        template="duplicates.html",
        values={
            "span": span,
            "asked": {"task": task, "scope": asked.get("scope", ""), "span": span},
            "first": not asked.get("cursor"),
            "hours": by_hour(counts, since),
            "total": sum(each.count for each in counts),
            "saved": timedelta(0) if caller.scope else _saved(desk, counts),
            "answers": [answer for answer in Answer if any(each.answer == answer for each in counts)],
            "ranked": ranked(counts),
            "page": page,
            "tasks": task_names(desk, caller),
        },
    )


def tasks(desk: Desk, caller: Caller, _asked: Asked) -> Shown:
    """Show each task: how long it takes, how often it is cut short, and what it is promised."""
    _unbound(caller)
    known, counted = desk.guarded(), by_task(desk.pulse.tally().decisions)
    return Shown(
        template="tasks.html",
        values={
            "tasks": [
                (counted.get(name) or TaskFigures(name=name), known.get(name))
                for name in sorted({*known, *counted} - {""})
                # Those of our own are worth a line when they are used.
                if name in counted or not name.startswith("oncelery.")
            ],
            "findings": desk.findings(),
        },
    )


# What they share


@dataclass(kw_only=True)
class WorkerShown:
    """One worker: what it runs, and when it was last heard of."""

    name: str
    #: None while it is not known yet.
    answers: bool | None
    running: int = 0
    renewed_at: datetime | None = None


def _workers(desk: Desk, answering: frozenset[str] | None, running: tuple[JobSummary, ...]) -> list[WorkerShown]:
    workers = {name: WorkerShown(name=name, answers=True) for name in answering or ()}
    for each in running:
        # The ledger knows the process, too.
        name = re.sub(r":\d+$", "", each.worker)
        worker = workers.setdefault(name, WorkerShown(name=name, answers=None if answering is None else False))
        worker.running += 1
        lease = desk.lease(each.task)
        if lease and each.lease_until:
            renewed_at = each.lease_until - lease
            worker.renewed_at = max(worker.renewed_at or renewed_at, renewed_at)
    return sorted(workers.values(), key=lambda worker: worker.name)


def _unbound(caller: Caller) -> None:
    if caller.scope:
        raise ProblemError(FORBIDDEN, "These are figures of all tenants, and your key is bound to one of them.")


def _span(word: str, *choices: str) -> timedelta | None:
    if word and (word not in SPANS or (choices and word not in choices)):
        raise ProblemError(INVALID_REQUEST, f"A span of time is one of {', '.join(choices or SPANS)}, not {word!r}.")
    return SPANS.get(word)


def _look_up(desk: Desk, caller: Caller, wanted: str) -> None:
    found = desk.once.jobs.get(wanted)
    if found is None and _KEY.fullmatch(wanted.lower()):
        found = desk.once.ledger.last(wanted.lower())
    if found and caller.sees(found.scope):
        raise ElsewhereError(found.id)


def task_names(desk: Desk, caller: Caller) -> list[str]:
    """Name the tasks to choose from."""
    counted = set() if caller.scope else {task for task, _ in desk.pulse.tally().decisions}
    return sorted({*desk.guarded(), *counted} - {""})


def _saved(desk: Desk, counts: Iterable[DuplicateCount]) -> timedelta:
    """Tell how long these duplicates would have run, if a run of their task takes as long as it does on average."""
    tasks = by_task(desk.pulse.tally().decisions)
    means = {name: figures.mean or timedelta(0) for name, figures in tasks.items()}
    return sum((each.count * means.get(each.task, timedelta(0)) for each in counts), timedelta(0))


def _duplicates_of(desk: Desk, found: Job) -> Iterator[Duplicate]:
    audit = islice(desk.once.duplicates.each(task=found.task, scope=found.scope), AUDIT_READ)
    return islice((each for each in audit if each.job_id == found.id), min(found.duplicates, AUDIT_SHOWN))


def _curl(desk: Desk, found: Job, call: Call | None, origin: str) -> str:
    """Write the command that asks for this job, or submits the same once more if all it takes is known."""
    key = '-H "X-API-Key: $ONCELERY_API_KEY"'
    url = f"{origin}{desk.api}/jobs"
    names = desk.parameters(found.task)
    if call is None or len(call.args) > len(names):
        return f"curl {key} {shlex.quote(f'{url}/{found.id}')}"
    body: dict[str, Any] = desk.named(found, call)
    if HIDDEN in json.dumps(body, ensure_ascii=False):
        key += "  # fill in what is hidden"
    written = shlex.quote(json.dumps(body, ensure_ascii=False, default=str))
    target = shlex.quote(f"{url}/{found.task}")
    return f"curl -X POST {target} \\\n  -H 'Content-Type: application/json' \\\n  -d {written} \\\n  {key}"
