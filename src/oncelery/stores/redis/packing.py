"""Ids, keys and holders as the server keeps them: half the size where they are hexadecimal."""

from __future__ import annotations

UUID_LENGTH = 36


def pack(text: str) -> bytes:
    """Write a UUID as `u` and its bytes, other hexadecimal as `x` and its bytes, all else as `t` and its text."""
    kind, digits = (b"u", text.replace("-", "")) if len(text) == UUID_LENGTH else (b"x", text)
    try:
        packed = kind + bytes.fromhex(digits)
    except ValueError:
        return b"t" + text.encode()
    # Not everything that reads as hexadecimal is written in the one way that `unpack` knows: upper case, for one.
    return packed if unpack(packed) == text else b"t" + text.encode()


def unpack(packed: bytes) -> str:
    """Read what `pack` wrote."""
    kind, octets = packed[:1], packed[1:]
    if kind == b"t":
        return octets.decode()
    text = octets.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}" if kind == b"u" else text
