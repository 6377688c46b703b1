"""Bytes: how the small records inside a job (errors, progress, attempts) are written. JSON only, never pickle."""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")

_encoder = msgspec.json.Encoder()


def encode(value: object) -> bytes:
    """Write a value as JSON; half a character, as in a badly encoded file name, as its escape."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(_whole(msgspec.to_builtins(value)))


def decode(text: bytes | str, kind: type[T]) -> T:
    """Read JSON as `kind`; numbers written as text (Lua keeps 14 digits) are read as numbers."""
    return msgspec.json.decode(text, type=kind, strict=False)


def _whole(value: object) -> object:
    match value:
        case str():
            return value.encode(errors="backslashreplace").decode()
        case list():
            return [_whole(item) for item in value]
        case dict():
            return {name: _whole(item) for name, item in value.items()}
        case _:
            return value
