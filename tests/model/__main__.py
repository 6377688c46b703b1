"""Search thoroughly: `python -m tests.model`. Ends with 1 if an invariant is broken, or a planted bug is not found."""

from __future__ import annotations

import os
import sys
from multiprocessing import Pool

from .configurations import THOROUGH
from .mutants import MUTANTS, SLOW_MUTANTS, Mutant
from .protocol import Protocol
from .search import Search, Verdict


def main() -> int:
    planted = [(mutant, broken) for mutant in (*MUTANTS, *SLOW_MUTANTS) for broken in mutant.breaks]
    missed = [f"{mutant.bug.__name__} should break {broken}" for mutant, broken in planted if not found(mutant, broken)]
    say("\n".join([f"planted bugs: {len(planted) - len(missed)} of {len(planted)} found", *missed]))
    states, sound = 0, not missed
    with Pool(os.cpu_count()) as pool:
        for title, verdict in pool.imap_unordered(search, THOROUGH):
            say(f"{title} {THOROUGH[title]}\n  {verdict}")
            states += verdict.states
            sound = sound and not verdict.broken
    say(f"{states:,} states in all; {'all invariants hold' if sound else 'NOT SOUND'}")
    return 0 if sound else 1


def search(title: str) -> tuple[str, Verdict]:
    return title, Search(Protocol(THOROUGH[title])).run()


def found(mutant: Mutant, broken: str) -> bool:
    return Search(mutant.protocol(), watch={broken}).run().broken == broken


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
