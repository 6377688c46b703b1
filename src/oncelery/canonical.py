"""One value, one text: the canonical JSON that keys are made of.

The rule behind every choice: a value and what arrives of it behind the broker are one. What kombu's JSON or msgpack
serialiser makes of a value (a list of a tuple, `"1"` of the key `1`, its value of an enum) has the same text.
"""

from __future__ import annotations

import sys
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from math import isfinite
from typing import Any, Final, NoReturn
from uuid import UUID

from msgspec import Raw
from msgspec.json import Encoder

from oncelery.errors import FingerprintError

#: How deep values may be nested. Deeper is a mistake or an attack, and a value that contains itself has no end.
MAX_DEPTH: Final = 100

#: How long the canonical text may get. Work is not told apart by megabytes: name what counts with `key=`.
MAX_BYTES: Final = 16 * 1024 * 1024

#: How many digits a number may have: Python's own limit for integers read from text.
MAX_DIGITS: Final = 4300


def canonical_json(value: object, /) -> bytes:
    """Return the one text of a value: the same in every process, before and after the broker's serialiser.

    Keys are sorted by code point, there are no spaces, text is UTF-8 as given (no Unicode normalisation).

    - Numbers are one family: `1`, `1.0` and `Decimal("1.00")` are one, as are `0.0` and `-0.0`. Integers and decimals
      are exact, floats count to 15 significant digits (`%.15g`; whole floats up to 2^53 exactly). `True` is not `1`.
    - UUID, date, time and enum are one with their usual text or value, so that a caller who sends JSON by hand gets the
      same key as one who sends objects. Strings are never interpreted: an upper-case UUID is another text.
    - An aware datetime is its instant, written in UTC (`2026-01-31T12:00:00Z`). A naive one is kept as it stands and is
      never equal to an aware one: nothing tells whose wall clock it shows. A timedelta is its seconds (`PT90S`).
    - Keys of mappings become text as in JSON: `1` is `"1"`, `None` is `"null"`, `1.0` is `"1.0"`.
    - Tuples are lists, sets are sorted lists without repeats, dataclasses are mappings of their fields, pydantic models
      are their `model_dump()`, an object with kombu's `__json__` is what that returns. Bytes are kombu's tagged form,
      `{"__type__": "bytes", ...}`, never plain text.

    Raises:
        FingerprintError: NaN, Infinity, a type without such a form, a lone surrogate, two keys that become the same
            text, or more depth, digits or bytes than allowed. The message names the argument by its path.
    """
    try:
        text = _encode_plain(value)
    except _Refusal as refusal:
        raise refusal.as_error() from None
    if len(text) > MAX_BYTES:
        raise _too_long(value, len(text)).as_error()
    return text


def key_text(value: object, /) -> str:
    """Return the text that a scalar has as a key of a JSON object; FingerprintError when it has none."""
    try:
        return _name_of(value)
    except _Refusal as refusal:
        raise refusal.as_error() from None


def fields_of(value: object, /) -> Mapping[Any, object] | None:
    """Return the named parts of a mapping, dataclass or model, as they count; None when it has no such parts."""
    if isinstance(value, dict):
        return value
    reduced = _reduced(value)
    return None if reduced is value else fields_of(reduced)


class _Refusal(Exception):  # noqa: N818 - not an error yet: it gathers its path on the way up, then becomes one
    """A value that has no canonical form, and the way to it from the innermost step outwards."""

    def __init__(self, reason: str, *path: object) -> None:
        self.reason = reason
        self.path = list(path)

    def as_error(self) -> FingerprintError:
        subject = f"argument {_written(self.path)!r}" if self.path else "the value"
        remedy = "Leave it out with `ignore=`, or choose what counts with `key=`"
        return FingerprintError(f"{subject} {self.reason}. {remedy}.")


#: What msgspec writes exactly as the canonical text has it.
_LEAVES: Final[frozenset[type]] = frozenset({str, int, bool, type(None)})

