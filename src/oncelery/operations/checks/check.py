"""Check: one thing to look for; Finding: that it is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from oncelery.operations.facts import Facts

#: What is wrong, and the line that mends it.
Complaint = tuple[str, str]


class Severity(StrEnum):
    """How bad it is; the worst first."""

    #: Work is lost, repeated or refused, or will be.
    ERROR = "error"
    #: It works, until something else goes wrong.
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something is wrong."""

    check: str
    severity: Severity
    what: str
    why: str
    fix: str


@dataclass(frozen=True, slots=True)
class Check:
    """Looks for one thing. Its name is its function's, its reason the function's docstring."""

    severity: Severity
    look: Callable[[Facts], Iterator[Complaint]]

    @property
    def name(self) -> str:
        """What it is called on the command line and in the docs."""
        return self.look.__name__.replace("_", "-")

    @property
    def why(self) -> str:
        """Why what it looks for is wrong."""
        return " ".join((self.look.__doc__ or "").split())

    def __call__(self, facts: Facts) -> Iterator[Finding]:
        """Give what it finds."""
        for what, fix in self.look(facts):
            yield Finding(check=self.name, severity=self.severity, what=what, why=self.why, fix=fix)


def error(look: Callable[[Facts], Iterator[Complaint]]) -> Check:
    """Make a check whose findings are errors."""
    return Check(Severity.ERROR, look)


def warning(look: Callable[[Facts], Iterator[Complaint]]) -> Check:
    """Make a check whose findings are warnings."""
    return Check(Severity.WARNING, look)
