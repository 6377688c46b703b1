"""Reads what the ledger keeps of a job, to show it to people and programs elsewhere."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from celery import Celery

from oncelery.celery.message import REPLACED, read
from oncelery.operations.jobs import CODE, Call
from oncelery.operations.redaction import HIDDEN, Redaction

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
        """Give what the message of a call shows of it, as options of `apply_async`: without its secrets."""
        call = self.shown(task, args, kwargs)
        return {"argsrepr": repr(call.args)[:SHOWN], "kwargsrepr": repr(call.kwargs)[:SHOWN]}

    def result(self, result: bytes) -> Any:
        """Read what a task returned; nothing, if another one took its place."""
        value = self._read(result)
        return None if isinstance(value, dict) and REPLACED in value else value

    def _read(self, written: bytes) -> Any:
        conf = self._app.conf
        accept = {*conf.accept_content, *(conf.result_accept_content or ())}
        return read(written, accept=accept - CODE)
