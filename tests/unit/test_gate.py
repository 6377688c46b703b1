from __future__ import annotations

import pytest

from oncelery import StoreUnavailableError
from oncelery.answers import Existing, Reserved
from oncelery.celery.gate import Gate, NotToBeSent
from oncelery.stores.memory import MemoryStore
from oncelery.testing.conformance.acts import accepted


def test_the_ledger_is_asked_once() -> None:
    job = accepted(MemoryStore())
    answers = iter([Reserved(job)])
    gate = Gate(lambda: next(answers))

    gate.go_on()
    gate.go_on()

    assert gate.ask() == Reserved(job)


def test_what_is_no_new_job_goes_no_further_however_often_it_tries() -> None:
    job = accepted(MemoryStore())
    gate = Gate(lambda: Existing(job))

    for _ in range(2):
        with pytest.raises(NotToBeSent) as stop:
            gate.go_on()
        assert stop.value.answer == Existing(job)


def test_nothing_goes_on_without_an_answer() -> None:
    def fail() -> Reserved:
        raise StoreUnavailableError

    gate = Gate(fail)

    for _ in range(2):
        with pytest.raises(StoreUnavailableError):
            gate.go_on()
