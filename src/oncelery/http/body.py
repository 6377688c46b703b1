"""The body of a request: not too large, not sent for ever, and JSON unless it is a form."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from itertools import accumulate
from typing import Annotated, Final, TypeVar

from fastapi import Request
from pydantic import AfterValidator, AwareDatetime, BeforeValidator, TypeAdapter, ValidationError
from starlette.requests import ClientDisconnect

from oncelery.http.problems import INVALID_REQUEST, NOT_JSON, TOO_LARGE, TOO_SLOW, ProblemError, in_words

T = TypeVar("T")

#: The most that a body may have, in bytes.
LARGEST: Final = 1 << 20

#: How deep lists and objects in it may be nested.
DEEPEST: Final = 64

#: How long a client may take to send it, in seconds.
LONGEST: Final = 30.0


def _not_a_number(given: object) -> object:
    """Refuse what pydantic would take for seconds since 1970."""
    try:
        float(str(given))
    except ValueError:
        return given
    raise ValueError("write a date and time with its time zone, such as 2026-11-15T12:00:00Z")


def _in_utc(given: datetime) -> datetime:
    try:
        return given.astimezone(UTC)
    except OverflowError:
        raise ValueError("there is no such moment in UTC") from None


#: A moment as JSON and query strings write one.
Instant = Annotated[AwareDatetime, BeforeValidator(_not_a_number), AfterValidator(_in_utc)]


async def read_body(request: Request, *, largest: int) -> bytes:
    """Read a body of JSON, without reading more of it than how deep it is.

    Raises:
        ProblemError: it is of another type, too large, too deep, or takes too long.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # Not the types that a form on somebody else's page can send.
    if kind != "application/json":
        raise ProblemError(NOT_JSON, f"the body is of type {kind or '(none)'}, not application/json")
    return _shallow(await read_whole(request, largest=largest))


async def read_whole(request: Request, *, largest: int) -> bytes:
    """Read a body of any type.

    Raises:
        ProblemError: it is too large, takes too long, or its client went away.
    """
    if int(request.headers.get("content-length", 0)) > largest:
        raise _too_large(largest)
    try:
        async with asyncio.timeout(LONGEST):
            return await _read(request, largest)
    except TimeoutError:
        raise ProblemError(TOO_SLOW, f"the body was not there after {LONGEST:g} seconds") from None
    except ClientDisconnect:
        # Nobody reads this.
        raise ProblemError(INVALID_REQUEST, "the client went away before its body was there") from None


async def read_as(request: Request, adapter: TypeAdapter[T], *, largest: int) -> T:
    """Read a body of JSON as a type of ours.

    Raises:
        ProblemError: it cannot be read, or is not of that type.
    """
    try:
        return adapter.validate_json(await read_body(request, largest=largest))
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        raise ProblemError(INVALID_REQUEST, in_words(errors)) from None


async def _read(request: Request, largest: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > largest:
            raise _too_large(largest)
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _shallow(body: bytes) -> bytes:
    """Refuse what is nested so deep that those who read it later, not all of them careful, would break."""
    if body.count(b"[") + body.count(b"{") > DEEPEST:
        brackets = _STRING.sub(b"", body).translate(None, _OTHERS)
        if max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > DEEPEST:
            raise ProblemError(TOO_LARGE, f"lists and objects may be nested {DEEPEST} deep")
    return body


# Possessive: a pattern that may go back remembers where to, which takes a hundred times the memory of the text.
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_STEPS: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_OTHERS: Final = bytes(set(range(256)) - _STEPS.keys())


def _too_large(largest: int) -> ProblemError:
    return ProblemError(
        TOO_LARGE, f"the body may have {largest:,} bytes: keep it elsewhere and pass a reference", headers=_CLOSE
    )


#: What is still under way of the body is not waited for.
_CLOSE: Final = {"Connection": "close"}
