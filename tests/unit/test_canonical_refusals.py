from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from decimal import Decimal

import pytest
from calls import Order
from pydantic import BaseModel, RootModel, SecretStr

from oncelery import canonical
from oncelery.canonical import MAX_DEPTH, MAX_DIGITS, canonical_json
from oncelery.errors import FingerprintError


def nested(levels: int, value: object = 1) -> object:
    for _ in range(levels):
        value = [value]
    return value


def mappings(levels: int, value: object = 1) -> object:
    for _ in range(levels):
        value = {"a": value}
    return value


def endless() -> list[object]:
    value: list[object] = []
    value += [{"again": value}, value]
    return value


class Endless:
    def __json__(self) -> object:
        return Endless()


REFUSED: dict[str, tuple[object, str, str]] = {
    "NaN": ({"order": {"lines": [1, 2, 3, {"price": math.nan}]}}, "order.lines[3].price", "is NaN"),
    "NaN among floats": ({"a": [1.0, math.nan, 2.0]}, "a[1]", "is NaN"),
    "Infinity": ({"a": math.inf}, "a", "is Infinity"),
    "-Infinity among floats": ({"a": [1.5, 2.5, 3.5, -math.inf]}, "a[3]", "is -Infinity"),
    "Decimal NaN": ({"a": (Decimal("sNaN"),)}, "a[0]", "is NaN"),
    "Decimal Infinity": ({"a": Decimal("-Infinity")}, "a", "is -Infinity"),
    "an unknown type": ({"a": [object()]}, "a[0]", "is a builtins.object"),
    "a function": ({"a": len}, "a", "is a builtins.builtin_function_or_method"),
    "a class": ({"a": BaseModel}, "a", "ModelMetaclass"),
    "a complex number": ({"a": 1j}, "a", "is a builtins.complex"),
    "a secret in a model": ({"a": RootModel[dict[str, SecretStr]]({"b": SecretStr("x")})}, "a.b", "SecretStr"),
    "a lone surrogate": ({"a": ["\ud800"]}, "a[0]", "lone surrogate"),
    "a lone surrogate in a set": ({"a": {"\ud800"}}, "a", "lone surrogate"),
    "a lone surrogate in a key": ({"a": {"\ud800": 1}}, "a", "has a key that is text with a lone surrogate"),
    "two keys of one text": ({"a": {1: "x", "1": "y"}}, "a['1']", "is there twice"),
    "a key that is NaN": ({"a": {math.nan: 1}}, "a", "has a key that is NaN"),
    "a key that is no scalar": ({"a": {(1, 2): 1}}, "a", "has a key that is a tuple"),
    "too deep": ({"a": nested(MAX_DEPTH)}, "a[0][0]", f"deeper than {MAX_DEPTH} levels"),
    "a cycle": ({"a": endless()}, "a[0].again[0].again", "contains itself"),
    "an endless __json__": ({"a": Endless()}, "a", "contains itself"),
    "too many digits": ({"a": 10**MAX_DIGITS}, "a", f"more than {MAX_DIGITS} digits"),
    "a decimal of too many digits": ({"a": Decimal("1e1000000")}, "a", f"more than {MAX_DIGITS} digits"),
    "a decimal of too many decimals": ({"a": Decimal("1e-1000000")}, "a", f"more than {MAX_DIGITS} digits"),
    "a datetime out of range": (
        {"a": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1)))},
        "a",
        "is a datetime that is out of range in UTC",
    ),
    "a field of a dataclass": ({"a": Order(1, lines=[math.nan])}, "a.lines[0]", "is NaN"),
    "a key that is no name": ({"a": {"b c": {3: math.nan}}}, "a['b c'][3]", "is NaN"),
}


@pytest.mark.parametrize(("value", "path", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_a_refusal_names_the_argument_and_the_remedy(value: object, path: str, reason: str) -> None:
    with pytest.raises(FingerprintError) as refusal:
        canonical_json(value)

    text = str(refusal.value)
    assert text.startswith((f"argument '{path}", f'argument "{path}'))
    assert reason in text
    assert "`ignore=`" in text
    assert "`key=`" in text
    assert len(text) < 500


def test_a_value_that_is_no_argument_is_refused_too() -> None:
    with pytest.raises(FingerprintError, match="the value is NaN"):
        canonical_json(math.nan)


def test_values_may_be_nested_as_deep_as_allowed() -> None:
    assert canonical_json(nested(MAX_DEPTH)) == b"[" * MAX_DEPTH + b"1" + b"]" * MAX_DEPTH
    assert canonical_json(mappings(MAX_DEPTH)) == b'{"a":' * MAX_DEPTH + b"1" + b"}" * MAX_DEPTH
    assert canonical_json(nested(MAX_DEPTH, [])) == b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1)
    assert canonical_json(mappings(MAX_DEPTH, {})) == b'{"a":' * MAX_DEPTH + b"{}" + b"}" * MAX_DEPTH
    for value in (nested(MAX_DEPTH + 1), {"a": nested(MAX_DEPTH)}, {1: nested(MAX_DEPTH)}, mappings(MAX_DEPTH + 1)):
        with pytest.raises(FingerprintError, match="nested deeper"):
            canonical_json(value)


def test_numbers_may_have_as_many_digits_as_allowed() -> None:
    largest = 10**MAX_DIGITS - 1

    assert canonical_json(largest) == canonical_json(Decimal(largest)) == b"9" * MAX_DIGITS
    assert canonical_json(Decimal(f"1e{MAX_DIGITS - 1}")) == canonical_json(10 ** (MAX_DIGITS - 1))
    for value in (largest + 1, Decimal(f"1e{MAX_DIGITS}")):
        with pytest.raises(FingerprintError, match="digits"):
            canonical_json(value)


def test_a_text_that_is_too_long_is_refused_by_the_name_of_its_largest_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canonical, "MAX_BYTES", 100)

    assert len(canonical_json({"a": "x" * 92})) == 100
    with pytest.raises(FingerprintError, match=r"argument 'b' is too long: 101 bytes .* 100 are allowed"):
        canonical_json({"a": 1, "b": "x" * 87})
    with pytest.raises(FingerprintError, match="the value is too long"):
        canonical_json("x" * 99)


def test_an_error_of_the_users_own_code_is_not_swallowed() -> None:
    class Broken:
        def __json__(self) -> object:
            raise KeyError("their own")

    with pytest.raises(KeyError, match="their own"):
        canonical_json({"a": Broken()})
