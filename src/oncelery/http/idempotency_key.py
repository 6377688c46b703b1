"""The header `Idempotency-Key`: a POST that is sent again under the same key is the same POST."""

from __future__ import annotations

import re
from typing import Annotated, Final

from fastapi import Depends, Header, Request

from oncelery.http.problems import KEY_MALFORMED, KEY_MISSING, ProblemError

NAME: Final = "Idempotency-Key"

#: How long a key may be.
LONGEST: Final = 255

#: As it is (no comma, for that is how proxies join two headers), or as a structured field's string in quotes.
PATTERN: Final = rf'^([!#-+\--~]{{1,{LONGEST}}}|"([ !#-\[\]-~]|\\["\\]){{1,{LONGEST}}}")$'

_pattern = re.compile(PATTERN)
_escaped = re.compile(r"\\(.)")


def read_key(request: Request, *, required: bool) -> str | None:
    """Read the key of a request; None if it has none, and need not have one.

    Raises:
        ProblemError: it is missing, malformed, or there are two.
    """
    given = request.headers.getlist(NAME)
    if not given:
        if required:
            raise ProblemError(KEY_MISSING, f"send {NAME}, the same one whenever you send this request again")
        return None
    if len(given) > 1:
        raise ProblemError(KEY_MALFORMED, f"there are {len(given)} {NAME} headers, send one")
    found = _pattern.match(given[0])
    if not found:
        raise ProblemError(
            KEY_MALFORMED, f'{NAME} has 1 to {LONGEST} visible ASCII characters, bare (key-1) or quoted ("key 1")'
        )
    return _escaped.sub(r"\1", given[0][1:-1]) if given[0].startswith('"') else given[0]


async def _read(request: Request) -> str:
    key = read_key(request, required=True)
    assert key is not None  # noqa: S101 - it was required
    return key


async def idempotency_key(
    # Read before FastAPI looks at the header, which would answer 422 where there is none.
    key: Annotated[str, Depends(_read)],
    _documented: Annotated[str, Header(alias=NAME, description=f"1 to {LONGEST} characters")],
) -> str:
    """Give the key of the request to your own route: `key: Annotated[str, Depends(idempotency_key)]`.

    Without one, or with a malformed one, the request is answered 400.
    """
    return key


def described(*, required: bool) -> dict[str, object]:
    """Describe the header for the OpenAPI of a route that reads it by itself."""
    return {
        "name": NAME,
        "in": "header",
        "required": required,
        "schema": {"type": "string", "pattern": PATTERN},
        "description": "Sent again with the same key, the request is answered with the same job.",
    }
