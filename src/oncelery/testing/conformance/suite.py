"""All parts of the suite in one class."""

from __future__ import annotations

from oncelery.testing.conformance.cells import Table


class StoreConformance(Table):
    """Every promise of `oncelery.stores.base`, as tests; see the package's docstring for how to bind a store."""
