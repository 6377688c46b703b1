"""Jobs over HTTP, for FastAPI: a double-click, a retried POST and a redelivered message all meet the same job.

app, router       create_app, create_router
jobs              submit, find, watch, cancel
dead_letters      look, revive, discard
duplicates        the audit
health            metrics, liveness, readiness
auth, keys        who may do what
service           what all routes stand on
submitting        submit(task, …), for routes of yours too
threads           where what blocks is asked, and for how long
body, arguments   what a request says; views, what is shown; paging, lists of it
idempotency_key   the header
problems          errors, as problem+json
watching          one thread that looks, for any number of clients; streaming sends what it sees
dashboard         the pages
"""

from __future__ import annotations

try:
    from oncelery.http.app import create_app
    from oncelery.http.auth import Access, Caller
    from oncelery.http.idempotency_key import idempotency_key
    from oncelery.http.keys import ApiKey, Role, new_key
    from oncelery.http.problems import map_errors
    from oncelery.http.router import create_router
    from oncelery.http.submitting import submit
except ModuleNotFoundError as error:
    remedy = f"oncelery.http needs the package {error.name!r}: pip install 'oncelery[fastapi]'"
    raise ModuleNotFoundError(remedy, name=error.name) from error

__all__ = [
    "Access",
    "ApiKey",
    "Caller",
    "Role",
    "create_app",
    "create_router",
    "idempotency_key",
    "map_errors",
    "new_key",
    "submit",
]
