"""What all routes stand on: the extension, who is let in, and how jobs are found and shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote

from fastapi import Depends, Path, Request
from fastapi.responses import Response

from oncelery.codec import encode
from oncelery.errors import ConfigurationError
from oncelery.http.auth import Access, Caller, Role
from oncelery.http.problems import unknown_job
from oncelery.http.threads import Peers
from oncelery.http.views import version_of, view_of
from oncelery.http.watching import Watcher
from oncelery.job import Job

if TYPE_CHECKING:
    from oncelery.celery.extension import Oncelery
    from oncelery.celery.task import IdempotentTask

#: The longest that `?wait=` waits, in seconds; proxies give up after a minute.
LONGEST_WAIT: Final = 30

JobId = Annotated[str, Path(min_length=1, max_length=255, pattern=r"^[^\x00/]+$", description="The job's id")]


class Service:
    """The parts of one service, made before its routes."""

    def __init__(
        self,
        once: Oncelery,
        *,
        tasks: Iterable[IdempotentTask | str],
        access: Access,
        require_key: bool,
        largest_body: int,
    ) -> None:
        self.once = once
        self.access = access
        #: For routes: who calls, if they may do so much.
        self.reads, self.submits, self.operates = (
            Depends(access(role)) for role in (Role.READ, Role.SUBMIT, Role.OPERATE)
        )
        #: Whether a submission must have an Idempotency-Key.
        self.require_key = require_key
        self.largest_body = largest_body
        #: What may be submitted, by name.
        self.tasks: Mapping[str, IdempotentTask] = {task.name: task for task in map(self._guarded, tasks)}
        self.peers = Peers.of(once)
        self.watcher = Watcher(once.jobs.get, store=self.peers.store)

    async def job(self, job_id: str, caller: Caller) -> Job:
        """Find a job.

        Raises:
            ProblemError: there is none, or it is not the caller's to see, which is the same.
        """
        return self.seen_by(caller, await self.peers.read(self.once.jobs.get, job_id), job_id)

    def seen_by(self, caller: Caller, job: Job | None, job_id: str) -> Job:
        """Answer the job, if the caller may see it; raise as if there were none, if not."""
        if job is None or not caller.sees(job.scope):
            raise unknown_job(job_id)
        return job

    def _guarded(self, task: IdempotentTask | str) -> IdempotentTask:
        found: Any = self.once.app.tasks.get(task) if isinstance(task, str) else task
        if getattr(found, "oncelery", None) is not self.once:
            raise ConfigurationError(
                f"{getattr(found, 'name', task)!r} is no guarded task of this app: declare it with @once.task(...)"
            )
        guarded: IdempotentTask = found
        return guarded


def show_job(once: Oncelery, job: Job, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Answer with a job, and its version as ETag."""
    written = encode(view_of(job, once.jobs.result(job)))
    tagged = {"ETag": f'"{version_of(written)}"', **(headers or {})}
    return Response(written, status, tagged, "application/json")


def answer_json(value: object, *, status: int = 200) -> Response:
    """Answer with what can be written as JSON."""
    return Response(encode(value), status, media_type="application/json")


def jobs_url(request: Request, steps: int) -> str:
    """Tell where jobs are found, from a request that is so many steps below."""
    path: str = request.scope["path"]
    for _ in range(steps):
        path = path.rpartition("/")[0]
    # As a header may have it: the app that this is mounted in may take anything in its part of the path.
    return quote(path, safe="/:@!$&'()*+,;=~")
