"""A stream of server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

#: How often a stream says that it is alive, in seconds; proxies close silent ones.
PING_EVERY: Final = 15.0


class EventStream(StreamingResponse):
    """Sends events as they come, and ends when the client goes away, also while there is nothing to send."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes]) -> None:
        # nginx would else hold events back until it has a buffer full of them.
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(events, headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        # From ASGI 2.4 on Starlette would learn by the next event, and not before, that nobody is there.
        older = {**scope, "asgi": {**scope.get("asgi", {}), "spec_version": "2.3"}}
        with suppress(OSError):
            await super().__call__(older, receive, send)
