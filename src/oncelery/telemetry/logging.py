"""A log line for every event: what happened in the text, and each field in the record for structured logs."""

from __future__ import annotations

import logging

from msgspec.structs import asdict

from oncelery import events as e
from oncelery.job import Cause, Reason

#: Silence or redirect the lines of events by this name; `oncelery` is their parent.
LOGGER = "oncelery.events"

#: The lines of who has done what, over HTTP.
AUDIT = "oncelery.audit"

_logger = logging.getLogger(LOGGER)


def one_line(record: logging.LogRecord) -> bool:
    """Keep a record to one line: a reason, a name or an id that a caller has chosen cannot forge another line.

    The record's own fields, which structured logs have, stay as they are.
    """
    message = record.getMessage()
    if not message.isprintable():
        record.msg = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)
        record.args = None
    return True


for _name in ("oncelery", LOGGER, AUDIT):
    logging.getLogger(_name).addFilter(one_line)

_SUBJECT = "%(task)s, job %(job_id)s, attempt %(attempt)s, key %(key)s"

#: How loud each event is, and its words. What happens to every job is for debugging; Celery itself tells of each task.
LINES: dict[type[e.Event], tuple[int, str]] = {
    e.JobAccepted: (logging.DEBUG, f"accepted: {_SUBJECT}"),
    e.DuplicateAnswered: (logging.INFO, f"answered a duplicate (%(answer)s): {_SUBJECT}"),
    e.RunBegan: (logging.DEBUG, f"began under fence %(fence)s: {_SUBJECT}"),
    e.RunDeclined: (logging.DEBUG, f"not to run now: {_SUBJECT}"),
    e.RunRestored: (
        logging.WARNING,
        f"recorded again under fence %(fence)s, for the ledger had lost it while it ran: {_SUBJECT}",
    ),
    e.LeaseLost: (logging.WARNING, f"lost its lease under fence %(fence)s, nothing of it is recorded: {_SUBJECT}"),
    e.JobCompleted: (logging.DEBUG, f"completed: {_SUBJECT}"),
    e.JobReleased: (logging.INFO, f"queued again after %(cause)s, for %(delay)s: {_SUBJECT}"),
    e.JobBuried: (logging.ERROR, f"buried (%(reason)s), revive or discard it: {_SUBJECT}"),
    e.JobCancelled: (logging.INFO, f"cancelled (%(reason)s): {_SUBJECT}"),
    e.CancelRequested: (logging.INFO, f"asked to end: {_SUBJECT}"),
    e.JobRevived: (logging.INFO, f"revived: {_SUBJECT}"),
    e.JobDiscarded: (logging.INFO, f"discarded: {_SUBJECT}"),
    e.JobSwept: (logging.INFO, f"publishing again, its %(lost)s seems lost: {_SUBJECT}"),
}

#: Reasons of burials that Celery has already logged: as an ERROR, or as INFO if `throws=` names the error.
SAID_BY_CELERY = frozenset({Reason.FAILED, Reason.EXHAUSTED})

#: The same events, where a worker was lost.
TAKEN_OVER = (logging.WARNING, f"began under fence %(fence)s, after a run that was cut short: {_SUBJECT}")
CRASHED = (logging.WARNING, LINES[e.JobReleased][1])


def log(event: e.Event) -> None:
    """Write the event's line, if anybody wants lines of its level."""
    level, line = LINES[type(event)]
    if isinstance(event, e.RunBegan) and event.recovered:
        level, line = TAKEN_OVER
    elif isinstance(event, e.JobReleased) and event.cause is Cause.CRASH:
        level, line = CRASHED
    elif isinstance(event, e.JobBuried) and event.reason in SAID_BY_CELERY:
        level = logging.INFO
    if _logger.isEnabledFor(level):
        values = asdict(event)
        _logger.log(level, line, values, extra={"decision": event.decision, **values})
