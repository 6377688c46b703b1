from __future__ import annotations

import inspect
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from hashlib import sha256
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from kombu.serialization import dumps, loads
from pydantic import BaseModel

from oncelery.errors import ConfigurationError, FingerprintError, ScopeError
from oncelery.fingerprint import TASK_ID, Fingerprint, Identity, fingerprint

HEX = set("0123456789abcdef")

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
).filter(lambda value: "Infinity" not in json.dumps(value))


def charge(order_id: str, amount: int = 500, *, currency: str = "EUR") -> None: ...


def relay(first: object, /, *rest: object, flag: bool = False, **more: object) -> None: ...


def place(order: object, request_id: str = "") -> None: ...


@dataclass
class Order:
    id: int
    customer: object = None
    lines: list[object] = field(default_factory=list)


class OrderModel(BaseModel):
    id: int
    lines: list[dict[str, Any]] = []


def key_of(call: Callable[..., object], *args: object, **kwargs: object) -> str:
    return Identity("shop.task", call).of(args, kwargs).key


def sent(args: tuple[Any, ...], kwargs: dict[str, Any], serializer: str) -> tuple[Any, Any]:
    content_type, encoding, body = dumps((args, kwargs, {}), serializer)
    args, kwargs, _ = loads(body, content_type, encoding, accept={content_type})
    return args, kwargs


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

    keys = {
        Identity("t", Task().run).of(("o-1",)).key,
        Identity("t", Task.run, bound=True).of((), {"order_id": "o-1"}).key,
        Identity("t", inspect.signature(Task.run), bound=True).of(("o-1",)).key,
    }

    assert keys == {fingerprint("t", {"order_id": "o-1"})}


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


# What counts


def test_only_the_chosen_argument_counts() -> None:
    identity = Identity("t", charge, key="order_id")

    assert identity.of(("o-1", 1)) == identity.of(("o-1", 2))
    assert identity.of(("o-1",)) != identity.of(("o-2",))


@pytest.mark.parametrize(
    "order",
    [
        {"id": 7, "lines": [{"sku": "a"}]},
        Order(7, lines=[{"sku": "a"}]),
        OrderModel(id=7, lines=[{"sku": "a"}]),
        SimpleNamespace(id=7, lines=({"sku": "a"},)),
    ],
    ids=["mapping", "dataclass", "model", "object"],
)
def test_a_path_leads_into_mappings_lists_and_objects_alike(order: object) -> None:
    identity = Identity("t", place, key=("order.id", "order.lines.0.sku"))

    assert identity.of((order, "r-1")).key == fingerprint("t", {"order.id": 7, "order.lines.0.sku": "a"})


def test_a_path_finds_a_key_that_becomes_text_on_its_way() -> None:
    identity = Identity("t", place, key="order.1")
    args = ({1: "a", None: "b"},)

    assert identity.of(args) == identity.of(*sent(args, {}, "json"))


def test_one_name_and_a_list_of_one_are_the_same_choice() -> None:
    assert Identity("t", charge, key="amount").of(("o-1",)) == Identity("t", charge, key=["amount"]).of(("o-1",))


def test_a_callable_is_called_like_the_task_with_defaults_filled_in() -> None:
    seen: list[object] = []

    def choose(*args: object, **kwargs: object) -> object:
        seen.append((args, kwargs))
        return {"what": {1, 2}}

    Identity("t", charge, key=choose).of((), {"order_id": "o-1"})
    Identity("t", relay, key=choose).of((1, 2), {"x": 3})

    assert seen == [(("o-1", 500), {"currency": "EUR"}), ((1, 2), {"flag": False, "x": 3})]


def test_what_a_callable_returns_is_the_key() -> None:
    by_prefix = Identity("t", charge, key=lambda order_id, *_, **__: order_id[:3])

    assert by_prefix.of(("o-1-a",)) == by_prefix.of(("o-1-b",))
    assert by_prefix.of(("o-1",)) != by_prefix.of(("o-2",))


def test_an_argument_that_does_not_count_may_be_anything() -> None:
    for identity in (Identity("t", place, key="request_id"), Identity("t", place, ignore="order")):
        assert identity.of((object(), "r-1")).key == fingerprint("t", {"request_id": "r-1"})

    with pytest.raises(FingerprintError, match=r"task 't': argument 'order' is a builtins\.object"):
        Identity("t", place).of((object(), "r-1"))


def test_a_variable_argument_can_be_chosen() -> None:
    assert Identity("t", relay, key="rest.0").of((1, 2, 3)) == Identity("t", relay, key="rest.0").of((9, 2, 9))
    assert Identity("t", relay, key="tenant").of((1,), {"tenant": 2}).key == fingerprint("t", {"tenant": 2})