#: The same once msgspec has stumbled: now every text, integer and key is looked at, to mend or to name the culprit.
_STRICT_LEAVES: Final[frozenset[type]] = frozenset({bool, type(None)})

#: Lists longer than this are looked at as a whole first.
_LONG: Final = 2

#: Up to here every integer is a float, so a whole float stands for just one.
_EXACT: Final = 2.0**53

_FLOATS: Final = frozenset({float})

_encode: Final = Encoder(order="deterministic").encode


def _encode_plain(value: object) -> bytes:
    plain = _plain(value, 0, _LEAVES)
    try:
        return _encode(plain)
    except (TypeError, ValueError, OverflowError):
        # Keys that are no text, lone surrogates, endless integers: too rare to look for before msgspec stumbles.
        return _encode(_plain(value, 0, _STRICT_LEAVES))


def _plain(value: object, depth: int, leaves: frozenset[type]) -> object:
    """Return what msgspec shall write for a value: the value itself where nothing in it needs rewriting."""
    kind = type(value)
    return value if kind in leaves else _RULES.get(kind, _by_ancestry)(value, depth, leaves)


# The two loops below are where the time goes: floats are looked at in place, and nothing is copied without need.
# A float below 1e9 with at most six decimals is written alike by msgspec and `%.15g`, so it may stay as it is.


def _mapping(value: dict[Any, Any], depth: int, leaves: frozenset[type]) -> object:
    if depth >= MAX_DEPTH and value:
        _refuse_depth()
    tree, key = value, None
    try:
        for key, item in value.items():
            kind = type(item)
            if kind in leaves:
                continue
            if kind is float and -1e9 < item < 1e9:  # noqa: PLR2004
                if round(item * 1e6) / 1e6 == item and item % 1 and not -1e-4 < item < 1e-4:  # noqa: PLR2004
                    continue
                plain: object = Raw(f"{item + 0.0:.15g}")
            else:
                plain = _RULES.get(kind, _by_ancestry)(item, depth + 1, leaves)
            if plain is not item:
                if tree is value:
                    tree = value.copy()
                tree[key] = plain
    except _Refusal as refusal:
        refusal.path.append(key)
        raise
    return tree if leaves is _LEAVES else _with_names(tree)


def _list(value: list[Any], depth: int, leaves: frozenset[type]) -> object:
    if depth >= MAX_DEPTH and value:
        _refuse_depth()
    if len(value) > _LONG and (whole := _whole_list(value, leaves)):
        return whole
    tree, index = value, -1
    try:
        for item in value:
            index += 1  # `enumerate` would make the loop a tenth slower
            kind = type(item)
            if kind in leaves:
                continue
            if kind is float and -1e9 < item < 1e9:  # noqa: PLR2004
                if round(item * 1e6) / 1e6 == item and item % 1 and not -1e-4 < item < 1e-4:  # noqa: PLR2004
                    continue
                plain: object = Raw(f"{item + 0.0:.15g}")
            else:
                plain = _RULES.get(kind, _by_ancestry)(item, depth + 1, leaves)
            if plain is not item:
                if tree is value:
                    tree = value.copy()
                tree[index] = plain
    except _Refusal as refusal:
        refusal.path.append(index)
        raise
    return tree


def _whole_list(value: list[Any], leaves: frozenset[type]) -> list[Any] | Raw | None:
    """Return a list of leaves as it is, and one of floats written in one go; None when each item must be looked at."""
    first = type(value[0])
    if first in leaves:
        return value if type(value[-1]) in leaves and leaves.issuperset(map(type, value)) else None
    if first is not float or not _FLOATS.issuperset(map(type, value)):
        return None
    if all(map(float.is_integer, value)) and max(map(abs, value)) <= _EXACT:
        return [*map(int, value)]
    text = ("%.15g," * len(value)) % tuple(value)
    # "n" is in nan and inf, "e+" is a large number whose integer must be written out, "-0," is zero.
    return None if "n" in text or "e+" in text or "-0," in text else Raw(f"[{text[:-1]}]")


