"""What users test with: a clock to move, private servers, and the conformance suite for a store of their own.

`oncelery.testing.servers` and `oncelery.testing.conformance` are imported by name; they need `oncelery[testing]`.
"""

from oncelery.testing.clock import FakeClock

__all__ = ["FakeClock"]
