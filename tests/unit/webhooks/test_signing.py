from __future__ import annotations

from typing import Any

import pytest
from guarded.receiver import OLD_SECRET, SECRET

from oncelery import ConfigurationError, WebhookVerificationError, verify_webhook
from oncelery.webhooks.signing import read_secrets, sign

#: The example of Standard Webhooks and of its libraries.
VECTOR = {
    "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
    "webhook-timestamp": "1614265330",
    "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
}
VECTOR_SECRET = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
VECTOR_PAYLOAD = b'{"test": 2432232314}'
VECTOR_TIME = 1614265330


def verify(payload: bytes = VECTOR_PAYLOAD, *, now: float = VECTOR_TIME, **changed: str) -> object:
    headers = VECTOR | {f"webhook-{name}": value for name, value in changed.items()}
    return verify_webhook(payload, headers, VECTOR_SECRET, now=now)


def test_the_example_of_standard_webhooks_is_signed_as_it_is_there() -> None:
    made = sign(VECTOR["webhook-id"], VECTOR_TIME, VECTOR_PAYLOAD, VECTOR_SECRET)

    assert made == VECTOR["webhook-signature"]
    assert verify() == {"test": 2432232314}


def test_headers_are_found_in_whatever_case_and_the_payload_may_be_text() -> None:
    headers = {name.title(): value for name, value in VECTOR.items()}

    assert verify_webhook(VECTOR_PAYLOAD.decode(), headers, [VECTOR_SECRET], now=VECTOR_TIME)


@pytest.mark.parametrize(
    "changed",
    [
        {"id": "msg_other"},
        {"timestamp": str(VECTOR_TIME + 1)},
        {"signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OF="},
        {"signature": "v2,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="},
        {"signature": "v1a,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="},
        {"signature": "g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="},
        {"signature": "v1,ünïcode"},
        {"signature": ""},
        {"timestamp": "yesterday"},
        {"now": VECTOR_TIME + 301},
        {"now": VECTOR_TIME - 301},
    ],
)
def test_what_is_changed_or_old_is_not_verified(changed: dict[str, Any]) -> None:
    with pytest.raises(WebhookVerificationError):
        verify(**changed)


def test_another_payload_is_not_verified_nor_one_without_headers() -> None:
    with pytest.raises(WebhookVerificationError, match="no secret of ours"):
        verify(b'{"test": 2432232315}')
    with pytest.raises(WebhookVerificationError, match="missing"):
        verify_webhook(VECTOR_PAYLOAD, {}, VECTOR_SECRET)


def test_while_a_secret_rotates_receivers_with_either_one_are_served() -> None:
    signature = sign("id", VECTOR_TIME, b"{}", [SECRET, OLD_SECRET])
    headers = {"webhook-id": "id", "webhook-timestamp": str(VECTOR_TIME), "webhook-signature": signature}

    assert signature.count("v1,") == 2
    for known in (SECRET, OLD_SECRET, f"{VECTOR_SECRET} {OLD_SECRET}"):
        assert verify_webhook(b"{}", headers, known, now=VECTOR_TIME) == {}
    with pytest.raises(WebhookVerificationError):
        verify_webhook(b"{}", headers, VECTOR_SECRET, now=VECTOR_TIME)


@pytest.mark.parametrize(
    "text", ["", "hunter2", "whsec_", "whsec_c2hvcnQ=", "whsec_%%%", SECRET.removeprefix("whsec_")]
)
def test_a_secret_that_is_none_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read_secrets(text)

    assert len(text) < 10 or text.removeprefix("whsec_") not in str(refused.value)
