"""What is shown of arguments: fields that are secrets by their names are not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from oncelery.codec import TAG

#: What is shown in their place.
HIDDEN: Final = "[redacted]"

#: Names that hold secrets, in whatever spelling: `api_key` is also `apiKey`, `X-API-Key` and `user_api_keys`.
SECRETS: Final = (
    *("password", "passwd", "passphrase", "secret", "token", "api_key", "access_key", "private_key"),
    *("authorization", "credential", "cookie", "session_id", "otp", "pin"),
    *("card_number", "cvv", "cvc", "iban", "ssn"),
)

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


class Redaction:
    """Hides the values of fields by their names, however deep they are."""

    def __init__(self, names: Iterable[str] = SECRETS) -> None:
        self._secrets = frozenset("".join(_words(name)) for name in names)
        self._is_secret = lru_cache(maxsize=4096)(self._match)

    def hides(self, name: str) -> bool:
        """Whether a field of this name is not shown."""
        return self._is_secret(name)

    def __call__(self, value: Any) -> Any:  # noqa: ANN401 - arguments are of any type
        """Give the value with what is secret in it hidden; the value itself is left as it is."""
        if isinstance(value, Mapping):
            return {name: HIDDEN if self._is_secret(str(name)) else self(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self(item) for item in value]
        return value

    def _match(self, name: str) -> bool:
        words = _words(name)
        runs = ("".join(words[start:end]) for start in range(len(words)) for end in range(start + 1, len(words) + 1))
        return any(run in self._secrets or run.removesuffix("s") in self._secrets for run in runs)


def restored(edited: Any, original: Any) -> Any:  # noqa: ANN401 - arguments are of any type
    """Give what a person has edited, with what was hidden from that person put back.

    Raises:
        TypeError: something is hidden where nothing was: it would be taken for the secret itself. Or an object has the
            name `__type__`: the task would get another type than what was written.
    """
    if isinstance(edited, Mapping):
        if TAG in edited:
            raise TypeError(f"{TAG!r} cannot be a name in an argument: the broker's JSON uses it")
        parts = original if isinstance(original, Mapping) else {}
        return {name: restored(item, parts.get(name, _NOTHING)) for name, item in edited.items()}
    if isinstance(edited, list | tuple):
        items = list(original) if isinstance(original, list | tuple) else []
        return [restored(item, items[n] if n < len(items) else _NOTHING) for n, item in enumerate(edited)]
    if edited != HIDDEN:
        return edited
    if original is _NOTHING:
        raise TypeError(f"{HIDDEN} stands for what was hidden there, and there was nothing: write the value itself")
    return original


#: Is no argument of anybody.
_NOTHING: Final = object()


def _words(name: str) -> list[str]:
    # A name of many words is long for another reason than being precise.
    return [word.lower() for word in _WORDS.findall(name[:200])][:20]
