"""Signatures as Standard Webhooks has them: HMAC-SHA256 of id, time and payload; several secrets while they rotate."""

from __future__ import annotations

import hmac
import json
from base64 import b64decode, b64encode
from binascii import Error as NoBase64Error
from collections.abc import Iterable, Mapping
from datetime import timedelta
from hashlib import sha256
from time import time
from typing import Any

from oncelery.errors import ConfigurationError, WebhookVerificationError

#: How a secret begins, before its base64.
PREFIX = "whsec_"

#: How many bytes a secret has.
SECRET_SIZES = range(24, 65)

#: How far the sender's clock and the receiver's may be apart, the way included; an older message may be a replayed one.
TOLERANCE = timedelta(minutes=5)


def verify_webhook(
    payload: bytes | str,
    headers: Mapping[str, str],
    secrets: str | Iterable[str],
    *,
    tolerance: timedelta = TOLERANCE,
    now: float | None = None,
) -> Any:  # noqa: ANN401 - whatever the JSON holds
    """Return the decoded payload if one of the secrets has signed it lately; else raise WebhookVerificationError.

    `payload` is the body as it was received, not decoded and written again. A receiver then looks whether it has seen
    the `webhook-id` before: a call-back may come twice, always under the same one.
    """
    given = {name.lower(): value for name, value in headers.items()}
    try:
        message_id, timestamp, signatures = (given[f"webhook-{name}"] for name in ("id", "timestamp", "signature"))
        sent_at = int(timestamp)
    except (KeyError, ValueError):
        raise WebhookVerificationError("webhook-id, -timestamp or -signature is missing or malformed") from None
    if abs((time() if now is None else now) - sent_at) > tolerance.total_seconds():
        raise WebhookVerificationError("it was signed too long ago, or the clocks are too far apart")
    body = payload.encode() if isinstance(payload, str) else payload
    expected = sign(message_id, sent_at, body, secrets).split()
    # All are compared, each in constant time: how long it takes tells nothing of how near a guess was.
    matches = [_equal(one, other) for one in signatures.split() for other in expected]
    if not any(matches):
        raise WebhookVerificationError("no secret of ours has made any of its signatures")
    return json.loads(body)


def sign(message_id: str, timestamp: int, payload: bytes, secrets: str | Iterable[str]) -> str:
    """Make the value of `webhook-signature`: one signature for each secret, the newest first."""
    content = f"{message_id}.{timestamp}.".encode() + payload
    digests = (hmac.digest(secret, content, sha256) for secret in read_secrets(secrets))
    return " ".join(f"v1,{b64encode(digest).decode()}" for digest in digests)


def read_secrets(secrets: str | Iterable[str]) -> tuple[bytes, ...]:
    """Read secrets as they are written: `whsec_…`, one or several; text is split at spaces and commas."""
    written = secrets.replace(",", " ").split() if isinstance(secrets, str) else tuple(secrets)
    if not written:
        raise ConfigurationError("no webhook secret: set webhook_secrets to one or more `whsec_…`")
    return tuple(_secret(text) for text in written)


def _secret(text: str) -> bytes:
    try:
        secret = b64decode(text.removeprefix(PREFIX), validate=True)
    except (NoBase64Error, ValueError):
        secret = b""
    if not text.startswith(PREFIX) or len(secret) not in SECRET_SIZES:
        # Without the text: it is a secret, if a wrong one.
        raise ConfigurationError(
            f"a webhook secret is {PREFIX!r} and the base64 of {SECRET_SIZES[0]} to {SECRET_SIZES[-1]} random bytes"
        )
    return secret


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())
