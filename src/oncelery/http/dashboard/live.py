"""A page that is open changes with the ledger: its address, asked for as a stream, sends the page when it differs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from oncelery.http.streaming import PING_EVERY, EventStream

#: How long between two looks, in seconds.
LOOK_EVERY: Final = 1.0

#: How long one stream lasts, in seconds. Browsers ask again at once, whoever is let in no more is not let in again, and
#: a service that ends need not wait for long.
LASTS: Final = 30.0

#: Asks browsers to come back after so many milliseconds.
_BEGIN: Final = b"retry: 200\n\n"
_PING: Final = b": still there\n\n"

#: Returns a page, and whether it shows what was asked for rather than an error.
Look = Callable[[], Awaitable[tuple[str, bool]]]


def stream(look: Look) -> EventStream:
    """Answer with the page that `look` gives, now and whenever it has changed."""
    return EventStream(_looks(look))


async def _looks(look: Look) -> AsyncIterator[bytes]:
    yield _BEGIN
    time = asyncio.get_running_loop().time
    seen, told, ends = "", time(), time() + LASTS
    while time() < ends:
        started = time()
        found, is_well = await look()
        if found != seen:
            seen, told = found, time()
            yield message(found)
        elif time() - told > PING_EVERY:
            told = time()
            yield _PING
        # A page that takes long to make is made less often, so that those who only look leave most of the time to work.
        # One that could not be made is tried again soon: it took long because the store was silent.
        await asyncio.sleep(max(LOOK_EVERY, 5 * (time() - started)) if is_well else LOOK_EVERY)


def message(text: str) -> bytes:
    """Write a message of a stream; no line of it can be taken for another field."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return ("".join(f"data: {line}\n" for line in lines) + "\n").encode()
