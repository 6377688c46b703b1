"""All parts of the suite in one class."""

from __future__ import annotations

from oncelery.testing.conformance.aliases import Aliases
from oncelery.testing.conformance.auditing import Auditing
from oncelery.testing.conformance.cells import Table
from oncelery.testing.conformance.clocks import WrongClocks
from oncelery.testing.conformance.dead_letters import Burying, Resubmitting
from oncelery.testing.conformance.ending import Cancelling, Completing, Releasing, Remembering
from oncelery.testing.conformance.entangled import Entangled
from oncelery.testing.conformance.model import Model
from oncelery.testing.conformance.owning import Fencing, Owning, Recording, Renewing
from oncelery.testing.conformance.payloads import Payloads
from oncelery.testing.conformance.publishing import Replacing, Reserving, Trailing
from oncelery.testing.conformance.quotas import Quotas
from oncelery.testing.conformance.races import ProcessRaces, ThreadRaces
from oncelery.testing.conformance.reading import Finding, Opening, Pruning, Tallying
from oncelery.testing.conformance.receiving import Receiving
from oncelery.testing.conformance.replies import BrokenRuns, LostReplies
from oncelery.testing.conformance.running import Beginning, Crashing, Ephemeral
from oncelery.testing.conformance.sweeping import LostMessages
from oncelery.testing.conformance.taking_over import LostWorkers
from oncelery.testing.conformance.within import Transactions


class StoreConformance(
    Table,
    Reserving,
    Trailing,
    Replacing,
    Quotas,
    Aliases,
    Beginning,
    Crashing,
    Ephemeral,
    Owning,
    Fencing,
    Renewing,
    Recording,
    Completing,
    Releasing,
    Burying,
    Resubmitting,
    Cancelling,
    Remembering,
    LostMessages,
    LostWorkers,
    WrongClocks,
    Receiving,
    Finding,
    Auditing,
    Tallying,
    Pruning,
    Opening,
    Entangled,
    Payloads,
    LostReplies,
    BrokenRuns,
    Model,
    ThreadRaces,
    ProcessRaces,
    Transactions,
):
    """Every promise of `oncelery.stores.base`, as tests; see the package's docstring for how to bind a store."""