def _with_names(tree: dict[Any, object]) -> dict[str, object]:
    named: dict[str, object] = {}
    for key, item in tree.items():
        try:
            name = _name_of(key)
        except _Refusal as refusal:
            raise _Refusal(f"has a key that {refusal.reason}") from None
        if name in named:
            raise _Refusal("is there twice, under keys that become the same text in JSON", name)
        named[name] = item
    return named


def _set(value: frozenset[object], depth: int, _leaves: frozenset[type]) -> list[Raw]:
    if depth >= MAX_DEPTH and value:
        _refuse_depth()
    # Strict, because an item is encoded here and now, where msgspec must not stumble.
    return [Raw(text) for text in sorted({_encode(_plain(item, depth + 1, _STRICT_LEAVES)) for item in value})]


def _float(value: float, *_: object) -> object:
    if not isfinite(value):
        _refuse_not_finite(value)
    if value.is_integer() and abs(value) <= _EXACT:
        return int(value)
    text = f"{value:.15g}"
    return _int(int(Decimal(text))) if "e+" in text else Raw(text)


def _decimal(value: Decimal, *_: object) -> object:
    if not value.is_finite():
        _refuse_not_finite(value)
    if not value:
        return 0
    sign, digits, exponent = value.as_tuple()
    if max(len(digits), value.adjusted() + 1, -value.adjusted()) > MAX_DIGITS:
        _refuse_digits()
    if value == (whole := int(value)):
        return _int(whole)
    text = f"{float(value):.15g}"
    if Decimal(text) == value:
        return Raw(text)
    # More digits than a float has: exactly these, whatever trailing zeros they came with.
    significant = "".join(map(str, digits)).rstrip("0")
    return Raw(f"{'-' * sign}{significant}e{int(exponent) + len(digits) - len(significant)}")


def _int(value: int, *_: object) -> object:
    try:
        return value if -(2**63) <= value < 2**64 else Raw(str(value))
    except ValueError:
        _refuse_digits()


def _str(value: str, *_: object) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _Refusal("is text with a lone surrogate, which UTF-8 cannot carry") from None
    return value


def _bytes(value: bytes | bytearray | memoryview, *_: object) -> dict[str, str]:
    octets = bytes(value)
    try:
        return {"__type__": "bytes", "__value__": octets.decode()}
    except UnicodeDecodeError:
        return {"__type__": "base64", "__value__": b64encode(octets).decode()}


def _datetime(value: datetime, *_: object) -> str:
    if value.utcoffset() is None:
        return datetime.isoformat(value.replace(tzinfo=None))
    try:
        return datetime.isoformat(value.astimezone(UTC).replace(tzinfo=None)) + "Z"
    except OverflowError:
        raise _Refusal("is a datetime that is out of range in UTC") from None


