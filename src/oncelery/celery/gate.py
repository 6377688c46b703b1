"""While the ledger is asked whether a call is a new job, Celery makes its message: the two take about as long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oncelery.answers import Existing, Reserved
from oncelery.job import Job


class NotToBeSent(BaseException):
    """Ends the publication of a call that is no new job."""

    def __init__(self, answer: Reserved | Existing) -> None:
        super().__init__(answer)
        self.answer = answer


class Gate:
    """A producer for one message, that waits for the ledger's answer when Celery first asks something of it.

    Until then Celery has told nobody of the message, nor sent anything.
    """

    def __init__(self, producer: Any, wait: Callable[[], Reserved | Existing]) -> None:
        self._producer = producer
        self._wait = wait
        #: Whether the ledger was asked for its answer; it may have raised an error instead.
        self.asked = False
        #: The job that was accepted.
        self.job: Job | None = None

    def ask(self) -> Reserved | Existing:
        """Wait for the answer, once."""
        self.asked = True
        answer = self._wait()
        if isinstance(answer, Reserved):
            self.job = answer.job
        return answer

    def __getattr__(self, name: str) -> Any:
        if not self.asked:
            answer = self.ask()
            if self.job is None or self.job.behind:
                raise NotToBeSent(answer)
        return getattr(self._producer, name)
