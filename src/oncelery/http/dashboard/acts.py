"""Cancel, revive, discard: what is said before, what came of it, and a line in the audit for each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, assert_never
from urllib.parse import quote_plus

import msgspec
from kombu.exceptions import OperationalError

from oncelery.answers import (
    Absent,
    Cancelled,
    Discarded,
    Existing,
    Finished,
    NotBuried,
    Requested,
    Resubmitted,
    Revived,
)
from oncelery.http.audit import audited, tell
from oncelery.http.auth import Caller
from oncelery.http.body import LARGEST
from oncelery.http.dashboard.desk import Desk, ElsewhereError, Shown
from oncelery.http.dashboard.pages import Asked
from oncelery.http.dashboard.rendering import written
from oncelery.http.dashboard.session import Form
from oncelery.http.problems import BROKER_UNAVAILABLE, INVALID_ARGUMENTS, INVALID_REQUEST, ProblemError
from oncelery.job import Job, JobSummary, State
from oncelery.operations.dead_letters import NO_SUCH_JOB, Fate, fate_after
from oncelery.operations.redaction import HIDDEN

#: What is said on a job's page after something was done to it.
NOTICES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "cancelled": "The job is cancelled.",
        "requested": "The job was asked to end; its run sees that at its next heartbeat at the latest.",
        "revived": "The dead letter is queued again.",
        "resubmitted": "These arguments make another key: this new job does the work, the dead letter is cancelled.",
        "discarded": "The dead letter is discarded: nothing of it will run.",
    }
)

#: How many dead letters are looked at, and how many are shown on one page.
READ_AT_MOST: Final = 1000
TO_A_PAGE: Final = 50

#: The longest text of arguments that is edited on a page, in bytes of the form.
LONGEST_ARGUMENTS: Final = LARGEST // 2

_PLACE: Final = re.compile("[0-9]{1,9}")


# Dead letters


def dead_letters(desk: Desk, caller: Caller, asked: Asked) -> Shown:
    """Show dead letters, by task and error."""
    scope = caller.within(asked.get("scope", ""))
    task, error = asked.get("task", ""), asked.get("error", "")
    found = _newest(desk, scope)
    groups = Counter((job.task, error_of(job)) for job in found)
    # By the store, so that the letters of one task hide no other's.
    of_task = _newest(desk, scope, task) if task else found
    chosen = [job for job in of_task if error in ("", error_of(job))]
    start = int(asked["from"]) if _PLACE.fullmatch(asked.get("from", "")) else 0
    return Shown(
        template="dead_letters.html",
        values={
            "groups": groups.most_common(),
            "jobs": chosen[start : start + TO_A_PAGE],
            "chosen": len(chosen),
            "found": len(found),
            "more": READ_AT_MOST in (len(found), len(of_task)),
            # Of one tenant's it is not known how many there are.
            "all": 0 if scope else desk.counts(caller).get(State.BURIED, 0),
            "start": start,
            "to_a_page": TO_A_PAGE,
            "error_of": error_of,
            "letter_of": letter_of,
            "asked": {"task": task, "error": error, "scope": asked.get("scope", "")},
        },
    )


def _newest(desk: Desk, scope: str, task: str = "") -> list[JobSummary]:
    return list(islice(desk.once.dead_letters.each(scope=scope, task=task, limit=200), READ_AT_MOST))


def error_of(job: JobSummary) -> str:
    """Tell in a word what became of a dead letter: its error's name, or why it was buried."""
    return job.error.type if job.error else job.reason


