"""Errors as problem+json (RFC 9457), each with a `type` that stays the same; those of Oncelery are such ones, too."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from math import ceil
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from oncelery.codec import encode
from oncelery.errors import (
    DuplicateTaskError,
    FingerprintError,
    LimitReachedError,
    OnceleryError,
    PayloadMismatchError,
    RevivalError,
    ScopeError,
    StoreUnavailableError,
    TooLargeError,
    WebhookTargetError,
)

MEDIA_TYPE = "application/problem+json"

#: What a problem's name is put behind to make its `type`.
TYPES = "urn:problem-type:oncelery:"

#: When to ask again what could not be answered now, if nothing better is known.
SOON = timedelta(seconds=1)


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


INVALID_REQUEST = Problem("invalid-request", 400, "The request is not what this route takes")
INVALID_ARGUMENTS = Problem("invalid-arguments", 400, "The task cannot be called with these arguments")
KEY_MISSING = Problem("idempotency-key-missing", 400, "This route needs an Idempotency-Key")
KEY_MALFORMED = Problem("idempotency-key-malformed", 400, "The Idempotency-Key is malformed, or was sent twice")
CALL_BACK_REFUSED = Problem("call-back-refused", 400, "No call-back can be sent there")
UNAUTHENTICATED = Problem("unauthenticated", 401, "This needs an API key")
FORBIDDEN = Problem("forbidden", 403, "This caller may not do that")
UNKNOWN_TASK = Problem("unknown-task", 404, "There is no such task here")
UNKNOWN_JOB = Problem("unknown-job", 404, "There is no such job")
TOO_SLOW = Problem("too-slow", 408, "The request took too long to arrive")
DUPLICATE = Problem("duplicate", 409, "The same work is queued or running already")
JOB_FINISHED = Problem("job-finished", 409, "The job has ended")
NOT_BURIED = Problem("not-buried", 409, "The job is no dead letter")
SUPERSEDED = Problem("superseded", 409, "Another job does or did the same work")
TOO_LARGE = Problem("too-large", 413, "There is a limit to what is taken")
NOT_JSON = Problem("not-json", 415, "Send a JSON object, as application/json")
PAYLOAD_MISMATCH = Problem("payload-mismatch", 422, "The Idempotency-Key was used with another payload")
LIMIT_REACHED = Problem("limit-reached", 429, "This tenant has reached its limit")
STORE_UNAVAILABLE = Problem("store-unavailable", 503, "The ledger does not answer")
BROKER_UNAVAILABLE = Problem("broker-unavailable", 503, "The broker does not answer")
OVERLOADED = Problem("overloaded", 503, "The service is overloaded")

#: The errors of Oncelery that are the caller's to know; all others are faults of the service.
PROBLEMS: Mapping[type[OnceleryError], Problem] = {
    DuplicateTaskError: DUPLICATE,
    PayloadMismatchError: PAYLOAD_MISMATCH,
    ScopeError: FORBIDDEN,
    WebhookTargetError: CALL_BACK_REFUSED,
    LimitReachedError: LIMIT_REACHED,
    TooLargeError: TOO_LARGE,
    FingerprintError: INVALID_ARGUMENTS,
    RevivalError: INVALID_ARGUMENTS,
    StoreUnavailableError: STORE_UNAVAILABLE,
}

#: What is told to a caller in the place of words of ours that are for those who declare the task.
_TO_CALLERS: Mapping[str | None, str] = {
    DuplicateTaskError.__doc__: "follow that job by its id, or send this again when it has ended",
    PayloadMismatchError.__doc__: "send another payload under a new key, or the first one again under this",
}

#: Problems that pass: their answers say when to ask again.
_PASSING = frozenset({DUPLICATE, LIMIT_REACHED, STORE_UNAVAILABLE, BROKER_UNAVAILABLE, OVERLOADED})


class ProblemError(HTTPException):
    """Raised in a route, it is the route's answer."""

    def __init__(
        self,
        problem: Problem,
        detail: str,
        *,
        retry_after: timedelta | None = None,
        headers: Mapping[str, str] | None = None,
        **more: object,
    ) -> None:
        if problem in _PASSING:
            headers = {**(headers or {}), "Retry-After": str(ceil((retry_after or SOON).total_seconds()))}
        super().__init__(problem.status, detail, headers)
        self.problem = problem
        #: Further members of the answer.
        self.more = more


