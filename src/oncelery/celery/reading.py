"""Reads what the ledger keeps of a job, to show it to people and programs elsewhere."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from celery import Celery
from celery.states import READY_STATES, SUCCESS
from kombu.exceptions import KombuError

from oncelery.celery.message import read, read_written
from oncelery.job import Job
from oncelery.operations.jobs import CODE, Call
from oncelery.operations.redaction import HIDDEN, Redaction

if TYPE_CHECKING:
    from oncelery.celery.task import IdempotentTask

_logger = logging.getLogger("oncelery")

#: How many characters of a call a message shows to monitors and logs.
SHOWN: Final = 1024


class Reading:
    """Reads bodies and results of jobs; never what would run code, though the app accepts it."""

    def __init__(self, app: Celery, redact: Redaction, find_task: Callable[[str], Any]) -> None:
        self._app = app
        self._redact = redact
        self._find_task = find_task

    def call(self, body: bytes) -> Call:
        """Read what a task was called with, and hide what is secret in it."""
        task, args, kwargs, _options = self._read(body)
        return self.shown(task, args, kwargs)

    def shown(self, task: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        """Give a call as it may be shown: arguments are hidden by the names of their parameters, however given."""
        known = self._find_task(task) if args else None
        if known is None:
            # Nobody knows which of them are secret.
            return Call((HIDDEN,) * len(args), self._redact(kwargs))
        names = list(inspect.signature(known.run).parameters)
        given = [HIDDEN if self._redact.hides(name) else self._redact(arg) for name, arg in zip(names, args)]  # noqa: B905
        return Call((*given, *self._redact(args[len(given) :])), self._redact(kwargs))

    def reprs(self, task: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, str]:
        """Return what a message shows of its call, as options of `apply_async`, without secrets."""
        call = self.shown(task, args, kwargs)
        return {"argsrepr": repr(call.args)[:SHOWN], "kwargsrepr": repr(call.kwargs)[:SHOWN]}

    def result(self, result: bytes) -> Any:
        """Read what a task returned."""
        return self._read(result)

    def _read(self, written: bytes) -> Any:
        conf = self._app.conf
        accept = {*conf.accept_content, *(conf.result_accept_content or ())}
        return read(written, accept=accept - CODE)


def outcome_of(task: IdempotentTask, job: Job) -> dict[str, Any] | None:
    """Return what a result backend would keep of a completed job; None if only the backend can know."""
    value = None
    if job.result_omitted:
        if kept_of(task, job.id).get("status") in READY_STATES:
            return None
        warn_omitted(job)
    elif not job.result:
        return None
    else:
        try:
            value = read_written(task.app, job.result)
        except KombuError:
            return None
    return {"task_id": job.id, "status": SUCCESS, "result": value}


def kept_of(task: IdempotentTask, task_id: str) -> Mapping[str, Any]:
    """Return what the result backend has of a task id; nothing if it has no result or cannot be asked."""
    if task.oncelery.answers_its_callers:
        # They alone may ask, and each but once.
        return {}
    try:
        kept: Mapping[str, Any] = task.backend.get_task_meta(task_id)
    except Exception:  # noqa: BLE001 - of whatever kind: there is no backend, or it is away
        return {}
    return kept


def warn_omitted(job: Job) -> None:
    """Log that a duplicate gets None in place of a result that was not kept."""
    _logger.warning("a duplicate of job %s gets None: the result was not kept: %s", job.id, job.result_omitted)
