"""Every answer a verb of the ledger may give, one frozen class each."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from msgspec import Struct

from oncelery.job import Job, Lease, State

# reserve


class Reserved(Struct, frozen=True):
    """Accepted: publish it. Given again when the same submission is sent again before it has begun."""

    job: Job


class Existing(Struct, frozen=True):
    """The key already has this job: live, or completed and within retention."""

    job: Job
    #: The alias was known: the caller repeats a request that this job has answered before.
    repeated: bool = False


class Mismatched(Struct, frozen=True):
    """The key, the alias or the id belongs to this job, whose payload is another."""

    job: Job


class Full(Struct, frozen=True):
    """Not accepted: its scope has what its quota allows. How long until there is room, as far as that is known."""

    wait: timedelta | None = None


# begin


class Granted(Struct, frozen=True):
    """Run it. The same holder asking again gets the same grant."""

    lease: Lease
    #: An earlier run of this job ended without a word: its effect may have happened.
    recovered: bool
    #: Steps that earlier runs have finished.
    steps: Mapping[str, bytes]
    #: The body to run with, where it is no longer the one first submitted.
    body: bytes | None = None


class Busy(Struct, frozen=True):
    """Another run holds the job of this key: this very job, or another one; or, to `received`, opens its message."""

    job: Job


class Later(Struct, frozen=True):
    """Queued, but not to begin yet: its time has not come (`not_before`), or another job goes first (`behind`)."""

    job: Job


class Finished(Struct, frozen=True):
    """Over: completed (replay its result) or buried. Nothing changed, but that a duplicate was counted."""

    job: Job


class Buried(Struct, frozen=True):
    """Over, by this very call: it crashed too often, may not be taken over, or never starts. Next time: Finished."""

    job: Job


class Cancelled(Struct, frozen=True):
    """Over: the job is cancelled."""

    job: Job


class Absent(Struct, frozen=True):
    """Nothing is known of this job, or of this run's grant. Nobody else has it: begin it again, with its body."""


# renew, record


class Renewed(Struct, frozen=True):
    """Still ours, for another `duration` from the store's now."""

    until: datetime
    cancel_requested: bool


class Recorded(Struct, frozen=True):
    """Written under our lease."""

    cancel_requested: bool


class Fenced(Struct, frozen=True):
    """No longer ours: another run has begun or the job has ended. Nothing was written."""

    state: State


# settle


class Settled(Struct, frozen=True):
    """Done, as asked, or as a pending cancellation turned it. The same settlement sent again is answered the same."""

    state: State
    #: The trailing job that may begin now; empty if none.
    next_id: str = ""


# cancel, revive, discard, received


class Requested(Struct, frozen=True):
    """The job is running; its run will see the request when it next renews or records."""

    job: Job


class Revived(Struct, frozen=True):
    """Queued again, with its counters cleared and its steps kept: publish it."""

    job: Job


class Resubmitted(Struct, frozen=True):
    """Other arguments make it other work: the dead letter is cancelled, and this new job is queued: publish it."""

    job: Job


class NotBuried(Struct, frozen=True):
    """Only a dead letter can be revived or discarded; this job is none."""

    job: Job


class Discarded(Struct, frozen=True):
    """The dead letter is one no more: it is cancelled, and nothing of it will run."""

    job: Job


class Counted(Struct, frozen=True):
    """The delivery is noted; so many have led to a death instead of a run."""

    received: int


#: To a worker that asks to begin: another run has the job, it is over, or it is too early.
Declined = Busy | Later | Finished | Buried | Cancelled

ReserveAnswer = Reserved | Existing | Mismatched | Full
BeginAnswer = Granted | Declined | Mismatched | Absent
RenewAnswer = Renewed | Fenced | Absent
RecordAnswer = Recorded | Fenced | Absent
SettleAnswer = Settled | Fenced | Absent
CancelAnswer = Cancelled | Requested | Finished | Absent
ReviveAnswer = Revived | Resubmitted | Existing | NotBuried | Absent
DiscardAnswer = Discarded | NotBuried | Absent
ReceivedAnswer = Counted | Busy | Buried | Finished | Cancelled | Absent
