from __future__ import annotations

import json
import math
import sys
from collections import OrderedDict, namedtuple
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import RootModel
from values import Colour, Line, Order, Point, Ratio, Size, Tagged, Text, Unit, moments, offsets

from oncelery.canonical import canonical_json, fields_of, key_text
from oncelery.errors import FingerprintError

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
