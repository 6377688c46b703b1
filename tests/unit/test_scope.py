from __future__ import annotations

from uuid import UUID

import pytest
from calls import charge, place

from oncelery.errors import ScopeError
from oncelery.fingerprint import TASK_ID, Identity

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
