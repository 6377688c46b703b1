"""While the ledger is asked whether a call is a new job, Celery makes its message: the two take about as long."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Self

from oncelery.answers import Existing, Reserved
from oncelery.failpoints import failpoint
from oncelery.job import Job

_current: ContextVar[Gate | None] = ContextVar("oncelery_gate", default=None)


class NotToBeSent(BaseException):
    """Ends the publication of a call that is no new job; no Exception, for who watches Celery for failures."""

    def __init__(self, answer: Reserved | Existing) -> None:
        super().__init__(answer)
        self.answer = answer


class Gate:
    """Where a message waits for the ledger's answer: `with Gate(...)` around its publication."""

    def __init__(self, wait: Callable[[], Reserved | Existing]) -> None:
        self._wait: Callable[[], Reserved | Existing] | None = wait
        self._token: Token[Gate | None]
        self._answer: Reserved | Existing | None = None

    def __enter__(self) -> Self:
        self._token = _current.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)

    @property
    def asked(self) -> bool:
        """Whether the ledger was asked for its answer; it may have raised an error instead."""
        return self._wait is None

    @property
    def job(self) -> Job | None:
        """The job that was accepted."""
        return self._answer.job if isinstance(self._answer, Reserved) else None

    def ask(self) -> Reserved | Existing | None:
        """Wait for the answer, if nobody has; None if that has failed."""
        if self._wait:
            wait, self._wait = self._wait, None
            self._answer = wait()
        return self._answer

    def go_on(self) -> None:
        """Wait for the answer, and come back if the message is to be sent."""
        answer = self.ask()
        if answer and (isinstance(answer, Existing) or answer.job.behind):
            raise NotToBeSent(answer)
        failpoint("before-publish")


class Passage:
    """A producer, taken while the ledger is asked, and given if the message is to be sent."""

    def __init__(self, gate: Gate, producer: AbstractContextManager[Any]) -> None:
        self._gate = gate
        self._producer = producer

    def __enter__(self) -> Any:
        producer = self._producer.__enter__()
        try:
            self._gate.go_on()
        except BaseException:
            # Nothing was done with it: told of an error, it would close its connection.
            self._producer.__exit__(None, None, None)
            raise
        return producer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._producer.__exit__(kind, error, traceback)


def gated(producer: AbstractContextManager[Any]) -> AbstractContextManager[Any]:
    """Let a message that waits for the ledger go no further than to its producer: nobody knows of it until then."""
    gate = _current.get()
    return producer if gate is None or gate.asked else Passage(gate, producer)
