"""What a task asks of the ledger: one frozen Policy per task, checked when it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from datetime import timedelta
from enum import StrEnum
from math import inf
from typing import Any, Literal

from oncelery.errors import ConfigurationError
from oncelery.fingerprint import KeyChoice, Paths
from oncelery.job import DEFAULT_HISTORY, DEFAULT_RETENTION, LONGEST, Durability, OnDuplicate
from oncelery.spelling import refuse_unknown

#: How long a run may go unseen before another may begin.
DEFAULT_LEASE = timedelta(seconds=30)


#: How long a finished job is kept at least: once it is gone, a run that was frozen meanwhile takes it for lost.
SHORTEST_HISTORY = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential back-off with full jitter: a draw between nothing and the ceiling of that failure."""

    first: timedelta = timedelta(seconds=1)
    factor: float = 2.0
    most: timedelta = timedelta(minutes=10)

    def __post_init__(self) -> None:
        if self.first < timedelta(0) or self.most < self.first or not 1 <= self.factor < inf:
            raise ConfigurationError(f"backoff must have 0 <= first <= most and factor >= 1, not {self}")

    def after(self, failures: int, jitter: float) -> timedelta:
        """How long to wait after so many failures; `jitter` is a draw from [0, 1)."""
        try:
            ceiling = min(self.most, self.first * self.factor ** (failures - 1))
        except OverflowError:
            ceiling = self.most
        return ceiling * jitter


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The options of one task. See docs/guarantees.md for what each one promises."""

    #: What makes two calls the same work: see `fingerprint.Identity`, which checks these three against the signature.
    key: KeyChoice = None
    ignore: Paths = ()
    scope: Paths = ()
    retention: timedelta = DEFAULT_RETENTION
    lease: timedelta = DEFAULT_LEASE
    history: timedelta = DEFAULT_HISTORY
    on_duplicate: OnDuplicate = OnDuplicate.JOIN
    retry_on: tuple[type[BaseException], ...] = ()
    bury_on: tuple[type[BaseException], ...] = ()
    max_attempts: int = 4
    backoff: Backoff = field(default_factory=Backoff)
    max_crashes: int = 3
    #: "rerun", "hold", or a callable that is given the task's arguments and verifies whether the effect happened: it
    #: returns the task's result, or None or False to have the task run again.
    on_takeover: Literal["rerun", "hold"] | Callable[..., Any] = "rerun"
    durability: Durability = Durability.FAST
    #: A URL to call when a job has ended.
    notify: str = ""

    @property
    def kept_for(self) -> timedelta:
        """How long a finished job is kept."""
        return max(self.history, SHORTEST_HISTORY)

    @classmethod
    def names(cls) -> frozenset[str]:
        """Name all options."""
        return frozenset(entry.name for entry in fields(cls))

    @classmethod
    def of(cls, **options: Any) -> Policy:  # noqa: ANN401 - checked one by one
        """Make a policy of what people write: words for choices, seconds for times, one error class for several."""
        refuse_unknown(options, cls.names(), what="option")
        return cls(**{name: _READ[name](name, value) if name in _READ else value for name, value in options.items()})

    def __post_init__(self) -> None:
        _require(self.lease >= timedelta(seconds=1), "lease must be at least one second", self.lease)
        _require(self.retention >= timedelta(0), "retention cannot be negative (0 = mutual exclusion)", self.retention)
        _require(self.history >= self.retention, "history must be at least as long as retention", self.history)
        longest = max(self.lease, self.history)
        _require(longest <= LONGEST, f"no time may be longer than {LONGEST.days} days", longest)
        _require(self.max_attempts >= 1, "max_attempts must be at least 1", self.max_attempts)
        _require(self.max_crashes >= 0, "max_crashes cannot be negative", self.max_crashes)
        _require(isinstance(self.backoff, Backoff), "backoff must be a Backoff", self.backoff)
        _require(isinstance(self.notify, str), "notify must be a URL", self.notify)
        takeover = self.on_takeover in ("rerun", "hold") or callable(self.on_takeover)
        _require(takeover, 'on_takeover must be "rerun", "hold" or a callable', self.on_takeover)


def _time(name: str, value: timedelta | float) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationError(f"{name} must be a timedelta or a number of seconds, not {value!r}")
    try:
        return timedelta(seconds=value)
    except (OverflowError, ValueError) as error:
        raise ConfigurationError(f"{name} must be a time, not {value!r} seconds") from error


def _count(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigurationError(f"{name} must be a whole number, not {value!r}")
    return value


def _errors(name: str, value: object) -> tuple[type[BaseException], ...]:
    errors = tuple(value) if isinstance(value, Iterable) else (value,)
    if not all(isinstance(error, type) and issubclass(error, BaseException) for error in errors):
        raise ConfigurationError(f"{name} must name exception classes, not {value!r}")
    return errors


def _word(choices: type[StrEnum]) -> Callable[[str, str], StrEnum]:
    def read(name: str, value: str) -> StrEnum:
        try:
            return choices(value)
        except ValueError:
            words = ", ".join(repr(choice.value) for choice in choices)
            raise ConfigurationError(f"{name} must be one of {words}, not {value!r}") from None

    return read


_READ: dict[str, Callable[[str, Any], Any]] = {
    "retention": _time,
    "lease": _time,
    "history": _time,
    "max_attempts": _count,
    "max_crashes": _count,
    "retry_on": _errors,
    "bury_on": _errors,
    "on_duplicate": _word(OnDuplicate),
    "durability": _word(Durability),
}


def _require(condition: bool, rule: str, value: object) -> None:  # noqa: FBT001 - an assertion reads best like this
    if not condition:
        raise ConfigurationError(f"{rule}, not {value!r}")
