"""Who is signed in, and that a form that is sent was one of ours."""

from __future__ import annotations

import secrets
from typing import Final
from urllib.parse import parse_qs

from fastapi import Request
from starlette.responses import Response

from oncelery.http.auth import HEADER, Access, Caller, Role, is_same_origin
from oncelery.http.body import LARGEST, read_whole
from oncelery.http.problems import FORBIDDEN, INVALID_REQUEST, ProblemError

#: The cookies: the caller's API key, and what forms must tell again.
KEY_COOKIE: Final = "oncelery_api_key"
CSRF_COOKIE: Final = "oncelery_csrf"

#: For how long a browser stays signed in, in seconds.
SIGNED_IN_FOR: Final = 12 * 3600

#: The most fields that a form may have: it is read before anybody knows whose it is.
MOST_FIELDS: Final = 2000

Form = dict[str, list[str]]


async def enter(access: Access, request: Request, role: Role) -> Caller:
    """Answer who has signed in here, or who sends an API key.

    Raises:
        ProblemError: nobody has (401), or may do this (403).
    """
    return await access(role)(with_key(request, request.cookies.get(KEY_COOKIE, "")))


def with_key(request: Request, key: str) -> Request:
    """Give the request as a program would have sent it that has this API key."""
    headers: list[tuple[bytes, bytes]] = request.scope["headers"]
    if not key or HEADER in request.headers:
        return request
    return Request(
        {**request.scope, "headers": [*headers, (HEADER.lower().encode(), key.encode("latin-1", "replace"))]}
    )


def token_of(request: Request) -> str:
    """Give the token that this browser's forms tell, or a new one."""
    return request.cookies.get(CSRF_COOKIE) or secrets.token_urlsafe(24)


def keep(request: Request, response: Response, name: str, value: str, *, seconds: int | None = None) -> None:
    """Let the browser keep this, for us alone."""
    response.set_cookie(
        name,
        value,
        max_age=seconds,
        path=request.scope.get("root_path") or "/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


def forget(request: Request, response: Response, name: str) -> None:
    """Let the browser forget this."""
    response.delete_cookie(name, path=request.scope.get("root_path") or "/", httponly=True, samesite="strict")


async def read_form(request: Request) -> Form:
    """Read a form that one of our pages has sent.

    Raises:
        ProblemError: it was not, is too large, or takes too long.
    """
    body = await read_whole(request, largest=LARGEST)
    try:
        form = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError as error:
        raise ProblemError(INVALID_REQUEST, "this is no form") from error
    told, kept = form.pop("csrf", [""])[0], request.cookies.get(CSRF_COOKIE, "")
    origin = request.headers.get("origin")
    ours = origin is None or is_same_origin(origin, request.headers.get("host", ""))
    if not (ours and kept and secrets.compare_digest(told.encode(), kept.encode())):
        raise ProblemError(
            FORBIDDEN, "the form was not sent from a page of this dashboard; load the page and try again"
        )
    return form
