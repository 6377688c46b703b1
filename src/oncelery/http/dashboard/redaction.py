"""Arguments and results are shown without what looks like a secret, and edited without losing it."""

from __future__ import annotations

import re
from typing import Any

#: What stands for a secret; whoever edits arguments and leaves it where it is, leaves the secret.
HIDDEN = "•••"

#: Names whose values are not shown, wherever they stand.
SECRET = re.compile(
    r"pass(word|wd|phrase)|secret|token|api[-_]?key|authori[sz]ation|credential|private[-_]?key|cookie|session"
    r"|\b(card|cvv|cvc|pan|iban|ssn)\b|card[-_]?number",
    re.IGNORECASE,
)


def redacted(value: Any, secret: re.Pattern[str] = SECRET) -> Any:  # noqa: ANN401 - any JSON
    """Hide each value whose name looks like a secret's."""
    match value:
        case dict():
            return {
                name: HIDDEN if secret.search(str(name)) and inner is not None else redacted(inner, secret)
                for name, inner in value.items()
            }
        case list() | tuple():
            return [redacted(inner, secret) for inner in value]
        case _:
            return value


def restored(edited: Any, original: Any) -> Any:  # noqa: ANN401 - any JSON
    """Put back what was hidden, wherever it was left as it was shown."""
    match edited, original:
        case dict(), dict():
            return {name: restored(inner, original.get(name)) for name, inner in edited.items()}
        case list(), list() | tuple():
            padded = [*original, *[None] * len(edited)]
            return [restored(inner, before) for inner, before in zip(edited, padded, strict=False)]
        case _:
            return original if edited == HIDDEN else edited
