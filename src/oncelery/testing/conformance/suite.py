"""All parts of the suite in one class."""

from __future__ import annotations

from oncelery.testing.conformance.cells import Table
from oncelery.testing.conformance.publishing import Replacing, Reserving, Trailing
from oncelery.testing.conformance.running import Beginning, Crashing, Ephemeral


class StoreConformance(
    Table,
    Reserving,
    Trailing,
    Replacing,
    Beginning,
    Crashing,
    Ephemeral,
):
    """Every promise of `oncelery.stores.base`, as tests; see the package's docstring for how to bind a store."""
