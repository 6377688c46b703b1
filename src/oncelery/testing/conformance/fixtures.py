"""What each part of the suite is given: the author of a store fills `opener`, the rest follows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Protocol

import pytest

from oncelery.stores.base import Clock, Store
from oncelery.testing.clock import FakeClock


class Opener(Protocol):
    """Opens the store under test. Can be pickled, so that other processes open the same ledger."""

    def __call__(self, *, clock: Clock | None = None) -> Store:
        """Open it, on the clock of its server if none is given."""


class Fixtures:
    """The fixtures of the suite."""

    #: How many sequences of verbs, and how long ones, the store is compared with the reference on.
    model_examples: ClassVar[int] = 50
    model_steps: ClassVar[int] = 40

    @pytest.fixture
    def opener(self) -> Opener:
        """Give what opens the store: an empty ledger for each test."""
        pytest.fail(f"{type(self).__name__} must have a fixture `opener`: see oncelery.testing.conformance")

    @pytest.fixture
    def clock(self) -> FakeClock:
        """Give the clock that the store goes by."""
        return FakeClock()

    @pytest.fixture
    def store(self, opener: Opener, clock: FakeClock) -> Iterator[Store]:
        """Give the store under test, on that clock."""
        store = opener(clock=clock)
        yield store
        store.close()
