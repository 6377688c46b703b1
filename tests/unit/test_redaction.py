from __future__ import annotations

import pytest

from oncelery.operations.redaction import HIDDEN, Redaction, restored


@pytest.mark.parametrize(
    "name",
    [
        *("password", "Password", "PASSWORD", "user_password", "userPassword", "password2", "db-passwords"),
        *("api_key", "apiKey", "APIKey", "X-API-Key", "apikey", "api_keys", "access_token", "accessToken", "token"),
        *("client_secret", "secrets", "Authorization", "cardNumber", "card_number", "CVV", "iban", "pin", "user pin"),
    ],
)
def test_names_of_secrets_are_known_in_any_spelling(name: str) -> None:
    assert Redaction().hides(name)


@pytest.mark.parametrize(
    "name", ["shipping", "spinner", "order_id", "key", "amount", "tokenizer", "passenger", "card", ""]
)
def test_names_that_only_look_alike_are_shown(name: str) -> None:
    assert not Redaction().hides(name)


def test_values_are_hidden_however_deep_and_the_arguments_stay_as_they_are() -> None:
    arguments = {"a": [{"password": {"deep": 1}}, ("x", {"token": None})], "b": 1, 3: "three"}

    assert Redaction()(arguments) == {"a": [{"password": HIDDEN}, ["x", {"token": HIDDEN}]], "b": 1, 3: "three"}
    assert arguments["a"] == [{"password": {"deep": 1}}, ("x", {"token": None})]


def test_what_was_hidden_is_put_back_where_it_was() -> None:
    original = {"user": "ann", "password": "p", "cards": [{"cvv": 1}, {"cvv": 2}]}
    edited = {"user": "bob", "password": HIDDEN, "cards": [{"cvv": HIDDEN}, {"cvv": 3}]}

    assert restored(edited, original) == {"user": "bob", "password": "p", "cards": [{"cvv": 1}, {"cvv": 3}]}


@pytest.mark.parametrize("edited", [{"password": HIDDEN}, {"a": [HIDDEN]}, [HIDDEN], {"b": {"c": HIDDEN}}])
def test_what_was_never_there_cannot_be_put_back(edited: object) -> None:
    with pytest.raises(TypeError, match="write the value itself"):
        restored(edited, {"a": [], "b": 1})
