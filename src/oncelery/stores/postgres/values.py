"""How values travel between Python and PostgreSQL: any text, exact durations, times in UTC, JSON as it was written."""

from __future__ import annotations

import re
import struct
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from psycopg import DataError
from psycopg.adapt import Buffer, Dumper, Loader
from psycopg.postgres import types
from psycopg.pq import Format

if TYPE_CHECKING:
    from psycopg.abc import AdaptContext

#: Where PostgreSQL's clock starts.
EPOCH = datetime(2000, 1, 1, tzinfo=UTC)

_ESCAPED = re.compile(r"\\(\\|0|u[0-9a-f]{4})")


class Json(bytes):
    """JSON that is written already."""

    __slots__ = ()


def adapt(context: AdaptContext) -> None:
    """Teach a connection or cursor these ways."""
    adapters = context.adapters
    for kind, dumper in ((str, _TextDumper), (timedelta, _DurationDumper), (Json, _JsonDumper)):
        adapters.register_dumper(kind, dumper)
    for name, loader in (("text", _TextLoader), ("timestamptz", _TimeLoader), ("json", _JsonLoader)):
        adapters.register_loader(name, loader)


def plain(text: str) -> str:
    """Give back the text that was escaped to be kept."""
    return _ESCAPED.sub(lambda match: _unescape(match[1]), text) if "\\" in text else text


def _unescape(code: str) -> str:
    return {"\\": "\\", "0": "\0"}.get(code) or chr(int(code[1:], 16))


class _TextDumper(Dumper):
    r"""Python's text may hold NUL and lone surrogates, PostgreSQL's may not: written \0 and \udc80, with \ doubled."""

    format = Format.BINARY
    oid = types["text"].oid

    def dump(self, obj: str) -> bytes:
        if "\\" in obj or "\0" in obj:
            obj = obj.replace("\\", "\\\\").replace("\0", "\\0")
        return obj.encode("utf-8", "backslashreplace")


class _TextLoader(Loader):
    format = Format.BINARY

    def load(self, data: Buffer) -> str:
        return plain(str(data, "utf-8"))


class _DurationDumper(Dumper):
    """In microseconds: a day would be one of 23 or 25 hours in a session whose time zone has such days."""

    format = Format.BINARY
    oid = types["interval"].oid

    def dump(self, obj: timedelta) -> bytes:
        try:
            return struct.pack("!qii", obj // timedelta(microseconds=1), 0, 0)
        except struct.error as error:
            raise DataError(f"no time is so long: {obj}") from error


class _TimeLoader(Loader):
    """Times are given in UTC, whatever the session's time zone."""

    format = Format.BINARY

    def load(self, data: Buffer) -> datetime:
        return EPOCH + timedelta(microseconds=int.from_bytes(data, "big", signed=True))


class _JsonDumper(Dumper):
    format = Format.BINARY
    oid = types["json"].oid

    def dump(self, obj: Json) -> bytes:
        return obj


class _JsonLoader(Loader):
    format = Format.BINARY

    def load(self, data: Buffer) -> bytes:
        return bytes(data)
