"""What a call-back says: which job has ended, and how."""

from __future__ import annotations

import msgspec

from oncelery.job import Job, State

#: How many bytes the result in a webhook has at most; one with a larger result says so, and the receiver asks for it.
MOST_BYTES = 256 << 10


def ending_of(state: State, fence: int) -> str:
    """Name one end of a job: a dead letter that is revived comes to another one."""
    return f"{state}.{fence}"


def event_of(job: Job, result: bytes | None) -> bytes:
    """Write the event of a finished job, with its result if that was kept and is JSON of a bearable size."""
    about: dict[str, object] = {
        "id": job.id,
        "task": job.task,
        "scope": job.scope,
        "state": job.state,
        "attempts": job.attempt,
        "created_at": job.created_at,
        "settled_at": job.settled_at or job.changed_at,
    }
    if job.state is not State.COMPLETED:
        about["reason"] = job.reason
    if job.error:
        # Not its traceback: that is for those who run the service.
        about["error"] = {"type": job.error.type, "message": job.error.message}
    if job.result_omitted:
        about["result_omitted"] = job.result_omitted
    elif result and len(result) > MOST_BYTES:
        about["result_omitted"] = (
            f"the result has {len(result):,} bytes, a webhook takes {MOST_BYTES:,}: read it with GET /jobs/{job.id}"
        )
    elif result:
        about["result"] = msgspec.Raw(result)
    return msgspec.json.encode(
        {"type": f"job.{job.state}", "timestamp": job.settled_at or job.changed_at, "data": about}
    )
