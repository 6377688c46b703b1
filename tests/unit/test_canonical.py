from __future__ import annotations

import json
import math
import sys
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from kombu.serialization import dumps, loads
from pydantic import BaseModel, RootModel, SecretStr

from oncelery import canonical
from oncelery.canonical import MAX_DEPTH, MAX_DIGITS, canonical_json, fields_of, key_text
from oncelery.errors import FingerprintError


class Colour(Enum):
    RED = "red"
    PAIR = (1, 2.0)


class Size(IntEnum):
    SMALL = 1


class Unit(StrEnum):
    METRE = "m"


class Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "something else"


class Ratio(float):
    __slots__ = ()


class Point(NamedTuple):
    x: int
    y: int


@dataclass(frozen=True)
class Line:
    sku: str
    price: object
    note: str | None = None


class Order(BaseModel):
    id: int
    lines: list[dict[str, Decimal]]


class Tagged:
    """An object that tells kombu how it is sent."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __json__(self) -> object:
        return self.value


# Strategies

scalars = st.none() | st.booleans() | st.integers() | st.text()
finite = st.floats(allow_nan=False, allow_infinity=False)
whole_json = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12)
any_json = st.recursive(
    scalars | finite, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12
)
#: Few values, so that two draws are often equal, or nearly so.
similar_json = st.recursive(
    st.sampled_from([None, True, False, 0, 1, 0.0, -0.0, 1.0, "", "0", "1", "a", 0.3, 0.1 + 0.2, 2**53, 2.0**53]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "1"]), inner),
    max_leaves=4,
)
offsets: st.SearchStrategy[tzinfo] = st.integers(-24 * 60 + 1, 24 * 60 - 1).map(
    lambda minutes: timezone(timedelta(minutes=minutes))
)
#: Not the first and last days: those have no instant in UTC for every offset.
first, last = datetime(2, 1, 1), datetime(9998, 1, 1)  # noqa: DTZ001
moments = st.datetimes(first, last) | st.datetimes(first, last, timezones=offsets)
decimals = st.decimals(allow_nan=False, allow_infinity=False)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(), inner)
        | st.dictionaries(st.integers(), inner)
        | st.dictionaries(st.none() | st.booleans(), inner)
        | st.dictionaries(finite, inner)
    )


through_json = st.recursive(
    scalars
    | finite
    | moments
    | st.dates()
    | st.times()
    | decimals
    | st.uuids()
    | st.binary()
    | st.sampled_from([Size.SMALL, Unit.METRE, Text("text"), Point(1, 2), OrderedDict(b=1, a=2)])
    | st.builds(Tagged, st.text() | finite),
    containers,
    max_leaves=12,
)
through_msgpack = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text()
    | finite
    | st.binary()
    | st.binary().map(bytearray)
    | st.sampled_from([Size.SMALL, Unit.METRE, Text("text"), Point(1, 2), OrderedDict(b=1, a=2)]),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(), inner)
        | st.dictionaries(st.binary(), inner)
    ),
    max_leaves=12,
)


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


# Times


@given(moments, offsets)
def test_an_aware_datetime_is_its_instant(moment: datetime, offset: tzinfo) -> None:
    moment = moment.replace(tzinfo=moment.tzinfo or UTC)

    assert canonical_json(moment.astimezone(offset)) == canonical_json(moment)


def test_an_aware_datetime_is_written_in_utc() -> None:
    noon = datetime(2026, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))

    assert canonical_json(noon) == b'"2026-07-01T10:00:00Z"'
    assert canonical_json(noon) == canonical_json("2026-07-01T10:00:00Z")


@given(st.datetimes())
def test_a_naive_datetime_is_never_an_aware_one(moment: datetime) -> None:
    assert canonical_json(moment) != canonical_json(moment.replace(tzinfo=UTC))


def test_a_datetime_of_a_zone_without_offset_is_naive() -> None:
    class Nowhere(tzinfo):
        def utcoffset(self, _: datetime | None) -> None:
            return None

        tzname = dst = utcoffset

    moment = datetime(2026, 1, 31, 12, tzinfo=Nowhere())

    assert canonical_json(moment) == canonical_json(moment.replace(tzinfo=None)) == b'"2026-01-31T12:00:00"'


def test_times_and_ids_are_one_with_their_usual_text() -> None:
    assert canonical_json(date(2026, 1, 31)) == b'"2026-01-31"'
    assert canonical_json(time(12, 30)) == b'"12:30:00"'
    assert canonical_json(time(12, 30, tzinfo=UTC)) == b'"12:30:00+00:00"'
    assert canonical_json(UUID(int=10)) == b'"00000000-0000-0000-0000-00000000000a"'


def test_text_is_never_interpreted() -> None:
    assert canonical_json("0000000A") != canonical_json("0000000a")
    assert canonical_json("1") != canonical_json(1)
    assert canonical_json("é") != canonical_json("e\u0301")


@given(st.timedeltas())
def test_a_timedelta_is_its_seconds(span: timedelta) -> None:
    text = json.loads(canonical_json(span))

    sign, seconds = text.removesuffix("S").split("PT")
    assert Fraction(sign + seconds) == Fraction(span // timedelta(microseconds=1), 10**6)


# Types that JSON does not know


def test_an_enum_is_its_value() -> None:
    assert canonical_json([Colour.RED, Colour.PAIR, Size.SMALL, Unit.METRE]) == b'["red",[1,2],1,"m"]'


def test_a_subclass_is_its_base_whatever_it_overrides() -> None:
    named = namedtuple("named", "x y")  # noqa: PYI024 - the untyped kind

    assert canonical_json(Text("text")) == b'"text"'
    assert canonical_json([Ratio(2.5), Ratio(2)]) == b"[2.5,2]"
    assert canonical_json([named(1, 2), Point(1, 2)]) == b"[[1,2],[1,2]]"
    assert canonical_json(OrderedDict(b=1, a=2)) == b'{"a":2,"b":1}'


def test_bytes_are_never_text() -> None:
    assert canonical_json(b"abc") == canonical_json(bytearray(b"abc")) == canonical_json(memoryview(b"abc"))
    assert canonical_json(b"abc") not in (canonical_json("abc"), canonical_json("YWJj"))
    assert canonical_json(b"\xff") != canonical_json(b"\xfe")


@given(st.frozensets(st.integers() | st.text() | st.tuples(st.integers(), st.text())))
def test_a_set_is_the_sorted_list_of_its_items(items: frozenset[object]) -> None:
    assert canonical_json(items) == canonical_json(set(items))
    assert sorted(map(canonical_json, json.loads(canonical_json(items)))) == sorted(map(canonical_json, items))


def test_items_of_a_set_that_are_one_count_once() -> None:
    assert canonical_json({0.3, 0.1 + 0.2}) == canonical_json({0.3})


def test_dataclasses_and_models_are_mappings_of_their_fields() -> None:
    line = Line("a", Decimal("1.50"))
    order = Order(id=1, lines=[{"price": Decimal("1.50")}])

    assert canonical_json(line) == canonical_json({"sku": "a", "price": 1.5, "note": None})
    assert canonical_json(order) == canonical_json(order.model_dump()) == b'{"id":1,"lines":[{"price":1.5}]}'
    assert canonical_json(RootModel[list[int]]([1, 2])) == b"[1,2]"


def test_lazy_text_of_django_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    class Promise:
        def __str__(self) -> str:
            return "Grüße"

    monkeypatch.setitem(sys.modules, "django.utils.functional", SimpleNamespace(Promise=Promise))

    assert canonical_json(Promise()) == canonical_json("Grüße")


def test_keys_become_text_as_in_json() -> None:
    value = {1: "a", None: "b", 1.5: "c", Colour.RED: "d", Unit.METRE: "e"}

    assert canonical_json(value) == canonical_json({"1": "a", "null": "b", "1.5": "c", "red": "d", "m": "e"})
    assert canonical_json({True: 1}) == canonical_json({"true": 1})
    assert canonical_json({1.0: 1}) == canonical_json({"1.0": 1})
    assert canonical_json({UUID(int=1): 1, date(2026, 1, 1): 2}) == canonical_json(
        {str(UUID(int=1)): 1, "2026-01-01": 2}
    )


def test_the_value_itself_is_left_as_it_was() -> None:
    value = {"a": [1.0, {"b": 2.0, 3: (4.0,)}], "c": {5.0}}

    canonical_json(value)

    assert repr(value) == "{'a': [1.0, {'b': 2.0, 3: (4.0,)}], 'c': {5.0}}"


def test_parts_are_those_of_mappings_dataclasses_and_models() -> None:
    assert fields_of({"a": 1}) == {"a": 1}
    assert fields_of(Line("a", 1)) == {"sku": "a", "price": 1, "note": None}
    assert fields_of(Order(id=1, lines=[])) == {"id": 1, "lines": []}
    assert fields_of(Tagged({"a": 1})) == {"a": 1}
    assert fields_of([1]) is None
    assert fields_of(Tagged(1)) is None


# What is refused


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
    "a class": ({"a": Order}, "a", "ModelMetaclass"),
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
    "a field of a dataclass": ({"a": Line("x", [math.nan])}, "a.price[0]", "is NaN"),
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


# Names


def test_a_scalar_has_a_text_as_a_name() -> None:
    assert [key_text(each) for each in ("a", 1, 1.5, Decimal("1.50"), True, Unit.METRE, Colour.RED, UUID(int=1))] == [
        "a",
        "1",
        "1.5",
        "1.5",
        "true",
        "m",
        "red",
        "00000000-0000-0000-0000-000000000001",
    ]


@pytest.mark.parametrize("value", [[1], {"a": 1}, Colour.PAIR, math.nan, object(), {1}])
def test_what_is_no_scalar_has_no_text_as_a_name(value: object) -> None:
    with pytest.raises(FingerprintError):
        key_text(value)
