"""What the shell tells of jobs, dead letters and duplicates, and does to them, on a real ledger."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import Result
from kombu.exceptions import OperationalError
from msgspec.structs import replace

from cli.desk import Desk
from oncelery.answers import Granted
from oncelery.fingerprint import fingerprint
from oncelery.job import Cause, Progress, Reason, Submission
from oncelery.policy import Policy
from oncelery.settlement import Bury, Cancel, Complete, Release, Settlement


def test_jobs_are_listed_by_state_task_scope_and_time(desk: Desk) -> None:
    running = desk.begin("a")
    desk.ledger.record(running.lease, progress=Progress(done=3, total=4, stage="packing"))
    desk.submit("b")
    desk.submit("b")

    listed = desk.run("jobs").stdout.splitlines()

    assert [line.split()[0] for line in listed] == ["ID", "job-b", "job-a"]
    assert "75% packing" in listed[2]
    assert [job["id"] for job in desk.json("jobs", "--state", "queued")["jobs"]] == ["job-b"]
    assert desk.json("jobs", "--task", "shop.other") == {"jobs": [], "cursor": ""}
    assert len(desk.json("jobs", "--scope", "acme", "--since", "1h")["jobs"]) == 2
    assert desk.json("jobs", "--since", (datetime.now(UTC) + timedelta(days=1)).isoformat())["jobs"] == []


@pytest.mark.parametrize(
    ("settlement", "told"),
    [(Complete(result=b"1"), False), (Cancel(reason="late"), False), (Bury(reason=Reason.FAILED), True)],
    ids=["completed", "cancelled", "buried"],
)
def test_a_job_that_has_ended_makes_no_progress_and_a_dead_letter_tells_where_it_came_to(
    desk: Desk,
    settlement: Settlement,
    told: bool,  # noqa: FBT001
) -> None:
    granted = desk.begin("a")
    desk.ledger.record(granted.lease, progress=Progress(done=4, total=5, stage="charging"))
    desk.ledger.settle(granted.lease, settlement)

    assert ("80% charging" in desk.run("jobs").stdout) is told


@pytest.mark.parametrize(
    ("word", "ids"),
    [
        ("jobs", lambda told: [job["id"] for job in told["jobs"]]),
        ("dead-letters", lambda told: [job["id"] for job in told["dead_letters"]]),
        ("duplicates", lambda told: [each["job_id"] for each in told["duplicates"]]),
    ],
)
def test_pages_follow_each_other(desk: Desk, word: str, ids: Callable[[Any], list[str]]) -> None:
    for order in "abc":
        desk.ledger.reserve(replace(desk.submit(order), id=f"duplicate-{order}"))
        if word == "dead-letters":
            desk.bury(order)

    first = desk.run(word, "--limit", "2").stdout
    cursor = re.search(r"more: --cursor (\S+)", first)

    assert cursor
    assert "job-c" in first
    last = desk.json(word, "--cursor", cursor[1])
    assert (ids(last), last["cursor"]) == (["job-a"], "")
    assert "more:" not in desk.run(word, "--cursor", cursor[1]).stdout


def test_jobs_are_watched_until_ctrl_c(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter(["first", "second"])

    def wait(_seconds: float) -> None:
        desk.submit(next(looks, "") or interrupt())

    def interrupt() -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("oncelery.cli.jobs.time.sleep", wait)

    watched = desk.run("jobs", "--watch")

    assert watched.exit_code == 0
    nothing, first, second = watched.stdout.removesuffix("\n").split("\n\n")  # a pipe gets one after the other
    assert nothing == f"no jobs in the namespace '{desk.namespace}'"
    assert ("job-first" in first, "job-second" in first, "job-second" in second) == (True, False, True)


def test_a_job_is_shown_with_its_arguments_and_its_result(desk: Desk) -> None:
    granted = desk.begin("a")
    queued = desk.json("show", "job-a")
    desk.ledger.record(granted.lease, step=("caf\udce9.txt", b"1"))
    desk.ledger.settle(granted.lease, Complete(result=b'{"charged": 500}'))

    completed = desk.json("show", "job-a")
    shown = desk.run("show", "job-a").stdout

    assert (queued["args"], queued["kwargs"]) == (["[redacted]"], {"tenant": "acme"})
    assert (completed["state"], completed["result"]) == ("completed", {"charged": 500})
    assert '{"charged": 500}' in shown
    assert "worker-1" in shown
    assert completed["steps"] == [r"caf\udce9.txt"]
    assert r"caf\udce9.txt" in shown.replace("\\\\", "\\")
    assert re.search(r"^args +no longer kept", shown, re.MULTILINE)
    assert "no longer kept" not in desk.run("show", desk.bury("b")).stdout


def test_a_job_whose_result_was_not_kept_is_shown_with_the_reason(desk: Desk) -> None:
    desk.ledger.settle(
        desk.begin("a").lease, Complete(result=b"", replaced_by=b"{}", omitted="the result is too large")
    )

    shown = desk.json("show", "job-a")

    assert shown["result_omitted"] == "the result is too large"
    assert not {"result", "replaced_by"} & shown.keys()
    assert re.search(r"^result_omitted +the result is too large$", desk.run("show", "job-a").stdout, re.MULTILINE)


def test_secrets_are_hidden_and_without_an_app_so_is_what_might_be_one(desk: Desk, app: Callable[..., Result]) -> None:
    body = json.dumps(["shop.charge", ["o-1"], {"tenant": "acme", "card": {"cvv": "123"}}, {}]).encode()
    desk.ledger.reserve(Submission(id="job", key="0" * 64, task="shop.charge", body=body))

    known, unknown = json.loads(app("show", "job", "--json").stdout), desk.json("show", "job")

    assert known["kwargs"] == unknown["kwargs"] == {"tenant": "acme", "card": {"cvv": "[redacted]"}}
    assert (known["args"], unknown["args"]) == (["o-1"], ["[redacted]"])


def test_without_an_app_secrets_of_a_result_are_hidden(desk: Desk) -> None:
    desk.ledger.settle(desk.begin("a").lease, Complete(result=b'{"charged": 500, "card": {"cvv": "123"}}'))

    assert desk.json("show", "job-a")["result"] == {"charged": 500, "card": {"cvv": "[redacted]"}}


def test_a_dead_letter_is_shown_with_its_error(desk: Desk) -> None:
    shown = desk.run("show", desk.bury("a")).stdout

    assert "CardRefused: no money" in shown
    assert "Traceback: line 1" in shown


def test_runs_are_numbered_through_a_revival_and_a_handback(desk: Desk) -> None:
    desk.bury("a")
    desk.ledger.revive("job-a")
    desk.ledger.settle(desk.begin("a").lease, Release(cause=Cause.HANDBACK))
    desk.begin("a")

    _, earlier = desk.run("show", "job-a").stdout.split("earlier runs\n")

    assert [line.split()[0] for line in earlier.splitlines()] == ["RUN", "1", "2"]
    assert [run["number"] for run in desk.json("show", "job-a")["past"]] == [1, 1]  # attempts, as they are counted


def test_what_is_not_json_is_not_opened(desk: Desk) -> None:
    offer = Submission(id="odd", key="0" * 64, task="shop.odd", body=b"\0application/x-python-serialize\nbinary\nX")
    desk.ledger.reserve(offer)

    assert desk.json("show", "odd")["id"] == "odd"
    assert "args" not in desk.json("show", "odd")


def test_cancelling_tells_what_became_of_each_job(desk: Desk) -> None:
    desk.submit("queued")
    desk.begin("running")
    desk.bury("buried")

    ran = desk.run("cancel", "job-queued", "job-running", "job-buried", "job-none", "--reason", "a mistake", "--json")

    assert json.loads(ran.stdout) == {
        "job-queued": "cancelled",
        "job-running": "asked to end",
        "job-buried": "too late: buried",
        "job-none": "there is no such job: it never was, or its history is over",
    }
    assert ran.exit_code == 1
    assert desk.json("show", "job-queued")["reason"] == "a mistake"
    assert desk.run("cancel", "job-queued").exit_code == 0


@pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")
def test_terminating_needs_the_app(desk: Desk, app: Callable[..., Result]) -> None:
    desk.begin("a")

    assert "needs your app" in desk.run("cancel", "job-a", "--terminate").output
    assert app("cancel", "job-a", "--terminate").stdout == "job-a  cancelled\n"
    assert desk.state("a") == "cancelled"


def test_jobs_whose_processes_cannot_be_told_are_named_and_cancelled_all_the_same(
    desk: Desk, app: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise OperationalError

    desk.begin("a")
    desk.begin("b")
    monkeypatch.setattr("celery.app.control.Control.revoke", away)

    ran = app("cancel", "job-a", "job-none", "job-b", "--terminate", "--json")

    told = json.loads(ran.stdout)
    assert ran.exit_code == 1
    assert told["job-a"] == told["job-b"]
    assert "cancelled, but" in told["job-a"]
    assert "no such job" in told["job-none"]
    assert (desk.state("a"), desk.state("b")) == ("cancelled", "cancelled")


def test_dead_letters_are_listed_revived_and_discarded(desk: Desk, app: Callable[..., Result]) -> None:
    first, second = desk.bury("a"), desk.bury("b")

    listed = desk.run("dead-letters").stdout
    assert "CardRefused: no money" in listed
    assert len(desk.json("dead-letters", "--task", "shop.charge")["dead_letters"]) == 2

    assert app("dead-letters", "revive", first, "--dry-run").stdout == f"{first}  would be revived\n"
    assert desk.state("a") == "buried"
    assert json.loads(app("dead-letters", "revive", first, "--json").stdout) == {first: {"fate": "revived", "why": ""}}

    assert desk.run("dead-letters", "discard", second).stdout == f"{second}  discarded\n"
    again = desk.run("dead-letters", "discard", second, "job-none")
    assert again.exit_code == 1
    assert again.stdout.splitlines() == [
        f"{second}  failed  it is cancelled",
        "job-none  failed  there is no such job: it never was, or its history is over",
    ]


def test_corrected_arguments_with_a_tag_of_the_broker_s_json_are_refused(
    desk: Desk, app: Callable[..., Result]
) -> None:
    letter = desk.bury("a")

    refused = app("dead-letters", "revive", letter, "--args", '[{"__type__": "bytes", "__value__": "a"}]')

    assert refused.exit_code == 1
    assert "'__type__' cannot be a name in an argument" in refused.stdout
    assert desk.state("a") == "buried"


def test_a_correction_that_makes_another_key_says_which_job_does_the_work(
    desk: Desk, app: Callable[..., Result]
) -> None:
    letter = desk.bury("a")
    why = "the arguments make another key"

    rehearsed = app("dead-letters", "revive", letter, "--args", '["z"]', "--dry-run")
    assert rehearsed.stdout == f"{letter}  would be resubmitted  as a new job: {why}\n"
    assert desk.state("a") == "buried"

    ran = app("dead-letters", "revive", letter, "--args", '["z"]', "--json")
    told = json.loads(ran.stdout)[letter]
    job_id = told["why"].removeprefix("as job ").removesuffix(f": {why}")

    assert (ran.exit_code, told["fate"]) == (0, "resubmitted")
    assert json.loads(app("show", job_id, "--json").stdout)["args"] == ["z"]
    assert json.loads(app("show", letter, "--json").stdout)["reason"] == f"revived as {job_id}"


def test_a_dry_run_of_one_tells_what_becomes_of_that_one(desk: Desk, app: Callable[..., Result]) -> None:
    older = desk.bury("a")
    body = b'["shop.charge", ["a"], {}, {}]'
    newer = Submission(id="newer", key=fingerprint("shop.charge", {"order": "a"}), task="shop.charge", body=body)
    granted = desk.ledger.begin(newer, Policy())
    assert isinstance(granted, Granted)
    desk.ledger.settle(granted.lease, Bury(reason=Reason.FAILED))

    rehearsed = app("dead-letters", "revive", older, "--dry-run")

    assert rehearsed.stdout == f"{older}  would be revived\n"
    assert app("dead-letters", "revive", older).stdout == f"{older}  revived\n"


def test_many_dead_letters_are_revived_at_once_and_what_is_superseded_stays(
    desk: Desk, app: Callable[..., Result]
) -> None:
    first, second = desk.bury("a"), desk.bury("b")
    desk.ledger.reserve(
        Submission(id="newer", key=fingerprint("shop.charge", {"order": "b"}), task="shop.charge", body=b"[]")
    )

    ran = app("dead-letters", "revive", "--all", "--task", "shop.charge", "--json")

    told = json.loads(ran.stdout)
    assert (told[first]["fate"], told[second]["fate"]) == ("revived", "superseded")
    assert ran.exit_code == 1
    assert (desk.state("a"), desk.state("b")) == ("queued", "buried")


def test_many_dead_letters_are_discarded_at_once_after_a_dry_run(desk: Desk) -> None:
    letter = desk.bury("a")
    offer = Submission(id="other", key="0" * 64, task="shop.ship", body=b"[]")
    granted = desk.ledger.begin(offer, Policy())
    assert isinstance(granted, Granted)
    desk.ledger.settle(granted.lease, Bury(reason=Reason.FAILED))
    chosen = ("dead-letters", "discard", "--all", "--task", "shop.charge", "--scope", "acme", "--since", "1h")

    tried = [desk.run(*chosen, "--dry-run"), desk.run("dead-letters", "discard", letter, "--dry-run")]
    untouched = desk.state("a")
    done = desk.run(*chosen)

    assert [ran.stdout for ran in tried] == [f"{letter}  would be discarded\n"] * 2
    assert (untouched, done.stdout, desk.state("a")) == ("buried", f"{letter}  discarded\n", "cancelled")
    assert [each["id"] for each in desk.json("dead-letters")["dead_letters"]] == ["other"]
    assert {ran.exit_code for ran in (*tried, done)} == {0}


@pytest.mark.parametrize(
    "words",
    [
        ["dead-letters", "revive"],
        ["dead-letters", "revive", "x", "--all"],
        ["dead-letters", "revive", "x", "y", "--args", "[]"],
        ["dead-letters", "revive", "x", "--kwargs", "[]"],
        ["dead-letters", "revive", "x", "--task", "shop.charge"],
        ["dead-letters", "discard"],
        ["dead-letters", "discard", "x", "--all"],
        ["dead-letters", "discard", "--task", "shop.charge"],
        ["dead-letters", "discard", "x", "--scope", "acme"],
        ["dead-letters", "--task", "shop.charge", "discard", "--all"],
        ["dead-letters", "--limit", "5", "discard", "--all"],
        ["jobs", "--state", "lost"],
        ["jobs", "--since", "yesterday"],
        ["jobs", "--since", "999999d"],
        ["jobs", "--cursor", "zzz"],
        ["jobs", "--watch", "--cursor", "zzz"],
        ["dead-letters", "--cursor", "zzz"],
        ["duplicates", "--cursor", "zzz"],
        ["duplicates", "--since", "1h"],
        ["cancel"],
        ["doctor", "--ignore", "nonsense"],
    ],
)
def test_wrong_usage_is_told_with_the_right_one(desk: Desk, words: list[str]) -> None:
    ran = desk.run(*words)

    assert ran.exit_code == 2
    assert "Usage:" in ran.output


def test_duplicates_are_listed_and_counted(desk: Desk) -> None:
    desk.submit("a")
    nothing = f"no duplicates in the namespace '{desk.namespace}'\n"
    assert desk.run("duplicates").stdout == nothing
    desk.ledger.reserve(
        Submission(
            id="b", key=fingerprint("shop.charge", {"order": "a"}), task="shop.charge", body=b"", caller="someone"
        )
    )

    (listed,) = desk.json("duplicates", "--task", "shop.charge")["duplicates"]
    (counted,) = desk.json("duplicates", "--counts")["duplicates"]

    assert (listed["answer"], listed["caller"], listed["job_id"]) == ("joined", "someone", "job-a")
    assert counted["count"] == 1
    assert "joined" in desk.run("duplicates").stdout
    assert "joined" in desk.run("duplicates", "--counts", "--since", "1h").stdout


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["jobs", "--scope", "beta"], "such jobs"),
        (["jobs", "--state", "buried", "--limit", "1"], "such jobs"),
        (["dead-letters", "--limit", "1"], "dead letters"),
        (["dead-letters", "--since", "1h"], "such dead letters"),
        (["dead-letters", "discard", "--all"], "dead letters"),
        (["dead-letters", "discard", "--all", "--scope", "beta"], "such dead letters"),
        (["duplicates", "--scope", "beta"], "such duplicates"),
        (["duplicates", "--counts"], "such duplicates"),  # in the last 24 hours
        (["jobs", "--task", "charge"], "such jobs"),  # nobody here knows the tasks
    ],
)
def test_a_list_that_was_narrowed_down_says_nothing_of_what_else_there_is(
    desk: Desk, words: list[str], what: str
) -> None:
    desk.submit("a")

    assert desk.run(*words).stdout == f"no {what} in the namespace '{desk.namespace}'\n"


@pytest.mark.parametrize(
    ("words", "asked_back"),
    [
        (["jobs", "--task", "charge"], " (did you mean shop.charge?)"),
        (["dead-letters", "--task", "shop.chrage"], " (did you mean shop.charge?)"),
        (["dead-letters", "revive", "--all", "--task", "charge"], " (did you mean shop.charge?)"),
        (["duplicates", "--task", "charge"], " (did you mean shop.charge?)"),
        (["dead-letters", "--task", "shop.charge"], ""),
        (["jobs", "--task", "zzz"], ""),
        (["jobs", "--scope", "beta"], ""),
    ],
)
def test_a_task_that_the_app_has_not_is_told_with_the_one_that_was_meant(
    desk: Desk, app: Callable[..., Result], words: list[str], asked_back: str
) -> None:
    desk.submit("a")

    assert app(*words).stdout.endswith(f" in the namespace '{desk.namespace}'{asked_back}\n")
