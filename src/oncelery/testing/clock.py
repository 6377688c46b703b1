"""A clock that stands still until it is moved."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class FakeClock:
    """Tells a store the time in tests; in life the store uses its server's clock."""

    def __init__(self, now: datetime = datetime(2030, 1, 1, 12, tzinfo=UTC)) -> None:
        self.now = now

    def __call__(self) -> datetime:
        """Tell the time."""
        return self.now

    def advance(self, *, seconds: float = 0, hours: float = 0, days: float = 0) -> None:
        """Let time pass (or, with a negative amount, a server's clock be set back)."""
        self.now += timedelta(seconds=seconds, hours=hours, days=days)
