"""What users test with: a clock to move, private servers, ways to break them, and the conformance suite for a store.

`.servers`, `.proxy`, `.failpoints` and `.conformance` are imported by name; all but the third need `oncelery[testing]`.
"""

from oncelery.testing.clock import FakeClock

__all__ = ["FakeClock"]
