"""FaultProxy: a line between a client and a server that a test can cut, freeze and slow, and that can lose a reply.

with FaultProxy(valkey.port) as proxy, Redis.from_url(proxy.url(valkey.url)) as client:
    lost = proxy.lose_reply(b"EVALSHA")
    client.evalsha(...)             # the server does it; the client sees its connection die, and cannot know
    assert lost.happened.is_set()
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from oncelery.embedded.process import LOOPBACK, PATIENCE_SECONDS, PortTakenError, free_ports

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from collections.abc import Coroutine
    from types import TracebackType

#: How much is read at once, at most; and the longest mark by which a request can be told.
CHUNK_BYTES = 65_536

#: For SO_LINGER: a close throws away what is unsent and sends a reset, which is what a crash looks like from outside.
RESET_ON_CLOSE = struct.pack("ii", 1, 0)

#: How many turns of its loop asyncio takes to accept a connection and begin to serve it.
TURNS_TO_ACCEPT = 4


@dataclass(slots=True)
class Loss:
    """A request or reply that is to be lost, once."""

    #: What tells the request; empty for any.
    matching: bytes
    #: Which of the requests that match, counted from 1; counts down.
    nth: int
    #: Whether the server gets the request, and only its reply is lost.
    is_reply: bool
    #: Whether the line stays open afterwards, and nothing comes through it any more.
    is_silent: bool = False
    #: Set when it is lost; a test that does not look at it may have broken nothing.
    happened: threading.Event = field(default_factory=threading.Event)

    def is_due(self, before: bytes, sent: bytes) -> bool:
        """Whether the request to be lost is among the bytes just sent."""
        length = len(self.matching)
        # A mark may be spread over two pieces; so many bytes of the first that it cannot be there as a whole.
        seam = before[max(0, len(before) - length + 1) :]
        self.nth -= (seam + sent).count(self.matching) if length else 1
        return self.nth <= 0


class FaultProxy:
    """Forwards bytes from a port of its own to the target's, and breaks the line when told. It knows no protocol.

    What a command says holds when it returns, for all connections.
    """

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = 0
        #: Seconds by which every piece comes late, in each direction.
        self.delay = 0.0
        #: The size of pieces in which bytes are passed on; 0 for as they come.
        self.piece = 0
        self.losses: list[Loss] = []
        #: How many bytes of replies have come from the target.
        self.bytes_replied = 0
        self.flowing = asyncio.Event()
        self._lines: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="oncelery-fault-proxy", daemon=True)

    def url(self, url: str) -> str:
        """Give the URL by which a client that is to be disturbed reaches the target."""
        return url.replace(f":{self.target_port}", f":{self.port}")

    def start(self) -> Self:
        """Listen on a free port of loopback, and forward."""
        self._thread.start()
        self.thaw()
        self._do(self._listen_anywhere())
        return self

    def stop(self) -> None:
        """Reset what is connected, and listen no more."""
        self.refuse()
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_SECONDS)
        self._loop.close()

    def cut(self) -> None:
        """Reset every connection, at both ends."""
        self._do(self._cut())

    def refuse(self) -> None:
        """Take no new connections; those that are there stay."""
        self._do(self._refuse())

    def accept(self) -> None:
        """Take new connections again."""
        self._do(self._listen(self.port))

    def freeze(self) -> None:
        """Forward nothing and close nothing: each end sees the silence that a lost machine or cable leaves."""
        self._loop.call_soon_threadsafe(self.flowing.clear)

    def thaw(self) -> None:
        """Forward again, and first what has been held back."""
        self._loop.call_soon_threadsafe(self.flowing.set)

    def lose_reply(self, matching: bytes = b"", *, nth: int = 1) -> Loss:
        """Reset the line when the reply comes to the n-th request that has these bytes in it; nobody gets the reply."""
        return self._lose(Loss(matching, nth, is_reply=True))

    def lose_request(self, matching: bytes = b"", *, nth: int = 1) -> Loss:
        """Reset the line in place of forwarding that request. The client cannot tell this from a lost reply."""
        return self._lose(Loss(matching, nth, is_reply=False))

    def silence(self, matching: bytes, *, nth: int = 1) -> Loss:
        """Let nothing more through a line from that request on, and leave it open; other lines are not touched."""
        return self._lose(Loss(matching, nth, is_reply=False, is_silent=True))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _lose(self, loss: Loss) -> Loss:
        self._loop.call_soon_threadsafe(self.losses.append, loss)
        return loss

    def _do(self, command: Coroutine[None, None, None]) -> None:
        asyncio.run_coroutine_threadsafe(command, self._loop).result(PATIENCE_SECONDS)

    async def _listen_anywhere(self) -> None:
        for port in free_ports():
            try:
                return await self._listen(port)
            except OSError:
                continue
        raise PortTakenError("no free port for the proxy")

    async def _listen(self, port: int) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(self._serve, LOOPBACK, port)
            self.port = port

    async def _refuse(self) -> None:
        if self._listener is None:
            return
        for ear in self._listener.sockets:
            self._loop.remove_reader(ear.fileno())
        # Asyncio would forget a connection that it is accepting while its server is closed.
        await _finish_accepting()
        self._listener.close()
        self._listener = None

    async def _cut(self) -> None:
        await _finish_accepting()
        for line in self._lines:
            line.cancel()
        await asyncio.gather(*self._lines, return_exceptions=True)

    def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        line = self._loop.create_task(_Line(self, reader, writer).run())
        self._lines.add(line)
        line.add_done_callback(self._lines.discard)
        # Also of a line that is cut before it has begun.
        line.add_done_callback(lambda _: _reset(writer))


def _reset(end: StreamWriter) -> None:
    if not end.is_closing():
        end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        end.transport.abort()


async def _finish_accepting() -> None:
    for _ in range(TURNS_TO_ACCEPT):
        await asyncio.sleep(0)


async def _for_ever() -> None:
    await asyncio.Event().wait()


class _Line:
    """One client's connection, and its twin to the server."""

    def __init__(self, proxy: FaultProxy, reader: StreamReader, writer: StreamWriter) -> None:
        self.proxy = proxy
        self.reader = reader
        self.writer = writer
        self.lost_reply: Loss | None = None
        self.is_silent = False

    async def run(self) -> None:
        """Forward until both ends have closed; anything else resets both."""
        ends = [self.writer]
        try:
            await self.proxy.flowing.wait()
            server_reader, server_writer = await asyncio.open_connection(LOOPBACK, self.proxy.target_port)
            ends.append(server_writer)
            async with asyncio.TaskGroup() as directions:
                directions.create_task(self._forward_requests(server_writer))
                directions.create_task(self._forward_replies(server_reader))
            for end in ends:
                end.close()
        except* OSError:
            pass  # what befell one end befalls the other, below
        finally:
            for end in ends:
                _reset(end)

    async def _forward_requests(self, to: StreamWriter) -> None:
        sent = b""
        while piece := await self._read(self.reader):
            for loss in [loss for loss in self.proxy.losses if loss.is_due(sent, piece)]:
                self.proxy.losses.remove(loss)
                if loss.is_silent:
                    self.is_silent = True
                    loss.happened.set()
                    await _for_ever()
                if not loss.is_reply:
                    loss.happened.set()
                    raise ConnectionResetError
                self.lost_reply = loss
            await self._write(to, piece)
            sent = (sent + piece)[-CHUNK_BYTES:]
        to.write_eof()

    async def _forward_replies(self, source: StreamReader) -> None:
        while piece := await self._read(source):
            self.proxy.bytes_replied += len(piece)
            if self.lost_reply is not None:
                self.lost_reply.happened.set()
                raise ConnectionResetError
            await self._write(self.writer, piece)
        self.writer.write_eof()

    async def _read(self, source: StreamReader) -> bytes:
        piece = await source.read(CHUNK_BYTES)
        await self.proxy.flowing.wait()
        if self.is_silent:
            await _for_ever()
        return piece

    async def _write(self, to: StreamWriter, piece: bytes) -> None:
        size = self.proxy.piece or len(piece)
        for start in range(0, len(piece), size):
            if self.proxy.delay:
                await asyncio.sleep(self.proxy.delay)
            to.write(piece[start : start + size])
            await to.drain()
