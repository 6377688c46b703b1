"""What users test with: a clock to move, private servers, ways to break them, and the conformance suite for a store.

The fixture `oncelery_bench` is there wherever pytest is: see docs/testing.md.
They are imported by name: `.servers` and `.conformance` need `oncelery[testing]`, `.proxy` and `.failpoints` nothing.
"""

from oncelery.testing.clock import FakeClock

__all__ = ["FakeClock"]
