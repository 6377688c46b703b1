"""Errors as problem+json (RFC 9457), each with a `type` that stays the same; those of Oncelery are such ones, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fastapi import Request
from fastapi.responses import Response

from oncelery.codec import encode

MEDIA_TYPE = "application/problem+json"

#: What a problem's name is put behind to make its `type`.
TYPES = "urn:problem-type:oncelery:"


@dataclass(frozen=True, slots=True)
class Problem:
    """A kind of error: what programs tell it by, its status, and what people call it."""

    name: str
    status: int
    title: str

    @property
    def type(self) -> str:
        """The URI that names it."""
        return TYPES + self.name


FORBIDDEN = Problem("forbidden", 403, "This caller may not do that")


class ProblemError(Exception):
    """Raised in a route, it is the route's answer."""

    def __init__(
        self, problem: Problem, detail: str, *, headers: Mapping[str, str] | None = None, **more: object
    ) -> None:
        super().__init__(detail)
        self.problem = problem
        self.detail = detail
        self.headers = headers or {}
        #: Further members of the answer.
        self.more = more


async def answer_problem(_request: Request, error: Exception) -> Response:
    """Answer an error that was raised as a problem."""
    assert isinstance(error, ProblemError)  # noqa: S101 - it is registered for these
    problem = error.problem
    fields = {"type": problem.type, "title": problem.title, "status": problem.status, "detail": error.detail}
    return Response(encode(fields | error.more), problem.status, error.headers, MEDIA_TYPE)
