"""What happens in the ledger, one frozen class per happening. Telemetry subscribes here and nowhere else."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import ClassVar

from msgspec import Struct

from oncelery.job import Answer, Cause, Lost

_logger = logging.getLogger("oncelery")


class Event(Struct, frozen=True, kw_only=True):
    """Something happened to a job; from asking for it to the answer it took so many seconds."""

    #: The event's word in metrics and logs.
    decision: ClassVar[str]

    task: str
    job_id: str
    key: str
    scope: str
    seconds: float
    #: The attempt that it happened in, or after; 0 before the first.
    attempt: int = 0


class JobAccepted(Event, frozen=True, kw_only=True):
    """A submission became a job."""

    decision = "accepted"


class DuplicateAnswered(Event, frozen=True, kw_only=True):
    """A duplicate was answered with a job that is there; `answer` is the word in the audit."""

    decision = "duplicate"
    answer: Answer


class RunBegan(Event, frozen=True, kw_only=True):
    """A run was granted its lease."""

    decision = "began"
    fence: int
    recovered: bool


class RunDeclined(Event, frozen=True, kw_only=True):
    """A run was not granted: it is too early, or the job is cancelled."""

    decision = "declined"


class RunRestored(Event, frozen=True, kw_only=True):
    """A run found that the ledger has lost its job, as a fail-over may; it has recorded the job again, and goes on."""

    decision = "restored"
    fence: int


class LeaseLost(Event, frozen=True, kw_only=True):
    """A run found that it is superseded; nothing of it is recorded any more."""

    decision = "fenced"
    fence: int


class JobCompleted(Event, frozen=True, kw_only=True):
    """A result was recorded."""

    decision = "completed"


class JobReleased(Event, frozen=True, kw_only=True):
    """A run ended without finishing its job, which is queued again."""

    decision = "released"
    cause: Cause
    delay: timedelta


class JobBuried(Event, frozen=True, kw_only=True):
    """A job became a dead letter."""

    decision = "buried"
    reason: str


class JobCancelled(Event, frozen=True, kw_only=True):
    """A job was cancelled."""

    decision = "cancelled"
    reason: str


class CancelRequested(Event, frozen=True, kw_only=True):
    """A running job was asked to end."""

    decision = "cancel requested"


class JobRevived(Event, frozen=True, kw_only=True):
    """A dead letter was queued again."""

    decision = "revived"


class JobDiscarded(Event, frozen=True, kw_only=True):
    """A dead letter was ended for good: it is cancelled, and nothing of it will run."""

    decision = "discarded"


class JobSwept(Event, frozen=True, kw_only=True):
    """The sweeper takes a job whose message or worker seems lost, to publish it again."""

    decision = "swept"
    lost: Lost


Subscriber = Callable[[Event], None]


@dataclass(slots=True)
class Events:
    """Hands each event to all who subscribed. One that raises is logged; it never disturbs the ledger."""

    subscribers: list[Subscriber] = field(default_factory=list)

    def subscribe(self, subscriber: Subscriber) -> Subscriber:
        """Call `subscriber` with every event from now on; usable as a decorator."""
        self.subscribers.append(subscriber)
        return subscriber

    def emit(self, event: Event) -> None:
        """Tell everyone."""
        for subscriber in self.subscribers:
            try:
                subscriber(event)
            except Exception:  # a broken metric must not stop a job
                _logger.exception("a subscriber failed on %s", event)
