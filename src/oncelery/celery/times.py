"""How long a call waits and until when it holds, the ways Celery writes it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from celery import Celery
from celery.utils.quorum_queues import detect_quorum_queues

from oncelery.job import NO_TIME


def whole(app: Celery, countdown: float | None) -> float | None:
    """Give a countdown that the broker can keep: RabbitMQ's quorum queues take none between zero and one second."""
    if not countdown or countdown >= 1:
        return countdown
    driver = app.producer_pool.connections.connection.transport.driver_type
    return 1.0 if detect_quorum_queues(app, driver)[0] else countdown


def delay_of(options: Mapping[str, Any]) -> timedelta:
    """Read how long a call is to wait, whether it says so as `countdown` or as `eta`."""
    when = options.get("countdown") or options.get("eta")
    return delay_until(when) if when else NO_TIME


def delay_until(when: datetime | str | float | None) -> timedelta:
    """Read a delay the ways Celery writes one: seconds, an instant, or an instant as text."""
    if isinstance(when, datetime | str):
        return max(instant(when) - datetime.now(UTC), timedelta(0))
    return max(timedelta(seconds=when or 0), timedelta(0))


def instant(when: datetime | str) -> datetime:
    """Read an instant as Celery does: without a time zone it is UTC, whatever the app's own."""
    read = datetime.fromisoformat(when) if isinstance(when, str) else when
    return read if read.tzinfo else read.replace(tzinfo=UTC)
