"""Exactly-once effects for Celery.

A call becomes a job, a job is run under a lease, a run is settled, and each of these is one atomic step in a ledger:

fingerprint   a call -> its key, from its arguments in canonical form                    PUBLISH
job           the nouns: Submission, Job, Lease, State
answers       every answer a verb may give
ledger        the one door: validates, times, tells                                      RESERVE
execution     one run, top to bottom                                                     EXECUTE
run           what the running task sees: current_run()
heartbeat     renews this process's leases
settlement    what became of a run, and what follows by its policy; pure                 SETTLE
events        what happened, for whoever listens                                         OBSERVE
stores        memory, Redis and Valkey, PostgreSQL, all held to one contract
sql           effects in your SQL database                                               EFFECT
operations    jobs to look at and cancel, dead letters to revive, the audit of duplicates OPERATE
telemetry     what happened, as log lines and figures
webhooks      call-backs: signed, to public addresses only                               TELL
celery        the extension, the task class, what the worker's main process does
http          jobs over HTTP: a FastAPI service, or a router for yours
embedded      a private Valkey from a wheel, and all of `oncelery up`
cli           the command `oncelery`
testing       servers, clocks, failpoints and the conformance suite, for your tests too

Beside them: settings (from constructor, app and environment; spelling finds what a wrong name was meant to be), errors
(those that users meet), codec (JSON in and out), breaker (whether a peer answers), failpoints (where tests make a
process break).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from oncelery.errors import (
    ConfigurationError,
    DeliveryError,
    DuplicateTaskError,
    FingerprintError,
    JobBuriedError,
    JobCancelledError,
    LeaseLostError,
    LimitReachedError,
    OnceleryError,
    OutcomeUnknownError,
    PayloadMismatchError,
    ResultOmittedError,
    RevivalError,
    RowError,
    ScopeError,
    StoreUnavailableError,
    TooLargeError,
    WebhookTargetError,
    WebhookVerificationError,
)
from oncelery.fingerprint import TASK_ID, fingerprint
from oncelery.job import Quota
from oncelery.policy import Backoff, Policy

if TYPE_CHECKING:
    from oncelery.celery.extension import Oncelery
    from oncelery.celery.only_one import only_one
    from oncelery.celery.task import IdempotentTask
    from oncelery.run import current_run
    from oncelery.sql.insert_once import insert_once
    from oncelery.webhooks.signing import verify_webhook

__all__ = [
    "TASK_ID",
    "Backoff",
    "ConfigurationError",
    "DeliveryError",
    "DuplicateTaskError",
    "FingerprintError",
    "IdempotentTask",
    "JobBuriedError",
    "JobCancelledError",
    "LeaseLostError",
    "LimitReachedError",
    "Oncelery",
    "OnceleryError",
    "OutcomeUnknownError",
    "PayloadMismatchError",
    "Policy",
    "Quota",
    "ResultOmittedError",
    "RevivalError",
    "RowError",
    "ScopeError",
    "StoreUnavailableError",
    "TooLargeError",
    "WebhookTargetError",
    "WebhookVerificationError",
    "current_run",
    "fingerprint",
    "insert_once",
    "only_one",
    "verify_webhook",
]

_LAZY = {
    "Oncelery": "celery.extension",
    "IdempotentTask": "celery.task",
    "current_run": "run",
    "insert_once": "sql.insert_once",
    "only_one": "celery.only_one",
    "verify_webhook": "webhooks.signing",
}


def __getattr__(name: str) -> object:
    """Load what needs Celery when it is first asked for: importing the package loads neither it nor a driver."""
    if name not in _LAZY:
        raise AttributeError(f"module 'oncelery' has no attribute {name!r}")
    return getattr(import_module(f"oncelery.{_LAZY[name]}"), name)
