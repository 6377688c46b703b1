"""Ids, keys and holders as the server keeps them: half the size where they are hexadecimal, as most are."""

from __future__ import annotations

#: How many bytes a UUID (of so many characters), a fingerprint and a holder have. Text is never packed into so many.
UUID_SIZE = 16
UUID_LENGTH = 36
KEY_SIZE = 32
HOLDER_SIZE = 16


def pack_id(text: str) -> bytes:
    """Write a UUID as its bytes, any other id as text."""
    if len(text) == UUID_LENGTH and text[8:24:5] == "----":
        digits = text.replace("-", "")
        packed = _octets(digits, UUID_SIZE)
        if packed and packed.hex() == digits:
            return packed
    return _pack_text(text, UUID_SIZE)


def unpack_id(packed: bytes) -> str:
    """Read an id; none from nothing."""
    if len(packed) != UUID_SIZE:
        return _unpack_text(packed)
    digits = packed.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def pack_key(text: str) -> bytes:
    """Write a fingerprint as its bytes, any other key as text."""
    return _pack_digits(text, KEY_SIZE)


def unpack_key(packed: bytes) -> str:
    """Read a key."""
    return packed.hex() if len(packed) == KEY_SIZE else _unpack_text(packed)


def pack_holder(text: str) -> bytes:
    """Write a holder of 128 bits as its bytes, any other as text."""
    return _pack_digits(text, HOLDER_SIZE)


def unpack_holder(packed: bytes) -> str:
    """Read a holder; none from nothing."""
    return packed.hex() if len(packed) == HOLDER_SIZE else _unpack_text(packed)


def _pack_digits(text: str, size: int) -> bytes:
    packed = _octets(text, size)
    return packed if packed and packed.hex() == text else _pack_text(text, size)


def _octets(digits: str, size: int) -> bytes | None:
    if len(digits) != 2 * size:
        return None
    try:
        return bytes.fromhex(digits)
    except ValueError:
        return None


def _pack_text(text: str, size: int) -> bytes:
    written = text.encode()
    # One byte longer where it could be taken for the bytes of something else.
    return b"t%b" % written if 1 + len(written) != size else b"T%b." % written


def _unpack_text(packed: bytes) -> str:
    return (packed[1:-1] if packed[:1] == b"T" else packed[1:]).decode()
