"""The errors that users of Oncelery may meet: one root, each with its data and its remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import timedelta

    from oncelery.job import State


class OnceleryError(Exception):
    """The root of all errors raised by Oncelery; carries what is known of the job."""

    def __init__(
        self,
        message: str = "",
        *,
        key: str | None = None,
        job_id: str | None = None,
        state: State | None = None,
        retry_after: timedelta | None = None,
    ) -> None:
        super().__init__(message or type(self).__doc__)
        self.key = key
        self.job_id = job_id
        self.state = state
        self.retry_after = retry_after


class DuplicateTaskError(OnceleryError):
    """The same work is queued or running already. Follow that job by its `job_id`, or use `on_duplicate="join"`."""

    @property
    def task_id(self) -> str | None:
        """The id of that job, by the name it has in Celery."""
        return self.job_id


class PayloadMismatchError(OnceleryError):
    """Same idempotency key, different payload. Use a new key, or name what does not count with `ignore=`."""


class IdTakenError(PayloadMismatchError):
    """The task id is that of another call. Send this call under another `task_id`."""


class LeaseLostError(OnceleryError):
    """Another run has taken this job over. Stop: nothing this run does is recorded any more."""


class JobCancelledError(OnceleryError):
    """The job was cancelled. Clean up and let this error pass."""


class OutcomeUnknownError(OnceleryError):
    """A run ended between its effect and the record of it. Verify the effect, then revive or discard the job."""


class JobBuriedError(OnceleryError):
    """The job is a dead letter. Look at its error, then revive or discard it."""


class ResultOmittedError(OnceleryError):
    """The job is done, but its result was too large or not serialisable, and is gone. Return a reference instead."""


class StoreUnavailableError(OnceleryError):
    """The ledger's store did not answer. Nothing was decided; the same call may safely be made again."""


class RevivalError(OnceleryError, TypeError):
    """A dead letter's call cannot be read, or does not fit its task. Correct its arguments, or discard it."""


class FingerprintError(OnceleryError, ValueError):
    """An argument cannot be part of a key. Leave it out with `ignore=`, or choose what counts with `key=`."""


class ScopeError(OnceleryError, ValueError):
    """The arguments name another tenant than the caller is. Submit for your own, or with a key of theirs."""


class LimitReachedError(OnceleryError):
    """The tenant has as many jobs, or has submitted as many this minute, as it may. Wait for `retry_after`."""


class WebhookTargetError(OnceleryError, ValueError):
    """A URL that no call-back may be sent to: https and public addresses only, unless `allow_private=True`."""


class WebhookVerificationError(OnceleryError, ValueError):
    """A call-back that is not ours, or an old one. Answer 400 and do nothing of what it says."""


class DeliveryError(OnceleryError):
    """A call-back was not taken. It is sent again, and in the end kept as a dead letter."""


class RowError(OnceleryError, ValueError):
    """A row of a batch is unlike the others or has no key; nothing was inserted. The message says which row."""


class TooLargeError(OnceleryError, ValueError):
    """A body, result or step is over its limit. Keep it elsewhere and pass a reference."""


class ConfigurationError(OnceleryError, ValueError):
    """A setting is wrong or missing; the message names it and what to write instead."""
