"""While the ledger is asked whether a call is a new job, Celery makes its message: the two take about as long."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from oncelery.answers import Existing, Reserved
from oncelery.job import Job

#: The option of `apply_async` that brings a gate to where it is passed; it goes no further.
GATE = "oncelery_gate"

#: The gate of the message that is being sent here, if it has one.
at_the_gate: ContextVar[Gate | None] = ContextVar("oncelery_gate", default=None)


class NotToBeSent(BaseException):
    """Ends the publication of a call that is no new job.

    A BaseException, so that tools that report errors of `send_task` do not take it for one.
    """

    def __init__(self, answer: Reserved | Existing) -> None:
        super().__init__(answer)
        self.answer = answer


class Gate:
    """Where one message waits for the ledger's answer."""

    def __init__(self, wait: Callable[[], Reserved | Existing]) -> None:
        self._wait: Callable[[], Reserved | Existing] | None = wait
        self._found: Reserved | Existing | BaseException

    def ask(self) -> Reserved | Existing:
        """Give the ledger's answer, or raise what came instead; only the first call waits for it."""
        if self._wait:
            wait, self._wait = self._wait, None
            try:
                self._found = wait()
            except BaseException as error:  # also a time limit: without an answer nothing goes on, whoever tries again
                self._found = error
                raise
        if isinstance(self._found, BaseException):
            raise self._found
        return self._found

    def go_on(self) -> Job:
        """Give the job if its message is to be sent."""
        answer = self.ask()
        if isinstance(answer, Existing) or answer.job.behind:
            raise NotToBeSent(answer)
        return answer.job
