"""`once.doctor()`: what is wrong with a set-up, why it matters, and the line that mends it.

A check is a small pure function of the facts, in `operations/checks`; this module only asks each of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from oncelery.errors import ConfigurationError
from oncelery.operations.checks import app, broker, store, tasks
from oncelery.operations.checks.check import Check, Finding, Severity
from oncelery.operations.facts import Facts

__all__ = ["CHECKS", "STORE_CHECKS", "Check", "Finding", "Severity", "examine"]

#: What can be told of a store alone.
STORE_CHECKS: tuple[Check, ...] = store.CHECKS

#: All checks, in the order in which their findings are shown among those of the same severity.
CHECKS: tuple[Check, ...] = (*STORE_CHECKS, *broker.CHECKS, *app.CHECKS, *tasks.CHECKS)


def examine(facts: Facts, *, ignore: Collection[str] = (), checks: Iterable[Check] = CHECKS) -> tuple[Finding, ...]:
    """Give what the checks find, errors first; `ignore` names checks that are not asked."""
    unknown = set(ignore) - {check.name for check in CHECKS}
    if unknown:
        raise ConfigurationError(f"no such check: {', '.join(sorted(unknown))}; see docs/doctor.md")
    found = [finding for check in checks if check.name not in ignore for finding in check(facts)]
    return tuple(sorted(found, key=lambda finding: list(Severity).index(finding.severity)))