class _Arguments(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments as they are edited."""

    args: list[Any]
    kwargs: dict[str, Any]


# One job: what is said before


def ask(desk: Desk, caller: Caller, asked: Asked) -> Shown:
    """Ask whether to do this to a job, and tell what will happen then."""
    act, job = asked["act"], desk.job(asked.get("id", ""), caller)
    allowed = job.state.live if act == "cancel" else job.state is State.BURIED
    call = desk.call(job) if act == "revive" else None
    arguments = written({"args": list(call.args), "kwargs": call.kwargs}) if call else ""
    return Shown(
        template="ask.html" if allowed else "moved.html",
        values={
            "act": act,
            "job": job,
            "seen": seen(job),
            "arguments": arguments,
            # It is sent with the form, edited or not.
            "editable": len(quote_plus(arguments)) <= LONGEST_ARGUMENTS,
            "hidden": HIDDEN,
        },
        status=200 if allowed else 409,
    )


def seen(job: JobSummary) -> str:
    """Write down how a job stands, to know whether it has moved when the form comes back."""
    return f"{job.state} {job.fence}"


# One job: what is done


def act(desk: Desk, caller: Caller, asked: Asked, form: Form) -> Shown:
    """Do it, if the job still stands as it was shown; else tell how it stands."""
    verb, job = asked["act"], desk.job(_one(form, "id"), caller)
    if _one(form, "seen") != seen(job):
        tell(caller, verb, job, "refused, it has moved")
        return _moved(verb, job)
    match verb:
        case "cancel":
            return _cancel(desk, caller, job, terminate="terminate" in form)
        case "revive":
            return _revive(desk, caller, job, form)
        case _:
            return _discard(desk, caller, job)


def _cancel(desk: Desk, caller: Caller, job: Job, *, terminate: bool) -> Shown:
    reason = f"by {caller.name}" if caller.name else "from the dashboard"
    cancel = partial(desk.once.jobs.cancel, job.id, reason=reason, terminate=terminate)
    try:
        answer = audited(caller, "terminate" if terminate else "cancel", job, cancel)
    except OperationalError as error:
        again = f"oncelery -A yourapp cancel {job.id} --terminate"
        detail = f"The job is cancelled, but its process could not be told to end. Once the broker is back: {again}"
        raise ProblemError(BROKER_UNAVAILABLE, detail) from error
    match answer:
        case Cancelled():
            raise ElsewhereError(job.id, "cancelled")
        case Requested():
            raise ElsewhereError(job.id, "requested")
        case Finished(now):
            return _moved("cancel", now)
        case Absent():
            raise ElsewhereError(job.id)
        case _:
            assert_never(answer)


def _revive(desk: Desk, caller: Caller, job: Job, form: Form) -> Shown:
    corrected = _correction(form) if "edit" in form else {}
    how = "revive with other arguments" if corrected else "revive"
    answer = audited(caller, how, job, partial(desk.once.dead_letters.revive, job.id, **corrected))
    match answer:
        case Revived():
            raise ElsewhereError(job.id, "revived")
        case Resubmitted(other):
            raise ElsewhereError(other.id, "resubmitted")
        case Existing(other):
            return Shown(template="moved.html", values={"act": "revive", "job": job, "other": other}, status=409)
        case NotBuried(now):
            return _moved("revive", now)
        case Absent():
            raise ElsewhereError(job.id)
        case _:
            assert_never(answer)


def _discard(desk: Desk, caller: Caller, job: Job) -> Shown:
    answer = audited(caller, "discard", job, partial(desk.once.dead_letters.discard, job.id))
    match answer:
        case Discarded():
            raise ElsewhereError(job.id, "discarded")
        case NotBuried(now):
            return _moved("discard", now)
        case Absent():
            raise ElsewhereError(job.id)
        case _:
            assert_never(answer)


def _correction(form: Form) -> dict[str, Any]:
    """Read the arguments as they were edited; what is hidden in them is put back by whoever revives."""
    try:
        edited = msgspec.json.decode(_one(form, "arguments"), type=_Arguments)
    except msgspec.MsgspecError as error:
        raise ProblemError(INVALID_ARGUMENTS, f'Write {{"args": […], "kwargs": {{…}}}} in JSON: {error}') from error
    return {"args": edited.args, "kwargs": edited.kwargs}


# Many


def act_on_many(desk: Desk, caller: Caller, asked: Asked, form: Form) -> Shown:
    """Ask whether to do this to all that were chosen, and once that is confirmed do it to those that stand as shown."""
    verb = asked["act"]
    chosen = _chosen(desk, caller, form)
    if not any(chosen.values()):
        raise ProblemError(INVALID_REQUEST, "No dead letter was chosen, or there is none of them any more.")
    standing = [job for letter, job in chosen.items() if job and letter_of(job) == letter]
    if standing and "confirmed" not in form:
        by_task = Counter(job.task for job in standing).most_common()
        values = {"act": verb, "letters": list(chosen), "standing": len(standing), "by_task": by_task}
        return Shown(template="ask_many.html", values=values)
    fates = [_one_of_many(desk, caller, verb, letter, job) for letter, job in chosen.items()]
    return Shown(template="fates.html", values={"fates": fates, "count": Counter(fate for _, _, fate, _ in fates)})


def letter_of(job: JobSummary) -> str:
    """Name one among many in a form, and how it stood when it was shown."""
    return f"{seen(job)} {job.id}"


def _one_of_many(
    desk: Desk, caller: Caller, verb: str, letter: str, job: JobSummary | None
) -> tuple[str, str, str, str]:
    """Do it to one, and tell its id, its task, what became of it, and why."""
    if job is None:
        return letter.split(" ", 2)[-1], "", Fate.FAILED, NO_SUCH_JOB
    if letter_of(job) != letter:
        tell(caller, verb, job, "refused, it has moved")
        return job.id, job.task, Fate.FAILED, f"it has moved since it was shown: now it is {job.state}"
    letters = desk.once.dead_letters
    fate, why = fate_after(letters.revive if verb == "revive" else letters.discard, job.id)
    tell(caller, verb, job, fate)
    return job.id, job.task, fate, why


def _chosen(desk: Desk, caller: Caller, form: Form) -> dict[str, JobSummary | None]:
    """Give all that were chosen as they stand now; None for what is not there, or not the caller's to see."""
    if "all" not in form:
        letters = form.get("letter", [])[:READ_AT_MOST]
        found = {letter: desk.once.jobs.get(letter.split(" ", 2)[-1]) for letter in letters}
        return {letter: job if job and caller.sees(job.scope) else None for letter, job in found.items()}
    task, error = _one(form, "task"), _one(form, "error")
    buried = _newest(desk, caller.within(_one(form, "scope")), task)
    return {letter_of(job): job for job in buried if error in ("", error_of(job))}


# What they share


def _one(form: Form, name: str) -> str:
    return form.get(name, [""])[-1]


def _moved(verb: str, job: Job) -> Shown:
    return Shown(template="moved.html", values={"act": verb, "job": job}, status=409)