# By the id of the task


def test_by_task_id_only_redeliveries_of_one_message_are_the_same_work() -> None:
    identity = Identity("t", charge, key=TASK_ID)

    assert identity.of(("o-1",), task_id="id-1") == identity.of(("o-1",), task_id="id-1")
    assert identity.of(("o-1",), task_id="id-1").key != identity.of(("o-1",), task_id="id-2").key


def test_by_task_id_a_retry_with_other_arguments_is_the_same_work() -> None:
    identity = Identity("t", place, key=TASK_ID)

    assert identity.of((object(),), task_id="id-1") == identity.of((1,), task_id="id-1")


def test_a_task_id_is_no_idempotency_key() -> None:
    by_id = Identity("t", charge, key=TASK_ID)

    assert by_id.of(("o-1",), task_id="x").key != by_id.of(("o-1",), idempotency_key="x").key


def test_a_task_id_counts_only_when_asked_for() -> None:
    assert Identity("t", charge).of(("o-1",), task_id="id-1") == Identity("t", charge).of(("o-1",), task_id="id-2")


# The caller's own key


def test_the_callers_key_comes_before_the_arguments() -> None:
    identity = Identity("t", charge)

    one, other = (identity.of((order,), idempotency_key="evt-1") for order in ("o-1", "o-2"))

    assert one.key == other.key
    assert one.key != identity.of(("o-1",), idempotency_key="evt-2").key


@pytest.mark.parametrize("key", [None, TASK_ID])
def test_the_same_callers_key_with_other_arguments_shows_in_the_digest(key: Any) -> None:  # noqa: ANN401
    identity = Identity("t", charge, key=key, ignore="currency")

    def digest(*args: object, **kwargs: object) -> str:
        return identity.of(args, kwargs, idempotency_key="evt-1").digest

    assert digest("o-1") == digest("o-1", 500, currency="USD")
    assert digest("o-1") != digest("o-2")


def test_a_callers_key_is_never_a_derived_one() -> None:
    identity = Identity("t", charge)
    derived = identity.of(("o-1",))

    assert identity.of(("o-1",), idempotency_key=derived.digest).key != derived.key
    assert identity.of(("o-1",), idempotency_key=derived.digest).digest == derived.digest


def test_a_callers_key_makes_up_for_an_empty_choice() -> None:
    identity = Identity("t", charge, key="order_id")

    assert identity.of(("",), idempotency_key="evt-1").key == identity.of(("o-1",), idempotency_key="evt-1").key


# What does not count


def test_ignored_arguments_do_not_count() -> None:
    identity = Identity("t", place, ignore=["request_id"])

    assert identity.of((1, "r-1")) == identity.of((1, "r-2")) != identity.of((2, "r-1"))
    assert identity.of((1,)).key == fingerprint("t", {"order": 1})


@pytest.mark.parametrize("make", [dict, Order, OrderModel])
def test_a_part_of_an_argument_can_be_ignored(make: Callable[..., object]) -> None:
    identity = Identity("t", place, ignore=("order.lines.seen_at", "request_id"))
    order = make(id=7, lines=[{"sku": "a", "seen_at": 1}, {"sku": "b", "seen_at": 2}, {"sku": "c"}])
    later = make(id=7, lines=[{"sku": "a", "seen_at": 3}, {"sku": "b"}, {"sku": "c", "seen_at": 4}])
    other = make(id=7, lines=[{"sku": "a"}, {"sku": "b"}, {"sku": "d"}])

    assert identity.of((order, "r-1")) == identity.of((later, "r-2"))
    assert identity.of((order,)) != identity.of((other,))


def test_a_part_to_ignore_need_not_be_there() -> None:
    identity = Identity("t", place, ignore="order.seen.at")
    orders: list[object] = [5, {"seen": 1}, {}, [{"seen": {}}], {(1, 2): 3}]

    for order in orders[:-1]:
        assert identity.of((order,)).key == fingerprint("t", {"order": order, "request_id": ""})
    with pytest.raises(FingerprintError, match="argument 'order' has a key that is a tuple"):
        identity.of((orders[-1],))


def test_ignoring_a_part_leaves_the_argument_as_it_was() -> None:
    order = {"id": 1, "seen": {"at": 2}, 3: 4}

    Identity("t", place, ignore=("order.seen.at", "order.3")).of((order,))

    assert order == {"id": 1, "seen": {"at": 2}, 3: 4}