def _timedelta(value: timedelta, *_: object) -> str:
    seconds, micros = divmod(abs(value) // timedelta(microseconds=1), 1_000_000)
    return f"{'-' if value < timedelta() else ''}PT{seconds}{f'.{micros:06}' if micros else ''}S"


def _by_ancestry(value: Any, depth: int, leaves: frozenset[type]) -> object:  # noqa: ANN401 - truly any
    """Treat a value by its nearest known base class, or by what it says of itself."""
    kind = type(value)
    known = next((base for base in kind.__mro__ if base in _RULES), None)
    if known in _NATIVE:
        return _plain(_NATIVE[known](value), depth, leaves)
    if known is not None and not hasattr(kind, "__json__"):
        return _RULES[known](value, depth, leaves)
    if depth >= MAX_DEPTH:
        _refuse_depth()
    reduced = _reduced(value)
    if reduced is value:
        name = f"{kind.__module__}.{kind.__qualname__}"
        raise _Refusal(f"is a {name}, which has no canonical form: pass plain values, or its id")
    return _plain(reduced, depth + 1, leaves)


def _reduced(value: Any) -> object:  # noqa: ANN401 - truly any
    """Return what an object says it consists of; the object itself when it says nothing."""
    kind = type(value)
    if hasattr(kind, "__json__"):
        return value.__json__()
    if hasattr(kind, "model_dump"):
        return value.model_dump()
    if is_dataclass(kind):
        return {field.name: getattr(value, field.name) for field in fields(kind)}
    django = sys.modules.get("django.utils.functional")
    if django is not None and isinstance(value, django.Promise):
        return str(value)
    return value


def _name_of(key: object) -> str:
    """Return the text that `json.dumps` gives a key, and the canonical text of those scalars that it refuses."""
    if isinstance(key, float):
        return float.__repr__(key) if isfinite(key) else _refuse_not_finite(key)
    if isinstance(key, Enum) and not isinstance(key, (str, int)):
        return _name_of(key.value)
    plain = _plain(key, 0, _STRICT_LEAVES)
    if isinstance(plain, str):
        return plain
    if plain is None or isinstance(plain, (int, Raw)) or isinstance(key, (bytes, bytearray)):
        return _encode(plain).decode()
    raise _Refusal(f"is a {type(key).__name__}, not a scalar")


def _written(path: list[object]) -> str:
    """Write a path as one would in Python, from the outside in: `order.lines[3].price`."""
    first, *rest = reversed(path)
    steps = [f".{step}" if isinstance(step, str) and step.isidentifier() else f"[{step!r:.40}]" for step in rest]
    text = f"{first!s:.80}{''.join(steps)}"
    return text if len(text) <= 120 else f"{text[:80]} ... {text[-30:]}"  # noqa: PLR2004 - what one reads at a glance


def _refuse_depth() -> NoReturn:
    raise _Refusal(f"is nested deeper than {MAX_DEPTH} levels, or contains itself")


def _refuse_digits() -> NoReturn:
    raise _Refusal(f"is a number of more than {MAX_DIGITS} digits")


def _refuse_not_finite(value: float | Decimal) -> NoReturn:
    spelled = str(value).lower()
    name = "NaN" if "nan" in spelled else "-Infinity" if "-" in spelled else "Infinity"
    raise _Refusal(f"is {name}, for which JSON has no word")


def _too_long(value: object, size: int) -> _Refusal:
    parts = fields_of(value) or {}
    largest = max(parts, key=lambda name: len(_encode_plain(parts[name])), default=None)
    reason = f"is too long: {size:,} bytes of canonical JSON with the rest, where {MAX_BYTES:,} are allowed"
    return _Refusal(reason) if largest is None else _Refusal(reason, largest)


#: How each type is made plain. Subclasses follow their nearest base.
_RULES: Final[dict[type, Callable[[Any, int, frozenset[type]], object]]] = {
    dict: _mapping,
    list: _list,
    tuple: lambda value, depth, leaves: _list(list(value), depth, leaves),
    set: _set,
    frozenset: _set,
    str: _str,
    int: _int,
    float: _float,
    Decimal: _decimal,
    datetime: _datetime,
    date: lambda value, *_: date.isoformat(value),
    time: lambda value, *_: time.isoformat(value),
    timedelta: _timedelta,
    UUID: lambda value, *_: str(value),
    Enum: lambda value, depth, leaves: _plain(value.value, depth, leaves),
    bytes: _bytes,
    bytearray: _bytes,
    memoryview: _bytes,
}

#: What JSON knows itself: a subclass is sent as its base, whatever it overrides, and before any `__json__` is asked.
_NATIVE: Final[dict[type | None, Callable[[Any], object]]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    dict: lambda value: dict(value.items()),
    list: list,
    tuple: list,
}
