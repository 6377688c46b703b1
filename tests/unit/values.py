"""Values of every kind that a task may be called with, and how to draw them."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any, NamedTuple

from hypothesis import strategies as st
from pydantic import BaseModel


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