def test_a_part_of_the_chosen_argument_can_be_ignored() -> None:
    identity = Identity("t", place, key="order", ignore="order.seen")

    assert identity.of(({"id": 1, "seen": 1},)) == identity.of(({"id": 1, "seen": 2}, "r-1"))


def test_variable_arguments_can_be_ignored() -> None:
    identity = Identity("t", relay, ignore=("rest", "trace"))

    assert identity.of((1, 2), {"trace": 3}) == identity.of((1,), {}) != identity.of((1,), {"x": 1})


# Whose it is


def test_the_scope_is_part_of_every_key() -> None:
    def task(tenant: object, order_id: str) -> None: ...

    for options in ({"key": "order_id"}, {"key": TASK_ID}, {"key": lambda *_: "x"}, {"ignore": "tenant"}, {}):
        identity = Identity("t", task, scope="tenant", **options)
        for given_key in (None, "evt-1"):
            one, other = (
                identity.of((tenant, "o-1"), task_id="id-1", idempotency_key=given_key) for tenant in ("a", "b")
            )

            assert one.key != other.key
            assert (one.scope, other.scope) == ("a", "b")


@pytest.mark.parametrize(
    ("tenant", "text"),
    [("acme", "acme"), (7, "7"), (UUID(int=7), str(UUID(int=7))), ("a/b", "a%2Fb"), ("100%", "100%25"), ("Zoë", "Zoë")],
)
def test_the_scope_can_be_read(tenant: object, text: str) -> None:
    assert Identity("t", place, scope="order").of((tenant,)).scope == text


def test_a_tenants_number_and_its_text_are_one_tenant() -> None:
    identity = Identity("t", place, key="request_id", scope="order.tenant")

    assert identity.of(({"tenant": 7}, "r-1")) == identity.of(({"tenant": "7"}, "r-1"))


def test_several_scopes_cannot_be_taken_for_one_another() -> None:
    def task(org: str, project: str) -> None: ...

    identity = Identity("t", task, scope=("org", "project"))

    assert identity.of(("a", "b")).scope == "a/b"
    assert identity.of(("a/b", "c")).scope != identity.of(("a", "b/c")).scope
    assert identity.of(("a%2Fb", "c")).scope != identity.of(("a/b", "c")).scope


# What is refused


@pytest.mark.parametrize("empty", [None, "", b"", [], (), {}, set(), [None, ""]])
def test_a_choice_that_is_empty_is_refused(empty: object) -> None:
    for key in ("order", ("order", "request_id"), lambda order, _: order):
        with pytest.raises(FingerprintError, match=r"task 't': .*is empty.*`key=`"):
            Identity("t", place, key=key).of((empty, ""))


@pytest.mark.parametrize("value", [0, False, 0.0, [0], {"a": None}])
def test_zero_and_false_are_not_empty(value: object) -> None:
    assert Identity("t", place, key="order").of((value,)).key == fingerprint("t", {"order": value})


def test_a_choice_that_is_empty_in_part_is_not_empty() -> None:
    found = Identity("t", place, key=("order", "request_id")).of((None, "r-1"))

    assert found.key == fingerprint("t", {"order": None, "request_id": "r-1"})


@pytest.mark.parametrize("empty", [None, "", [], ()])
def test_a_scope_that_is_empty_is_refused(empty: object) -> None:
    with pytest.raises(FingerprintError, match="task 't': 'order' is empty, but `scope=` needs a text"):
        Identity("t", place, key="request_id", scope="order").of((empty, "r-1"))


def test_a_scope_that_is_no_scalar_is_refused() -> None:
    for value, kind in (([1], "list"), (1.5, "float"), ("\ud800", "str")):
        with pytest.raises(FingerprintError, match=f"task 't': 'order' is a {kind} .* `scope=` needs a text"):
            Identity("t", place, key="request_id", scope="order").of((value, "r-1"))


@pytest.mark.parametrize("given_key", ["", 5, b"x"])
def test_a_callers_key_must_be_text(given_key: Any) -> None:  # noqa: ANN401
    with pytest.raises(FingerprintError, match="task 't': idempotency_key must be a text that is not empty"):
        Identity("t", charge).of(("o-1",), idempotency_key=given_key)


@pytest.mark.parametrize("task_id", ["", None])
def test_a_task_that_goes_by_its_id_must_have_one(task_id: str | None) -> None:
    with pytest.raises(FingerprintError, match="task 't': task_id must be a text that is not empty"):
        Identity("t", charge, key=TASK_ID).of(("o-1",), task_id=task_id)


