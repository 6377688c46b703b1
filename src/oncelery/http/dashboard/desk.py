"""What all pages stand on: the extension, what is known of its surroundings, and who may see what."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from inspect import Parameter
from typing import TYPE_CHECKING, Any, Final

from oncelery.http.auth import Access, Caller
from oncelery.http.dashboard.figures import Lately, Pulse
from oncelery.http.problems import unknown_job
from oncelery.http.threads import Peers
from oncelery.http.views import plain
from oncelery.job import Job, State
from oncelery.operations.jobs import Call
from oncelery.policy import Policy

if TYPE_CHECKING:
    from oncelery.celery.extension import Oncelery
    from oncelery.operations.doctor import Finding

_logger = logging.getLogger("oncelery")

#: How long workers are waited for, in seconds.
PATIENCE: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A page: its template, and what stands in it."""

    template: str
    values: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200


class ElsewhereError(Exception):
    """What was asked for has a page of its own."""

    def __init__(self, job_id: str, notice: str = "") -> None:
        super().__init__(job_id)
        self.job_id = job_id
        #: What to say there: a key of `acts.NOTICES`.
        self.notice = notice


class Desk:
    """The parts of one dashboard."""

    def __init__(self, once: Oncelery, *, access: Access, api: str) -> None:
        self.once = once
        self.access = access
        self.peers = Peers.of(once)
        #: Where the JSON API is mounted on the same host.
        self.api = api.rstrip("/")
        self.pulse = Pulse(once)
        #: The names of workers that answer, and whether the broker does.
        self.workers: Lately[frozenset[str]] = Lately(self._ping, every=5)
        self.broker: Lately[str] = Lately(self.peers.broker.looked, every=5)
        self.findings: Lately[tuple[Finding, ...]] = Lately(self._examine, every=60)

    def job(self, job_id: str, caller: Caller) -> Job:
        """Find a job that the caller may see.

        Raises:
            ProblemError: there is none, or it is not the caller's to see, which is the same.
        """
        job = self.once.jobs.get(job_id)
        if job is None or not caller.sees(job.scope):
            raise unknown_job(job_id)
        return job

    def call(self, job: Job) -> Call | None:
        """Read what the task was called with, without its secrets, in JSON's types."""
        call = self.once.jobs.call(job)
        return call and Call(tuple(plain(call.args)), plain(call.kwargs))

    def named(self, job: Job, call: Call) -> dict[str, Any]:
        """Give a call by the names of what it was given, where they are known here."""
        names = self.parameters(job.task)
        rest = list(call.args[len(names) :])
        return {**dict(zip(names, call.args, strict=False)), **({"*args": rest} if rest else {}), **call.kwargs}

    def hidden(self, value: object) -> Any:  # noqa: ANN401 - any JSON
        """Show a value of a task without what is secret by its name."""
        return self.once.reading.shown("", (), {"value": plain(value)}).kwargs["value"]

    def parameters(self, task: str) -> list[str]:
        """Name what the task takes by place, where it is known here."""
        found: Any = self.once.app.tasks.get(task)
        # By its signature: what runs may be wrapped, by `autoretry_for` or by `@only_one`.
        parameters = inspect.signature(found.run).parameters.values() if found else ()
        return [each.name for each in parameters if each.kind is Parameter.POSITIONAL_OR_KEYWORD]

    def policy(self, task: str) -> Policy | None:
        """Give a task's policy, where it is known here."""
        return getattr(self.once.app.tasks.get(task), "policy", None)

    def lease(self, task: str) -> timedelta | None:
        """Tell for how long a task's lease is renewed each time."""
        policy = self.policy(task)
        return policy.lease if policy else None

    def guarded(self) -> dict[str, Policy]:
        """Name the guarded tasks that are known here, with their policies."""
        policies = {name: self.policy(name) for name in sorted(self.once.app.tasks)}
        return {name: policy for name, policy in policies.items() if policy}

    def counts(self, caller: Caller) -> Mapping[State, int]:
        """Count jobs by state; nothing for a caller who may not know of all."""
        return {} if caller.scope else self.pulse.tally().states

    def _ping(self) -> frozenset[str]:
        if self.peers.broker.looked():
            return frozenset()
        try:
            return frozenset(self.once.app.control.inspect(timeout=PATIENCE).ping() or ())
        except Exception as error:  # noqa: BLE001 - of whichever transport: none has answered
            _logger.info("no worker could be asked: %s", error)
            return frozenset()

    def _examine(self) -> tuple[Finding, ...]:
        try:
            return self.once.doctor()
        except Exception:
            _logger.exception("the doctor could not be asked")
            return ()
