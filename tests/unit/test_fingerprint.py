from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from hashlib import sha256
from typing import Any
from uuid import UUID

import pytest
from calls import charge, relay, sent
from hypothesis import assume, example, given
from hypothesis import strategies as st

from oncelery.fingerprint import TASK_ID, Fingerprint, Identity, fingerprint

HEX = set("0123456789abcdef")

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
).filter(lambda value: "Infinity" not in json.dumps(value))


def key_of(call: Callable[..., object], *args: object, **kwargs: object) -> str:
    return Identity("shop.task", call).of(args, kwargs).key


# One call, one key


def test_a_key_is_64_hex_digits() -> None:
    found = Identity("shop.charge", charge).of(("o-1",))

    for text in (found.key, found.digest, fingerprint("shop.charge", {})):
        assert len(text) == 64
        assert set(text) <= HEX


def test_a_call_is_the_same_however_its_arguments_are_given() -> None:
    keys = {
        key_of(charge, "o-1"),
        key_of(charge, "o-1", 500),
        key_of(charge, order_id="o-1"),
        key_of(charge, "o-1", currency="EUR"),
        key_of(charge, currency="EUR", amount=500, order_id="o-1"),
    }

    assert len(keys) == 1


@given(json_values, json_values)
def test_by_position_or_by_name_is_one_call(first: object, second: object) -> None:
    def task(a: object, b: object) -> None: ...

    assert key_of(task, first, second) == key_of(task, first, b=second) == key_of(task, b=second, a=first)


@given(json_values, json_values)
@example({"a": 1}, {"a": 1.0})
def test_two_calls_have_one_key_exactly_when_their_arguments_have_one_text(one: object, other: object) -> None:
    def task(a: object) -> None: ...

    assert (key_of(task, one) == key_of(task, other)) == (fingerprint("x", one) == fingerprint("x", other))


def test_calls_that_differ_in_any_argument_have_different_keys() -> None:
    keys = {
        key_of(charge, "o-1"),
        key_of(charge, "o-2"),
        key_of(charge, "o-1", 501),
        key_of(charge, "o-1", "500"),
        key_of(charge, "o-1", currency="USD"),
        key_of(charge, "EUR", currency="o-1"),
    }

    assert len(keys) == 6


@pytest.mark.parametrize("serializer", ["json", "msgpack"])
@given(args=st.tuples(json_values), kwargs=st.fixed_dictionaries({}, optional={"amount": json_values}))
def test_a_call_has_the_same_key_after_a_trip_through_the_broker(
    serializer: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    identity = Identity("shop.charge", charge)

    assert identity.of(*sent(args, kwargs, serializer)) == identity.of(args, kwargs)


def test_typed_arguments_have_the_same_key_after_a_trip_through_the_broker() -> None:
    args = (UUID(int=1), {"at": datetime(2026, 1, 31, tzinfo=UTC), 1: (Decimal("1.50"), b"\xff")})

    assert Identity("t", charge).of(*sent(args, {}, "json")) == Identity("t", charge).of(args)


def test_positional_only_and_variable_arguments_are_told_apart() -> None:
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((1,), {}),
        ((1, 2), {}),
        ((1, 2, 3), {}),
        ((1, [2, 3]), {}),
        ((1,), {"flag": True}),
        ((1,), {"more": 2}),
        ((1,), {"rest": [2, 3]}),
        ((1,), {"first": 2}),
        ((2,), {"first": 1}),
        ((1,), {"*rest": [2, 3]}),
        ((1, 2, 3), {"*rest": [2, 3]}),
        ((1,), {"**more": {"first": 2}}),
    ]

    assert len({key_of(relay, *args, **kwargs) for args, kwargs in calls}) == len(calls)


def test_an_argument_of_kwargs_is_one_with_a_named_one() -> None:
    def open_ended(order_id: str, **more: object) -> None: ...
    def spelled_out(order_id: str, amount: int) -> None: ...

    assert key_of(open_ended, "o-1", amount=500) == key_of(spelled_out, "o-1", 500)


def test_variable_arguments_that_are_not_given_do_not_count() -> None:
    def before(a: int) -> None: ...
    def after(a: int, *rest: int, **more: int) -> None: ...

    assert key_of(before, 1) == key_of(after, 1)