def unknown_job(job_id: str) -> ProblemError:
    """Tell that there is no such job; also of one that is not the caller's to see."""
    return ProblemError(UNKNOWN_JOB, f"there is no job {job_id!r}, or no more: finished ones are kept for a while")


def location_of(job_id: str, jobs_url: str) -> str:
    """Give the URL of a job."""
    return f"{jobs_url}/{quote(job_id, safe='')}"


def problem_of(error: OnceleryError, *, jobs_url: str = "") -> ProblemError | None:
    """Tell an error of Oncelery as a problem, with the job that it is about; None if it is a fault of the service."""
    problem = next((problem for kind, problem in PROBLEMS.items() if isinstance(error, kind)), None)
    if problem is None:
        return None
    more: dict[str, Any] = {"job_id": error.job_id, "state": error.state}
    if jobs_url and error.job_id:
        more["location"] = location_of(error.job_id, jobs_url)
    known = {name: value for name, value in more.items() if value}
    detail = _TO_CALLERS.get(str(error), str(error))
    return ProblemError(problem, detail, retry_after=error.retry_after, **known)


def answer(error: HTTPException) -> Response:
    """Answer an error as a problem; of one that is not ours, what its status says."""
    fields: dict[str, object]
    if isinstance(error, ProblemError):
        problem = error.problem
        fields = {"type": problem.type, "title": problem.title, "status": problem.status, "detail": error.detail}
        fields |= error.more
    else:
        status = HTTPStatus(error.status_code)
        fields = {"type": "about:blank", "title": status.phrase, "status": error.status_code, "detail": error.detail}
    return Response(encode(fields), error.status_code, error.headers, MEDIA_TYPE)


def map_errors(app: FastAPI, *, jobs_url: str = "/jobs") -> None:
    """Let `raise DuplicateTaskError` in your own routes be answered 409 with the job's id, state and link, and so on.

    `jobs_url` is where the router is mounted, with its `/jobs`. Other exceptions are answered as before.
    """

    async def answer_ours(_request: Request, error: Exception) -> Response:
        problem = problem_of(error, jobs_url=jobs_url) if isinstance(error, OnceleryError) else None
        if problem is None:
            raise error
        return answer(problem)

    async def answer_problem(_request: Request, error: Exception) -> Response:
        assert isinstance(error, ProblemError)  # noqa: S101 - it is registered for these
        return answer(error)

    for kind in PROBLEMS:
        app.add_exception_handler(kind, answer_ours)
    app.add_exception_handler(ProblemError, answer_problem)


class ProblemRoute(APIRoute):
    """A route whose errors are problems, in whichever app it is mounted."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Answer the request, or the problem with it."""
        respond = super().get_route_handler()

        async def respond_or_tell(request: Request) -> Response:
            try:
                return await respond(request)
            except RequestValidationError as error:
                return answer(ProblemError(INVALID_REQUEST, in_words(error.errors())))
            except ProblemError as error:
                return answer(error)
            except OnceleryError as error:
                problem = problem_of(error)
                if problem is None:
                    raise
                return answer(problem)

        return respond_or_tell


def in_words(errors: Any) -> str:  # noqa: ANN401 - pydantic's lists of errors
    """Tell what is wrong where; never the value itself, which may be a secret."""
    return "; ".join(f"{'.'.join(map(str, error['loc'])) or 'body'}: {error['msg']}" for error in errors)


def documented(*problems: Problem) -> dict[int | str, dict[str, Any]]:
    """Describe these problems for a route's OpenAPI."""
    described: dict[int | str, dict[str, Any]] = {}
    # Who may be refused by a role may be refused for want of a key.
    for problem in (*problems, *([UNAUTHENTICATED] if FORBIDDEN in problems else [])):
        entry = described.setdefault(problem.status, {"description": "", "content": {MEDIA_TYPE: {"schema": _SCHEMA}}})
        entry["description"] = "; ".join(filter(None, [entry["description"], f"{problem.title} (`{problem.name}`)"]))
        if problem in _PASSING:
            entry["headers"] = {"Retry-After": {"description": "Seconds", "schema": {"type": "integer"}}}
    return described


_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "format": "uri-reference"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "job_id": {"type": "string"},
        "state": {"type": "string"},
        "location": {"type": "string"},
    },
}