@pytest.mark.parametrize("where", ["namespace", "idempotency_key"])
def test_a_lone_surrogate_has_no_place_in_a_key(where: str) -> None:
    with pytest.raises(FingerprintError, match="lone surrogate"):
        Identity("t", charge).of(("o-1",), **{where: "\ud800"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        ({"number": 1, "lines": []}, "argument 'order' has no 'id', only: lines, number"),
        ({}, "argument 'order' has no 'id', only: nothing"),
        ([1, 2], "argument 'order' is a list without 'id'"),
        (7, "argument 'order' is a int without 'id'"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused_with_what_is_there(order: object, reason: str) -> None:
    for option in ("key", "scope"):
        with pytest.raises(FingerprintError, match=f"task 't': `{option}=` names 'order.id', but {reason}"):
            Identity("t", place, **{option: "order.id"}).of((order,))  # type: ignore[arg-type]


def test_an_item_that_is_not_there_is_refused() -> None:
    with pytest.raises(FingerprintError, match=r"argument 'order\.lines' has 1 items, so no 1"):
        Identity("t", place, key="order.lines.1").of((Order(1, lines=[1]),))


def test_a_keyword_that_is_not_given_is_refused() -> None:
    with pytest.raises(
        FingerprintError, match="`key=` names 'tenant', but the call has no 'tenant', only: first, flag"
    ):
        Identity("t", relay, key="tenant").of((1,))


def test_what_a_callable_returns_is_refused_by_its_place() -> None:
    with pytest.raises(FingerprintError, match=r"argument 'key\(\)\[1\]' is NaN"):
        Identity("t", charge, key=lambda *_, **__: ("a", float("nan"))).of(("o-1",))


def test_a_default_that_cannot_be_part_of_a_key_is_refused_by_its_name() -> None:
    def task(a: int, clock: object = max) -> None: ...

    with pytest.raises(FingerprintError, match=r"argument 'clock' is a builtins\.builtin_function_or_method"):
        Identity("t", task).of((1,))


# What is wrong from the start


@pytest.mark.parametrize("option", ["key", "ignore", "scope"])
@pytest.mark.parametrize("name", ["oder_id", "oder_id.x", ["order_id", "oder_id"]])
def test_an_option_that_names_no_argument_is_wrong_from_the_start(option: str, name: Any) -> None:  # noqa: ANN401
    with pytest.raises(
        ConfigurationError,
        match=f"task 'shop.charge': `{option}=` names 'oder_id', .* its arguments: order_id, amount, currency",
    ):
        Identity("shop.charge", charge, **{option: name})


@pytest.mark.parametrize("option", ["key", "ignore", "scope"])
@pytest.mark.parametrize("name", ["", "order_id.", ".x", "a..b", 5, [None], ["order_id", 5]])
def test_an_option_that_is_no_path_is_wrong_from_the_start(option: str, name: Any) -> None:  # noqa: ANN401
    with pytest.raises(ConfigurationError, match=f"`{option}=` takes names of arguments and dotted paths"):
        Identity("shop.charge", charge, **{option: name})


@pytest.mark.parametrize(
    ("call", "options", "message"),
    [
        (charge, {"key": ()}, "`key=` names nothing"),
        (charge, {"key": len, "ignore": "amount"}, "`ignore=` has no effect on a callable `key=`"),
        (charge, {"ignore": ["order_id", "amount", "currency"]}, "`ignore=` names every argument"),
        (charge, {"key": "amount", "ignore": "amount"}, "`key=` and `ignore=` both name 'amount'"),
        (place, {"key": "order.id", "ignore": "order"}, "`key=` and `ignore=` both name 'order.id'"),
        (relay, {"ignore": "more"}, "`ignore=` names 'more', which is not among its arguments: first, rest, flag"),
        (lambda: None, {"key": "a"}, "not among its arguments: it has none"),
    ],
)
def test_options_that_leave_nothing_to_tell_calls_apart_are_wrong_from_the_start(
    call: Callable[..., object], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Identity("t", call, **options)


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


# A tenant that the caller is known by


def test_a_caller_s_own_scope_is_that_of_a_task_whose_arguments_name_none() -> None:
    identity = Identity("charge", charge)

    acme, other = (identity.of(("o-1",), scope=scope) for scope in ("acme", "other"))

    assert (acme.scope, other.scope) == ("acme", "other")
    assert len({acme.key, other.key, identity.of(("o-1",)).key}) == 3


def test_arguments_that_name_another_tenant_than_the_caller_are_refused() -> None:
    identity = Identity("ship", lambda tenant, order: (tenant, order), scope="tenant")

    assert identity.of(("acme", 1), scope="acme") == identity.of(("acme", 1))
    with pytest.raises(ScopeError, match="name 'other', but the caller is 'acme'"):
        identity.of(("other", 1), scope="acme")
