from __future__ import annotations

import json
import sys
from decimal import Decimal
from fractions import Fraction
from typing import Any

from hypothesis import assume, example, given
from hypothesis import strategies as st
from kombu.serialization import dumps, loads
from values import any_json, decimals, finite, similar_json, through_json, through_msgpack, whole_json

from oncelery.canonical import MAX_DIGITS, canonical_json


def sent(value: object, serializer: str) -> object:
    content_type, encoding, body = dumps(value, serializer)
    return loads(body, content_type, encoding, accept={content_type})


def meaning(value: Any) -> object:  # noqa: ANN401 - truly any
    """Say what a JSON value means, by another way than the code under test."""
    match value:
        case bool() | None | str():
            return (type(value), value)
        case float() if not (value.is_integer() and abs(value) <= 2**53):
            return (Fraction, Fraction(Decimal(f"{value:.15g}")))
        case int() | float() | Decimal():
            return (Fraction, Fraction(value))
        case list():
            return [meaning(item) for item in value]
    return {key: meaning(item) for key, item in value.items()}


def reordered(value: object) -> object:
    """Give the same value with the keys of all its mappings in another order."""
    if isinstance(value, dict):
        return {key: reordered(item) for key, item in reversed(value.items())}
    return [reordered(item) for item in value] if isinstance(value, list) else value


# What is one


@given(through_json)
@example({1: "a"})
@example({1.0: [1e22, 1e-7, -0.0]})
@example([0.1, 0.2, -0.0, 1e16])
def test_a_value_has_the_same_text_after_a_trip_through_json(value: object) -> None:
    assert canonical_json(sent(value, "json")) == canonical_json(value)


@given(through_msgpack)
def test_a_value_has_the_same_text_after_a_trip_through_msgpack(value: object) -> None:
    assert canonical_json(sent(value, "msgpack")) == canonical_json(value)


@given(any_json)
def test_the_order_of_keys_does_not_matter(value: object) -> None:
    assert canonical_json(reordered(value)) == canonical_json(value)


@given(similar_json, similar_json)
@example([0.3], [0.1 + 0.2])
@example([True], [1])
@example({"a": None}, {})
def test_two_values_have_one_text_exactly_when_they_mean_the_same(one: object, other: object) -> None:
    assert (canonical_json(one) == canonical_json(other)) == (meaning(one) == meaning(other))


@given(any_json)
def test_the_text_means_what_the_value_means(value: object) -> None:
    assert meaning(json.loads(canonical_json(value), parse_float=Decimal)) == meaning(value)


@given(any_json)
def test_the_text_of_the_text_is_the_text(value: object) -> None:
    text = canonical_json(value)

    assert canonical_json(json.loads(text)) == text


@given(whole_json)
def test_without_floats_the_text_is_that_of_json_with_sorted_keys_and_no_spaces(value: object) -> None:
    expected = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))

    assert canonical_json(value) == expected.encode()


# Numbers


@given(finite)
@example(0.1 + 0.2)
@example(999999999999999.9)
@example(123456789.1234567)
@example(0.00001)
@example(-0.5)
def test_a_float_counts_to_15_significant_digits(value: float) -> None:
    assume(abs(value) < 1e308 and (not value.is_integer() or abs(value) > 2**53))

    assert canonical_json(value) == canonical_json(float(f"{value:.15g}"))
    assert Fraction(Decimal(canonical_json(value).decode())) == Fraction(Decimal(f"{value:.15g}"))


@given(finite)
@example(19.99)
@example(0.000012)
@example(-19.99)
@example(-0.0)
@example(1e9 + 0.5)
@example(12345678.12345679)
@example(2.0**53 + 2)
@example(1e15)
def test_a_float_has_the_same_text_wherever_it_stands(value: float) -> None:
    text = canonical_json(value)

    assert canonical_json({"x": value}) == b'{"x":%b}' % text
    assert canonical_json([value]) == b"[%b]" % text
    assert canonical_json(["x", value]) == b'["x",%b]' % text
    assert canonical_json([value, value, value, value]) == b"[%b,%b,%b,%b]" % (text, text, text, text)
    assert canonical_json([value, 0.25, 0.5, 0.75]) == b"[%b,0.25,0.5,0.75]" % text
    assert canonical_json({1: value}) == b'{"1":%b}' % text


@given(st.integers(-(2**53), 2**53))
def test_a_whole_float_is_its_integer(value: int) -> None:
    assert canonical_json(float(value)) == canonical_json(value) == canonical_json(Decimal(value))


@given(st.integers())
@example(10**4299)
def test_an_integer_is_exact_however_large(value: int) -> None:
    assert canonical_json(value) == str(value).encode()


@given(decimals, st.integers(0, 5))
def test_a_decimal_is_its_value_whatever_zeros_it_ends_on(value: Decimal, zeros: int) -> None:
    assume(abs(value.adjusted()) < MAX_DIGITS - 10)
    sign, digits, exponent = value.as_tuple()

    same = Decimal((sign, digits + (0,) * zeros, int(exponent) - zeros))

    assert Fraction(canonical_json(value).decode()) == Fraction(value)
    assert canonical_json(same) == canonical_json(value)


@given(finite)
def test_a_decimal_and_a_float_of_the_same_15_digits_are_one(value: float) -> None:
    assume(value == 0 or sys.float_info.min < abs(value) < 1e308)

    assert canonical_json(Decimal(f"{value:.15g}")) == canonical_json(float(f"{value:.15g}"))


def test_a_decimal_of_more_digits_than_a_float_has_is_not_rounded() -> None:
    assert canonical_json(Decimal("0.10000000000000001")) != canonical_json(Decimal("0.1"))


def test_truth_is_no_number() -> None:
    assert canonical_json([True, 1, 0, False, 1.0]) == b"[true,1,0,false,1]"
