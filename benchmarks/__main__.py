"""Run the benchmarks: all, or those that are named; print their tables, and write them as JSON if asked to."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import (
    cycle,
    duplicates,
    fingerprints,
    footprint,
    http,
    insertions,
    machine,
    recovery,
    round_trips,
    workers,
)
from benchmarks.laboratory import Laboratory
from benchmarks.measure import FULL, QUICK
from benchmarks.report import Table

QUESTIONS: dict[str, Callable[[Laboratory], Table]] = {
    "cycle": cycle.ask,
    "duplicates": duplicates.ask,
    "fingerprint": fingerprints.ask,
    "round-trips": round_trips.ask,
    "footprint": footprint.ask,
    "insert_once": insertions.ask,
    "workers": workers.ask,
    "http": http.ask,
    "recovery": recovery.ask,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print."""
    options = _parser().parse_args(arguments)
    facts = machine.facts()
    tables: dict[str, Table] = {}
    print(*(f"{name}: {fact}" for name, fact in facts.items()), sep="\n")
    with Laboratory(QUICK if options.quick else FULL) as laboratory:
        for name in options.only or QUESTIONS:
            tables[name] = QUESTIONS[name](laboratory)
            print("", *tables[name].lines(), sep="\n", flush=True)
    if options.json:
        report = {"machine": facts, "tables": {name: table.rows for name, table in tables.items()}}
        options.json.write_text(json.dumps(report, indent=2) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="What Oncelery costs, on this machine.")
    parser.add_argument("--quick", action="store_true", help="only show that it works; the figures mean nothing")
    parser.add_argument(
        "--only", metavar="NAME", action="append", choices=QUESTIONS, help=f"one of {', '.join(QUESTIONS)}"
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures there, unrounded")
    return parser


if __name__ == "__main__":
    main()
