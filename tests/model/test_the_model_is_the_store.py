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
from .mutants import ReceiptsCountBeforeTheTime
from .twin import Op, Twin, operations

#: Where the store differs from the model, on purpose or not yet: see the expected failure below.
AS_IT_IS = ReceiptsCountBeforeTheTime

#: How many situations are tried with each request.
SITUATIONS = 300


def twin(model: type[Store] = AS_IT_IS, trace: Iterable[Op] = ()) -> Twin:
    clock = FakeClock()
    pair = Twin(model(), MemoryStore(clock=clock), clock)
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
            pair = twin(trace=trace)
            try:
                pair.do(op)
            except AssertionError as difference:
                pytest.fail(f"{difference}\nafter: " + "; ".join(map(str, (*trace, op))))
            if pair.situation() not in seen and len(traces) < SITUATIONS:
                seen.add(pair.situation())
                traces.append((*trace, op))

    assert len(traces) == SITUATIONS


@settings(max_examples=200)
@given(trace=st.lists(st.sampled_from(operations()), min_size=20, max_size=60))
def test_the_store_answers_as_the_model_does_through_long_histories(trace: list[Op]) -> None:
    twin(trace=trace)


@pytest.mark.xfail(strict=True, reason="deliveries before a job's time count as if they had killed their worker")
def test_messages_that_come_before_their_time_do_not_bury_a_job() -> None:
    released = [Op("reserve", detail="join"), Op("begin", holder=1), Op("settle", holder=1, detail="retry")]

    twin(Store, [*released, *[Op("received")] * 3])
