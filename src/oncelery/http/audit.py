"""The logger `oncelery.audit`: a line for each act on a job, whichever way it was asked for, and for each sign-in."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from kombu.exceptions import OperationalError

from oncelery.http.auth import Caller
from oncelery.job import JobSummary
from oncelery.operations.dead_letters import Item
from oncelery.telemetry.logging import AUDIT

T = TypeVar("T")

#: What a cancellation has come to if the broker was away when a process was to be ended.
NOT_TOLD: Final = "cancelled, but its process could not be told"

_audit = logging.getLogger(AUDIT)


def audited(caller: Caller, act: str, job: JobSummary, do: Callable[[], T]) -> T:
    """Do it, and write down who did what to which job, and what was answered or raised."""
    try:
        answer = do()
    except Exception as error:
        tell(caller, act, job, NOT_TOLD if isinstance(error, OperationalError) else f"failed, {type(error).__name__}")
        raise
    tell(caller, act, job, type(answer).__name__.lower())
    return answer


def tell(caller: Caller, act: str, job: JobSummary | Item, answer: str) -> None:
    """Write down who did what to which job, and what became of it."""
    who = caller.name or "(this machine)"
    told = {
        "caller": who,
        "act": act,
        "job_id": job.id if isinstance(job, JobSummary) else job.job_id,
        "task": job.task,
        "scope": job.scope,
        "answer": answer,
    }
    _audit.info("%(caller)s: %(act)s job %(job_id)s of %(task)s: %(answer)s", told, extra=told)


def tell_sign_in(caller: Caller | None, host: str) -> None:
    """Write down who has signed in, or that somebody could not."""
    if caller:
        told = {"caller": caller.name, "act": "sign in", "host": host}
        _audit.info("%(caller)s: signed in from %(host)s", told, extra=told)
    else:
        _audit.warning("a sign-in from %s was refused", host, extra={"act": "sign in", "host": host})
