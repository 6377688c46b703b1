"""Ids, keys and holders as the server keeps them: half the size where they are hexadecimal, as most are."""

from __future__ import annotations

#: How many bytes a UUID (of so many characters), a fingerprint and a holder have. Text is never packed into so many.
UUID_SIZE = 16
UUID_LENGTH = 36
KEY_SIZE = 32
HOLDER_SIZE = 16


def pack_id(text: str) -> bytes:
    """Write a UUID as its bytes, any other id as text."""
    digits = text.replace("-", "") if len(text) == UUID_LENGTH and text[8:24:5] == "----" else ""
    return _octets(digits, UUID_SIZE) or _pack_text(text, UUID_SIZE)


def unpack_id(packed: bytes) -> str:
    """Read an id; none from nothing."""
    if len(packed) != UUID_SIZE:
        return _unpack_text(packed)
    digits = packed.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def pack_key(text: str) -> bytes:
    """Write a fingerprint as its bytes, any other key as text."""
    return _octets(text, KEY_SIZE) or _pack_text(text, KEY_SIZE)


def unpack_key(packed: bytes) -> str:
    """Read a key."""
    return packed.hex() if len(packed) == KEY_SIZE else _unpack_text(packed)


def pack_holder(text: str) -> bytes:
    """Write a holder of 128 bits as its bytes, any other as text."""
    return _octets(text, HOLDER_SIZE) or _pack_text(text, HOLDER_SIZE)


def unpack_holder(packed: bytes) -> str:
    """Read a holder; none from nothing."""
    return packed.hex() if len(packed) == HOLDER_SIZE else _unpack_text(packed)


def _octets(digits: str, size: int) -> bytes:
    """Give so many bytes, if these are their digits as they will be read again; else nothing."""
    try:
        octets = bytes.fromhex(digits)
    except ValueError:
        return b""
    return octets if len(octets) == size and octets.hex() == digits else b""


def _pack_text(text: str, size: int) -> bytes:
    written = text.encode()
    # One byte longer where it could be taken for the bytes of something else.
    return b"t%b" % written if 1 + len(written) != size else b"T%b." % written


def _unpack_text(packed: bytes) -> str:
    return (packed[1:-1] if packed[:1] == b"T" else packed[1:]).decode()
