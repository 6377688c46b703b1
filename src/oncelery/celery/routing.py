"""Where messages go, and what their queues are called."""

from __future__ import annotations

from typing import Any


class Routed:
    """The router of calls whose way is known."""

    @staticmethod
    def route(options: dict[str, Any], *_: object) -> dict[str, Any]:
        """Leave it at that; but what is not said is not there, as Celery has it: a priority may be its parent's."""
        return {name: value for name, value in options.items() if value is not None}


ROUTED = Routed()


def queue_label(queue: str, priority: int | None) -> str:
    """Name a queue and a priority in it: only messages of one label are served in order."""
    # No priority and priority 0 are one: brokers treat them alike, and some turn one into the other.
    return f"{queue}#{priority}" if priority else queue