def test_the_task_itself_is_no_argument_of_a_bound_task() -> None:
    class Task:
        def run(self, order_id: str) -> None: ...

    assert Identity("t", Task().run).of(("o-1",)).key == fingerprint("t", {"order_id": "o-1"})


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, r"shop\.charge\(\): missing a required argument: 'order_id'"),
        (("o-1", 1, "EUR"), {}, r"shop\.charge\(\): too many positional arguments"),
        (("o-1",), {"order_id": "o-2"}, r"shop\.charge\(\): multiple values for argument 'order_id'"),
        (("o-1",), {"colour": 1}, r"shop\.charge\(\): got an unexpected keyword argument 'colour'"),
        ((), {"colour": 1, "amount": 1, "currency": ""}, r"shop\.charge\(\): missing a required argument: 'order_id'"),
    ],
)
def test_a_call_that_python_would_refuse_is_a_type_error_that_names_the_task(
    args: tuple[Any, ...], kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        Identity("shop.charge", charge).of(args, kwargs)


def test_celery_may_leave_out_arguments_altogether() -> None:
    def nothing() -> None: ...

    assert Identity("t", nothing).of(None, None) == Identity("t", nothing).of((), {}) == Identity("t", nothing).of()


# What is part of the key


def test_namespace_task_scope_and_arguments_cannot_be_taken_for_one_another() -> None:
    def task(a: str, tenant: str = "-") -> None: ...

    keys = {
        Identity(name, task, key="a", scope=scope).of((a, tenant), namespace=namespace).key
        for name in ("n", "n:x", "3:x,")
        for scope in ((), "tenant")
        for a in ("y", "x:y", "1:y,")
        for tenant in ("y", "x:y", "1:y,")
        for namespace in ("", "x", "n", "1:n,")
    }

    # Without a scope the tenant does not count.
    assert len(keys) == 3 * 3 * 4 * (1 + 3)


@given(st.text(), st.text(), st.text(), st.text())
@example("a:b", "c", "a", "b:c")
def test_namespace_and_task_stand_behind_their_lengths(space: str, name: str, other_space: str, other: str) -> None:
    assume((space, name) != (other_space, other))

    one = Identity(name, charge).of(("o-1",), namespace=space)

    assert one.key != Identity(other, charge).of(("o-1",), namespace=other_space).key


def test_the_public_function_gives_the_key_of_a_task_without_options() -> None:
    payload = {"order_id": "o-1", "amount": 500, "currency": "EUR"}

    assert fingerprint("shop.charge", payload) == Identity("shop.charge", charge).of(("o-1",)).key


def test_a_fingerprint_cannot_be_changed() -> None:
    found = Identity("t", charge).of(("o-1",))

    assert found == Fingerprint(key=found.key, digest=found.digest, scope="")
    with pytest.raises(AttributeError, match="immutable"):
        found.key = "other"  # type: ignore[misc]


# The same everywhere and for ever


PAYLOAD = {
    "order_id": UUID(int=2**100),
    "amount": Decimal("19.90"),
    "at": datetime(2026, 1, 31, 12, tzinfo=UTC),
    "every": timedelta(minutes=1.5),
    "tags": {"a", "b", "c", "ä", ("x", 1)},
    "lines": [{"sku": "a", "price": 0.1 + 0.2, "left": 3.0}, None, True, -0.0, 10**30, b"\x00\xff", 1e-7, 1e22],
    7: {"Straße": "\u2028 \U0001f600"},
}


@pytest.mark.parametrize("seed", ["0", "1", "4711"])
def test_another_process_with_another_hash_seed_makes_the_same_key(seed: str) -> None:
    program = (
        "import pickle, sys; from oncelery.fingerprint import fingerprint;"
        "print(fingerprint('shop.charge', pickle.load(sys.stdin.buffer)))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": seed}

    done = subprocess.run(
        [sys.executable, "-c", program], input=pickle.dumps(PAYLOAD), env=environment, capture_output=True, check=True
    )

    assert done.stdout.decode().strip() == fingerprint("shop.charge", PAYLOAD)


def test_keys_are_what_they_were_in_the_first_release() -> None:
    """If this fails, VERSION must change: jobs accepted under the old keys would not be found again."""
    task = Identity("shop.charge", charge, scope="currency")
    by_id = Identity("shop.charge", charge, key=TASK_ID)
    derived = task.of(("o-1",), namespace="live")
    given_key = task.of(("o-1",), namespace="live", idempotency_key="evt_123")

    assert [
        fingerprint("shop.charge", {}),
        fingerprint("shop.charge", {"order_id": "o-1", "amount": 500}),
        fingerprint("shop.charge", PAYLOAD),
        derived.key,
        derived.digest,
        given_key.key,
        by_id.of(("o-1",), task_id="11111111-2222-3333-4444-555555555555").key,
    ] == [
        "155c28f6d184c833a792b62bdd860ee66fae751b896bd902b97d612f589fb88e",
        "c2d604452f2f123f0c031a5462fabd5899de1bfa19ade0ba455e279ab7563475",
        "8e0cf790ec6dbc7a42d79d0103338e9ea957bddb00928ddc8abe384f15ab5ba1",
        "294774172d4b04dca77cf66c0cee97e1bb78586f9b7ba0c0eed648f3b33b0ea9",
        "9c41218f136fde05dbefd51b7a558f9f40d13660f9340987a343fd707967b234",
        "05440ad73c8849ad425bfbb88a748bc95ba2f9ef2b92fe980149b287ba9a7b9d",
        "c37e2b419aa23233644a8593584437280338afe6ca5ef57e2da691f480a6e93a",
    ]


def test_a_key_can_be_made_by_hand() -> None:
    def hashed(text: str) -> str:
        return sha256(text.encode()).hexdigest()

    digest = hashed('{"amount":500,"order_id":"o-1"}')

    assert fingerprint("shop.charge", {"order_id": "o-1", "amount": 500.0}) == hashed(
        f"1:1,0:,11:shop.charge,0:,9:arguments,64:{digest},"
    )


def test_making_keys_loads_neither_celery_nor_pydantic() -> None:
    program = "import oncelery.fingerprint, sys; print(*sys.modules)"

    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()

    assert not {"celery", "kombu", "pydantic", "django"} & set(loaded)
