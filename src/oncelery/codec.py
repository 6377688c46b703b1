"""Bytes: how the small records inside a job (errors, progress, attempts) are written. JSON only, never pickle."""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")

_encoder = msgspec.json.Encoder()


def encode(value: object) -> bytes:
    """Write a value as JSON."""
    return _encoder.encode(value)


def decode(text: bytes | str, kind: type[T]) -> T:
    """Read JSON as `kind`; numbers written as text (Lua keeps 14 digits) are read as numbers."""
    return msgspec.json.decode(text, type=kind, strict=False)
