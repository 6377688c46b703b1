"""The state machine as a page of the documentation, printed from the table that the tests are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from oncelery.testing.conformance.table import CELLS, Situation, Verb

S = Situation
V = Verb

INTRODUCTION = """\
# The life of a job

<!-- Printed from the table of the conformance suite: `python -m oncelery.testing.conformance > docs/state-machine.md`.
     A test compares the two. -->

```
          reserve             begin               complete                 retention is over
 absent ----------> queued ----------> running ---------------> completed ------------------> a new job may come
                    ^    ^                |  |
                    |    |    release     |  |   bury, too many crashes, or a crash of a task on hold
                    |    +----------------+  +------------------------------------------------> buried
                    |                                                                             |
                    +-----------------------------------------------------------------------------+
                                                     revive

 buried:   discard ends it as cancelled; so does a revival as other work, queued as another job in the same step.
 queued:   cancel ends it.          running:   cancel asks the run to end, which it hears when it renews or records;
                                               by force, cancel ends it at once, and the run is told that it lost.
```

A key has at most one job that is queued or running, and one more that waits behind it (`on_duplicate="trail"`).
Every arrow is one atomic operation of the store, decided on the store's clock. What a run writes is compared with the
job's fence and holder in the same operation: a run that another has superseded changes nothing, and is told so. A run
whose lease has merely lapsed, and that nobody has taken over, may still renew, record and end its job. A run whose job,
or whose grant, the store does not know (a fail-over has undone it) has no rival: it is answered Absent, begins the job
again with its body, and goes on.

## Situations

"""

MEANINGS: Mapping[Situation, str] = {
    S.ABSENT: "nothing is known of it",
    S.QUEUED: "accepted, and to be run",
    S.DELAYED: "queued, but not to begin yet",
    S.TRAILING: "queued, and waiting behind a running job of its key",
    S.RUNNING: "a run holds a lease on it",
    S.LAPSED: "running, but the lease is over: its worker is gone, or slow",
    S.CANCELLING: "running, and asked to end",
    S.COMPLETED: "its result answers duplicates",
    S.LET_GO: "completed, and past its retention: readable, but its key is free",
    S.FORGOTTEN: "completed, and past its history: as if absent, but to its own run until it is pruned",
    S.BURIED: "a dead letter, until a person revives or discards it",
    S.CANCELLED: "ended by request; here: by force, while it ran",
}

GROUPS: Sequence[tuple[str, str, Sequence[Verb]]] = (
    (
        "Publishing",
        "Of a submission with the same id, or with another id under the same key.",
        (V.RESERVE_AGAIN, V.JOIN, V.REJECT, V.TRAIL, V.REPLACE),
    ),
    (
        "Beginning",
        "By another holder, by the holder of the last run, or for another id under the same key.",
        (V.BEGIN, V.BEGIN_AGAIN, V.BEGIN_OTHER, V.BEGIN_OTHER_BODILESS),
    ),
    (
        "Running",
        "By the last run of the job; where there was none, by one whose grant a fail-over has undone.",
        (V.RENEW, V.RECORD),
    ),
    (
        "Ending",
        "By the last run. Who settles again in the same way is answered the same: the first reply may be lost.",
        (V.COMPLETE, V.RELEASE, V.BURY, V.CANCEL_RUN),
    ),
    ("Operating", "By anybody who knows the id.", (V.CANCEL, V.CANCEL_BY_FORCE, V.REVIVE, V.DISCARD)),
    (
        "Receiving",
        "`received`, with a lease, tells that a message is about to be opened; without, that its reader died of it.",
        (V.OPENED, V.RECEIVED, V.RECEIVED_TOO_OFTEN),
    ),
    (
        "Sweeping",
        """\
`due` is asked when the grace of a message is over and its queue is empty: Taken, to be published; or Left.
Without a sign that its message is lost, a queued job is taken once an hour.""",
        (V.DUE,),
    ),
)


def document() -> str:
    """Give the whole page."""
    meanings = "\n".join(f"- **{situation}**: {meaning}" for situation, meaning in MEANINGS.items())
    how_to_read = (
        "\n\n## Answers\n\nEach cell has the answer and, after an arrow, how the job stands then, where that is not as "
        "before.\nOther jobs of the key are as their answer says: Reserved is queued, Granted runs.\n"
    )
    return INTRODUCTION + meanings + how_to_read + "".join(_section(*group) for group in GROUPS)


def _section(title: str, explanation: str, verbs: Sequence[Verb]) -> str:
    cells = {(cell.given, cell.verb): cell for cell in CELLS}
    rows = [["", *verbs], ["---"] * (len(verbs) + 1)]
    for given in Situation:
        row = [f"**{given}**"]
        for verb in verbs:
            cell = cells[given, verb]
            changed = cell.then is not (S.ABSENT if given is S.FORGOTTEN else given)
            row.append(f"{cell.answer.__name__} → {cell.then}" if changed else cell.answer.__name__)
        rows.append(row)
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"\n### {title}\n\n{explanation}\n\n{table}\n"
