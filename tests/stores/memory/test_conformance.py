from __future__ import annotations

import functools

import pytest

from oncelery.stores import open_store
from oncelery.testing.conformance import Opener, StoreConformance


class TestMemoryStore(StoreConformance):
    model_examples = 120

    @pytest.fixture
    def opener(self) -> Opener:
        return functools.partial(open_store, "memory://")
