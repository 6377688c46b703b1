"""JSON in and out, never pickle: records inside a job, values of steps, leases, answers over HTTP."""

from __future__ import annotations

from contextlib import suppress
from typing import TypeVar

import msgspec

T = TypeVar("T")

_encoder = msgspec.json.Encoder()

#: More than a field's name takes, with its quotation marks.
LONGEST_NAME = 20


def encode(value: object) -> bytes:
    """Write a value as JSON; a lone surrogate, as in a badly encoded file name, as its escape."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(_whole(msgspec.to_builtins(value)))


def decode(text: bytes | str, kind: type[T]) -> T:
    """Read JSON as `kind`; numbers written as text (Lua keeps 14 digits) are read as numbers."""
    return msgspec.json.decode(text, type=kind, strict=False)


def decode_cut(text: bytes | str, kind: type[T]) -> T | None:
    """Read a JSON object that may have been cut off within one of its strings; None if too little is left."""
    written = text.encode() if isinstance(text, str) else text
    with suppress(msgspec.MsgspecError):
        return decode(written, kind)
    # Back to where a string may end: neither within a character or an escape, nor within the next name.
    for end in range(len(written), max(len(written) - LONGEST_NAME, 0), -1):
        with suppress(msgspec.MsgspecError):
            return decode(written[:end] + b'"}', kind)
    return None


def escaped(text: str) -> str:
    """Give the text with its lone surrogates as escapes, so that it can be written as UTF-8."""
    return text.encode(errors="backslashreplace").decode()


#: The name by which the broker's JSON marks an object that stands for bytes, a Decimal, an instant and the like.
TAG = "__type__"


def is_tagged(value: object) -> bool:
    """Whether an object somewhere in a value has the name `__type__`: a worker would read it as another type."""
    match value:
        case dict():
            return TAG in value or any(map(is_tagged, value.values()))
        case list() | tuple() | set() | frozenset():
            return any(map(is_tagged, value))
        case _:
            return False


def _whole(value: object) -> object:
    match value:
        case str():
            return escaped(value)
        case list() | tuple():
            return [_whole(item) for item in value]
        case dict():
            return {_whole(name): _whole(item) for name, item in value.items()}
        case _:
            return value
