"""What happens in the ledger, one frozen class per happening. Telemetry subscribes here and nowhere else."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import ClassVar

from oncelery.job import Answer, Cause

_logger = logging.getLogger("oncelery")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something happened to a job; the verb that made it happen took so many seconds."""

    #: The event's word in metrics and logs.
    decision: ClassVar[str]

    task: str
    job_id: str
    key: str
    scope: str
    seconds: float
    #: The attempt that it happened in, or after; 0 before the first.
    attempt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAccepted(Event):
    """A submission became a job."""

    decision = "accepted"


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateAnswered(Event):
    """A duplicate was answered with a job that is there; `answer` is the word in the audit."""

    decision = "duplicate"
    answer: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBegan(Event):
    """A run was granted its lease."""

    decision = "began"
    fence: int
    recovered: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDeclined(Event):
    """A run was not granted: it is too early, or the job is cancelled."""

    decision = "declined"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLost(Event):
    """A run found that it is superseded; nothing of it is recorded any more."""

    decision = "fenced"
    fence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCompleted(Event):
    """A result was recorded."""

    decision = "completed"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReleased(Event):
    """A run ended without finishing its job, which is queued again."""

    decision = "released"
    cause: Cause
    delay: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class JobBuried(Event):
    """A job became a dead letter."""

    decision = "buried"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCancelled(Event):
    """A job was cancelled."""

    decision = "cancelled"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequested(Event):
    """A running job was asked to end."""

    decision = "cancel requested"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRevived(Event):
    """A dead letter was queued again."""

    decision = "revived"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDiscarded(Event):
    """A dead letter was deleted."""

    decision = "discarded"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSwept(Event):
    """The sweeper takes a job whose message or worker seems lost, to publish it again."""

    decision = "swept"


Subscriber = Callable[[Event], None]


@dataclass(slots=True)
class Events:
    """Hands each event to all who subscribed. One that raises is logged; it never disturbs the ledger."""

    _subscribers: list[Subscriber] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Whether anyone listens."""
        return bool(self._subscribers)

    def subscribe(self, subscriber: Subscriber) -> Subscriber:
        """Call `subscriber` with every event from now on; usable as a decorator."""
        self._subscribers.append(subscriber)
        return subscriber

    def emit(self, event: Event) -> None:
        """Tell everyone."""
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception:  # a broken metric must not stop a job
                _logger.exception("a subscriber failed on %s", event)
