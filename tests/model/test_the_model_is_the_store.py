"""What was proved of the model must be true of the code: both are asked the same, and must answer the same."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelery.job import Reason, State
from oncelery.stores.memory import MemoryStore
from oncelery.testing.clock import FakeClock

from . import ledger
from .ledger import Store
from .twin import Op, Twin, operations

#: How many situations are tried with each request.
SITUATIONS = 150


def twin(trace: Iterable[Op] = (), *, hold: bool = False) -> Twin:
    clock = FakeClock()
    pair = Twin(Store(), MemoryStore(clock=clock), clock)
    pair.model.hold = hold
    for op in trace:
        pair.do(op)
    return pair


def test_the_model_has_the_states_of_the_store() -> None:
    states = {ledger.QUEUED, ledger.RUNNING, ledger.COMPLETED, ledger.BURIED, ledger.CANCELLED}

    assert states == {state.value for state in State}
    assert {ledger.FAILED, ledger.CRASHED, ledger.NEVER_STARTED, ledger.UNKNOWN} <= {reason.value for reason in Reason}


def test_the_store_answers_each_request_as_the_model_does_in_the_nearest_situations() -> None:
    traces: list[tuple[Op, ...]] = [()]
    seen = {twin().situation()}
    for trace in traces:  # which grows meanwhile
        for op in operations():
            pair = twin(trace)
            try:
                pair.do(op)
            except AssertionError as difference:
                pytest.fail(f"{difference}\nafter: " + "; ".join(map(str, (*trace, op))))
            if pair.situation() not in seen and len(traces) < SITUATIONS:
                seen.add(pair.situation())
                traces.append((*trace, op))

    assert len(traces) == SITUATIONS


@settings(max_examples=200)
@given(trace=st.lists(st.sampled_from(operations()), min_size=20, max_size=60), hold=st.booleans())
def test_the_store_answers_as_the_model_does_through_long_histories(trace: list[Op], *, hold: bool) -> None:
    twin(trace, hold=hold)
