"""Every answer a verb of the ledger may give, one frozen class each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from oncelery.job import Job, Lease, State

# reserve


@dataclass(frozen=True, slots=True)
class Reserved:
    """Accepted: publish it. Given again when the same submission is sent again before it has begun."""

    job: Job


@dataclass(frozen=True, slots=True)
class Existing:
    """The key already has this job: live, or completed and within retention."""

    job: Job


@dataclass(frozen=True, slots=True)
class Mismatched:
    """The key (or the id) belongs to this job, whose payload is another."""

    job: Job


# begin


@dataclass(frozen=True, slots=True)
class Granted:
    """Run it. The same holder asking again gets the same grant."""

    lease: Lease
    #: An earlier run of this job ended without a word: its effect may have happened.
    recovered: bool
    #: Steps that earlier runs have finished.
    steps: Mapping[str, bytes]
    #: The body to run with, where it is no longer the one first submitted.
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class Busy:
    """Another run holds the job of this key: this very job, or another one; or, to `received`, opens its message."""

    job: Job


@dataclass(frozen=True, slots=True)
class Later:
    """Queued, but not to begin yet: its time has not come (`not_before`), or another job goes first (`behind`)."""

    job: Job


@dataclass(frozen=True, slots=True)
class Finished:
    """Over: completed (replay its result) or buried. Nothing changed, but that a duplicate was counted."""

    job: Job


@dataclass(frozen=True, slots=True)
class Buried:
    """Over, by this very call: it crashed too often, may not be taken over, or never starts. Next time: Finished."""

    job: Job


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Over: the job is cancelled."""

    job: Job


@dataclass(frozen=True, slots=True)
class Absent:
    """Nothing is known of this job. To `begin` it, say so again with its body."""


# renew, record


@dataclass(frozen=True, slots=True)
class Renewed:
    """Still ours, for another `duration` from the store's now."""

    until: datetime
    cancel_requested: bool


@dataclass(frozen=True, slots=True)
class Recorded:
    """Written under our lease."""

    cancel_requested: bool


@dataclass(frozen=True, slots=True)
class Fenced:
    """No longer ours: another run has begun or the job has ended. Nothing was written."""

    #: None when the job is no longer known.
    state: State | None


# settle


@dataclass(frozen=True, slots=True)
class Settled:
    """Done, as asked, or as a pending cancellation turned it. The same settlement sent again is answered the same."""

    state: State
    #: The trailing job that may begin now; empty if none.
    next_id: str = ""


# cancel, revive, discard, received


@dataclass(frozen=True, slots=True)
class Requested:
    """The job is running; its run will see the request when it next renews or records."""

    job: Job


@dataclass(frozen=True, slots=True)
class Revived:
    """Queued again, with its counters cleared and its steps kept: publish it."""

    job: Job


@dataclass(frozen=True, slots=True)
class NotBuried:
    """Only a dead letter can be revived or discarded; this job is none."""

    job: Job


@dataclass(frozen=True, slots=True)
class Discarded:
    """The dead letter is one no more: it is cancelled, and nothing of it will run."""

    job: Job


@dataclass(frozen=True, slots=True)
class Counted:
    """The delivery is noted; so many have led to a death instead of a run."""

    received: int


ReserveAnswer = Reserved | Existing | Mismatched
BeginAnswer = Granted | Busy | Later | Finished | Buried | Cancelled | Mismatched | Absent
RenewAnswer = Renewed | Fenced
RecordAnswer = Recorded | Fenced
SettleAnswer = Settled | Fenced
CancelAnswer = Cancelled | Requested | Finished | Absent
ReviveAnswer = Revived | Existing | NotBuried | Absent
DiscardAnswer = Discarded | NotBuried | Absent
ReceivedAnswer = Counted | Busy | Buried | Finished | Cancelled | Absent
