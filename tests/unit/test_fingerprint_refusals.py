from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from calls import Order, charge, place, relay

from oncelery.errors import ConfigurationError, FingerprintError
from oncelery.fingerprint import TASK_ID, Identity, fingerprint

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
            Identity("t", place, **{option: "order.id"}).of((order,))


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
        (charge, {"key": ()}, r"`key=` names nothing.*key=lambda \*args, \*\*kwargs: 'one'"),
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
