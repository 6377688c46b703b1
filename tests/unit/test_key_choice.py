from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from calls import Order, charge, place, relay, sent
from pydantic import BaseModel

from oncelery.errors import FingerprintError
from oncelery.fingerprint import TASK_ID, Fingerprint, Identity, fingerprint


class OrderModel(BaseModel):
    id: int
    lines: list[dict[str, Any]] = []


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


def test_under_a_given_key_all_arguments_are_compared_whatever_the_task_is_known_by() -> None:
    identity = Identity("t", charge, key="order_id", ignore="currency")

    def digest(*args: object, **kwargs: object) -> str:
        return identity.of(args, kwargs, idempotency_key="evt-1").digest

    assert digest("o-1", 5) == digest("o-1", 5, currency="USD") != digest("o-1", 999)
    # Of what has no canonical form, only what is chosen is compared.
    assert digest("o-1", object()) == digest("o-1", object()) != digest("o-2", object())


def test_a_task_id_is_no_idempotency_key() -> None:
    by_id = Identity("t", charge, key=TASK_ID)

    found = by_id.of(("o-1",), task_id="x", idempotency_key="x")

    assert found.key == by_id.of(("o-1",), task_id="x").key != found.alias


def test_a_task_id_counts_only_when_asked_for() -> None:
    assert Identity("t", charge).of(("o-1",), task_id="id-1") == Identity("t", charge).of(("o-1",), task_id="id-2")


# The caller's own key


def test_the_callers_key_comes_before_the_arguments() -> None:
    identity = Identity("t", charge)

    one, other = (identity.of((order,), idempotency_key="evt-1") for order in ("o-1", "o-2"))

    assert one.key == other.key
    assert one.key != identity.of(("o-1",), idempotency_key="evt-2").key


def test_a_callers_key_beside_a_chosen_one_is_an_alias() -> None:
    identity = Identity("t", charge, key="order_id", scope="currency")

    def of(order: str, amount: int, request: str | None, **more: Any) -> Fingerprint:  # noqa: ANN401
        return identity.of((order, amount), idempotency_key=request, **more)

    assert of("o-1", 5, "evt-1").key == of("o-1", 9, "evt-2").key == of("o-1", 5, None).key
    assert of("o-1", 5, "evt-1").alias == of("o-2", 9, "evt-1").alias != of("o-1", 5, "evt-2").alias
    assert of("o-1", 5, None).alias == ""
    assert of("o-1", 5, "evt-1").alias != of("o-1", 5, "evt-1", namespace="other").alias
    other_tenant = identity.of(("o-1", 5), {"currency": "USD"}, idempotency_key="evt-1")
    assert other_tenant.alias != of("o-1", 5, "evt-1").alias


@pytest.mark.parametrize("key", [None, TASK_ID])
def test_the_same_callers_key_with_other_arguments_shows_in_the_digest(key: Any) -> None:  # noqa: ANN401
    identity = Identity("t", charge, key=key, ignore="currency")

    def digest(*args: object, **kwargs: object) -> str:
        return identity.of(args, kwargs, task_id="id-1", idempotency_key="evt-1").digest

    assert digest("o-1") == digest("o-1", 500, currency="USD")
    assert digest("o-1") != digest("o-2")


def test_a_callers_key_is_never_a_derived_one() -> None:
    identity = Identity("t", charge)
    derived = identity.of(("o-1",))

    assert identity.of(("o-1",), idempotency_key=derived.digest).key != derived.key
    assert identity.of(("o-1",), idempotency_key=derived.digest).digest == derived.digest


def test_a_callers_key_does_not_make_up_for_an_empty_choice() -> None:
    identity = Identity("t", charge, key="order_id")

    with pytest.raises(FingerprintError, match="'order_id' is empty"):
        identity.of(("",), idempotency_key="evt-1")


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
