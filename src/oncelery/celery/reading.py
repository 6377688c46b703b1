"""Reads what the ledger keeps of a job, to show it to people and programs elsewhere."""

from __future__ import annotations

from typing import Any

from celery import Celery

from oncelery.celery.call import REPLACED
from oncelery.celery.message import read
from oncelery.operations.jobs import Call

#: What reading runs code from.
_CODE = frozenset({"pickle", "application/x-python-serialize"})


class Reading:
    """Reads bodies and results of jobs; never what would run code, though the app accepts it."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def call(self, body: bytes) -> Call:
        """Read what a task was called with."""
        _task, args, kwargs, _options = self._read(body)
        return Call(tuple(args), kwargs)

    def result(self, result: bytes) -> Any:
        """Read what a task returned; nothing, if another one took its place."""
        value = self._read(result)
        return None if isinstance(value, dict) and REPLACED in value else value

    def _read(self, written: bytes) -> Any:
        conf = self._app.conf
        accept = {*conf.accept_content, *(conf.result_accept_content or ())}
        return read(written, accept=accept - _CODE)
