"""The suite that holds a store to its contract, for the stores of Oncelery and for yours.

Inherit, say how the store is opened, and run pytest::

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def opener(self) -> Opener:
            return functools.partial(MyStore, "my://server", namespace=uuid4().hex)

The opener takes a `clock` (None: the server's own) and opens, whenever it is called within one test, the same ledger,
which is empty when the test starts. It can be pickled: if `store.shared`, the races open it in other processes too.
"""

import pytest

# Before the parts are imported: so a failing sentence tells what it saw.
pytest.register_assert_rewrite(__name__)

from oncelery.testing.conformance.fixtures import Opener  # noqa: E402
from oncelery.testing.conformance.suite import StoreConformance  # noqa: E402

__all__ = ["Opener", "StoreConformance"]
