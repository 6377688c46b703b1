"""What can be read of a job where no app says how: JSON, and of that only what surely is no secret."""

from __future__ import annotations

import json
from typing import Any

from oncelery.operations.jobs import Call
from oncelery.operations.redaction import HIDDEN, Redaction


class JsonReading:
    """Reads calls and results without their app."""

    def __init__(self) -> None:
        self._redact = Redaction()

    def call(self, body: bytes) -> Call:
        """Read what a task was called with. Only the app knows the names of positional arguments: they are hidden."""
        _task, args, kwargs, _options = json.loads(body)
        return Call(tuple(HIDDEN for _ in args), self._redact(kwargs))

    def result(self, result: bytes) -> Any:  # noqa: ANN401 - whatever the task returned
        """Read what a task returned."""
        return self._redact(json.loads(result))
