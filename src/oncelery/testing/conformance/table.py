"""The state machine as data: what each verb answers in each situation, and how the job stands then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from oncelery.answers import (
    Absent,
    Buried,
    Busy,
    Cancelled,
    Counted,
    Discarded,
    Existing,
    Fenced,
    Finished,
    Granted,
    Later,
    NotBuried,
    Recorded,
    Renewed,
    Requested,
    Reserved,
    Revived,
    Settled,
)


class Situation(StrEnum):
    """How a job may stand when a verb comes."""

    ABSENT = "absent"
    QUEUED = "queued"
    DELAYED = "delayed"
    TRAILING = "trailing"
    RUNNING = "running"
    LAPSED = "lapsed"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    LET_GO = "let go"
    FORGOTTEN = "forgotten"
    BURIED = "buried"
    CANCELLED = "cancelled"


class Verb(StrEnum):
    """What may be done to a job, and in which way."""

    RESERVE_AGAIN = "reserve, same id"
    JOIN = "reserve, other id, `join`"
    REJECT = "reserve, other id, `reject`"
    TRAIL = "reserve, other id, `trail`"
    REPLACE = "reserve, other id, `replace`"
    BEGIN = "begin"
    BEGIN_AGAIN = "begin, same holder"
    BEGIN_OTHER = "begin, other id"
    BEGIN_OTHER_BODILESS = "begin, other id, no body"
    RENEW = "renew"
    RECORD = "record"
    COMPLETE = "settle: complete"
    RELEASE = "settle: release"
    BURY = "settle: bury"
    CANCEL_RUN = "settle: cancel"
    CANCEL = "cancel"
    CANCEL_BY_FORCE = "cancel by force"
    REVIVE = "revive"
    DISCARD = "discard"
    OPENED = "received, with a lease"
    RECEIVED = "received"
    RECEIVED_TOO_OFTEN = "received, over the limit"
    DUE = "due"


class Taken:
    """`due` answered the job."""


class Left:
    """`due` did not answer the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What one verb answers in one situation, and how the job stands then."""

    verb: Verb
    given: Situation
    answer: type
    then: Situation

    def __str__(self) -> str:
        return f"{self.verb} when {self.given}"


S = Situation
V = Verb

#: Answer by answer, the situations in which it is given, and how the job stands then.
Row = Mapping[type, Mapping[Situation, Situation]]


def same(*situations: Situation) -> dict[Situation, Situation]:
    """In these situations the job stands afterwards as before."""
    # A job past its history reads as if it had never been.
    return {situation: S.ABSENT if situation is S.FORGOTTEN else situation for situation in situations}


def to(then: Situation, *situations: Situation) -> dict[Situation, Situation]:
    """In these situations the job stands afterwards so."""
    return dict.fromkeys(situations, then)


UNKNOWN = (S.ABSENT, S.FORGOTTEN)
WAITING = (S.QUEUED, S.DELAYED, S.TRAILING)
HELD = (S.RUNNING, S.LAPSED, S.CANCELLING)
ENDED = (S.COMPLETED, S.LET_GO, S.BURIED, S.CANCELLED)
#: A run that the ledger has not granted, or no longer knows of: a fail-over has undone that.
UNGRANTED = (S.ABSENT, *WAITING)

_JOINS: Row = {
    Existing: same(*WAITING, *HELD, S.COMPLETED),
    Reserved: same(*UNKNOWN, S.LET_GO, S.BURIED, S.CANCELLED),
}

_NOTED: Row = {
    Counted: same(*WAITING, *HELD),
    Finished: same(S.COMPLETED, S.LET_GO, S.BURIED),
    Cancelled: same(S.CANCELLED),
    Absent: same(*UNKNOWN),
}

TABLE: Mapping[Verb, Row] = {
    V.RESERVE_AGAIN: {
        Reserved: to(S.QUEUED, *UNKNOWN) | same(*WAITING),
        Existing: same(*HELD, *ENDED),
    },
    V.JOIN: _JOINS,
    V.REJECT: _JOINS,
    V.TRAIL: {
        Existing: same(*WAITING, S.COMPLETED),
        Reserved: same(*UNKNOWN, *HELD, S.LET_GO, S.BURIED, S.CANCELLED),
    },
    V.REPLACE: {
        # What waits behind a running job is not in question: the running one is joined.
        Existing: same(S.TRAILING, *HELD, S.COMPLETED),
        Reserved: to(S.CANCELLED, S.QUEUED, S.DELAYED) | same(*UNKNOWN, S.LET_GO, S.BURIED, S.CANCELLED),
    },
    V.BEGIN: {
        Granted: to(S.RUNNING, *UNKNOWN, S.QUEUED, S.LAPSED),
        Later: same(S.DELAYED, S.TRAILING),
        Busy: same(S.RUNNING, S.CANCELLING),
        Finished: same(S.COMPLETED, S.LET_GO, S.BURIED),
        Cancelled: same(S.CANCELLED),
    },
    V.BEGIN_AGAIN: {
        Granted: to(S.RUNNING, *UNKNOWN, S.QUEUED) | same(*HELD),
        Later: same(S.DELAYED, S.TRAILING),
        Finished: same(S.COMPLETED, S.LET_GO, S.BURIED),
        Cancelled: same(S.CANCELLED),
    },
    V.BEGIN_OTHER: {
        Granted: same(*UNKNOWN, S.LET_GO, S.BURIED, S.CANCELLED),
        Busy: same(*WAITING, *HELD),
        Finished: same(S.COMPLETED),
    },
    V.BEGIN_OTHER_BODILESS: {
        Absent: same(*UNKNOWN, S.LET_GO, S.BURIED, S.CANCELLED),
        Busy: same(*WAITING, *HELD),
        Finished: same(S.COMPLETED),
    },
    V.RENEW: {
        Renewed: to(S.RUNNING, S.RUNNING, S.LAPSED) | same(S.CANCELLING),
        Fenced: same(*ENDED, S.FORGOTTEN),
        Absent: same(*UNGRANTED),
    },
    V.RECORD: {
        Recorded: same(*HELD),
        Fenced: same(*ENDED, S.FORGOTTEN),
        Absent: same(*UNGRANTED),
    },
    V.COMPLETE: {
        # The last holder of a completed job asks again: its first answer was lost.
        Settled: to(S.COMPLETED, *HELD) | same(S.COMPLETED, S.LET_GO, S.FORGOTTEN),
        Fenced: same(S.BURIED, S.CANCELLED),
        Absent: same(*UNGRANTED),
    },
    V.RELEASE: {
        Settled: to(S.QUEUED, S.RUNNING, S.LAPSED) | to(S.CANCELLED, S.CANCELLING),
        Fenced: same(*ENDED, S.FORGOTTEN),
        Absent: same(*UNGRANTED),
    },
    V.BURY: {
        Settled: to(S.BURIED, *HELD) | same(S.BURIED),
        Fenced: same(S.COMPLETED, S.LET_GO, S.FORGOTTEN, S.CANCELLED),
        Absent: same(*UNGRANTED),
    },
    V.CANCEL_RUN: {
        Settled: to(S.CANCELLED, *HELD),
        Fenced: same(*ENDED, S.FORGOTTEN),
        Absent: same(*UNGRANTED),
    },
    V.CANCEL: {
        Cancelled: to(S.CANCELLED, *WAITING) | same(S.CANCELLED),
        Requested: to(S.CANCELLING, *HELD),
        Finished: same(S.COMPLETED, S.LET_GO, S.BURIED),
        Absent: same(*UNKNOWN),
    },
    V.CANCEL_BY_FORCE: {
        Cancelled: to(S.CANCELLED, *WAITING, *HELD) | same(S.CANCELLED),
        Finished: same(S.COMPLETED, S.LET_GO, S.BURIED),
        Absent: same(*UNKNOWN),
    },
    V.REVIVE: {
        Revived: to(S.QUEUED, S.BURIED),
        NotBuried: same(*WAITING, *HELD, S.COMPLETED, S.LET_GO, S.CANCELLED),
        Absent: same(*UNKNOWN),
    },
    V.DISCARD: {
        Discarded: to(S.CANCELLED, S.BURIED),
        NotBuried: same(*WAITING, *HELD, S.COMPLETED, S.LET_GO, S.CANCELLED),
        Absent: same(*UNKNOWN),
    },
    V.OPENED: _NOTED,
    V.RECEIVED: _NOTED,
    V.RECEIVED_TOO_OFTEN: {
        Buried: to(S.BURIED, *WAITING),
        Counted: same(*HELD),
        Finished: same(S.COMPLETED, S.LET_GO, S.BURIED),
        Cancelled: same(S.CANCELLED),
        Absent: same(*UNKNOWN),
    },
    V.DUE: {
        Taken: same(S.QUEUED, S.LAPSED),
        Left: same(*UNKNOWN, S.DELAYED, S.TRAILING, S.RUNNING, S.CANCELLING, *ENDED),
    },
}

CELLS = tuple(
    Cell(verb=verb, given=given, answer=answer, then=then)
    for verb, row in TABLE.items()
    for answer, situations in row.items()
    for given, then in situations.items()
)
