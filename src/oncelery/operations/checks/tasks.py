"""Are the tasks declared so that they take effect once?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta

from oncelery.fingerprint import TASK_ID
from oncelery.operations.checks.check import Complaint, error, warning
from oncelery.operations.facts import Facts, TaskFacts
from oncelery.policy import Policy

#: Words in the name of a task that does something to the world.
EFFECTS = re.compile(
    r"(?:^|_)(bill|buy|capture|charge|deposit|email|invoice|mail|notify|order|pay|payment|payout|post|publish|purchase"
    r"|refund|send|ship|sms|transfer|webhook|withdraw)(?=_|$)"
)

#: What such a task calls.
EFFECTFUL_CALLS = re.compile(
    r"bulk_create|capture|charge|commit|patch|post|put_object|refund|send_?e?mail|send_message|upload_file"
)

#: Arguments that differ with each call, whatever the work: by their names, and by their types.
MOVING_NAMES = re.compile(
    r"(^|_)(now|timestamp|ts|uuid|guid|nonce)$|^(created|requested|sent|submitted)_at$"
    r"|^(request|trace|correlation|span)_?id$"
)
MOVING_TYPES = frozenset({"datetime", "datetime.datetime"})

#: A lease is renewed when a third of it has passed: one slow answer of the store must fit in there.
SHORTEST_LEASE = timedelta(seconds=5)
ROUND_TRIPS = 30

#: How long after the end of a job its worker may be found dead, and its message be delivered again, by any broker.
SHORTEST_HISTORY = timedelta(minutes=10)

#: What mends a call-back that is refused: a setting, or another URL.
NOTIFY_SETTINGS = {
    "webhook_secrets": 'Oncelery(app, webhook_secrets=["whsec_…"])',
    "allow_private": "Oncelery(app, allow_private=True)",
}
NOTIFY_URL = '@once.task(notify="https://…")  # or, inside your own network, Oncelery(app, allow_private=True)'


@error
def acks_late(facts: Facts) -> Iterator[Complaint]:
    """A message that is acknowledged before its run is not delivered again when the worker dies."""
    for task, _ in facts.guarded:
        if not task.acks_late:
            yield f"task {task.name} has acks_late = False", f"{_last(task)}.acks_late = True  # remove what sets it"


@error
def reject_on_worker_lost(facts: Facts) -> Iterator[Complaint]:
    """A message whose process was killed is acknowledged as a failure, instead of coming back."""
    for task, _ in facts.guarded:
        if not task.reject_on_worker_lost:
            yield (
                f"task {task.name} has reject_on_worker_lost = False",
                f"{_last(task)}.reject_on_worker_lost = True  # remove what sets it",
            )


@warning
def acks_on_failure(facts: Facts) -> Iterator[Complaint]:
    """The ledger has recorded the failure; that the broker then rejects the message as well tells of it twice."""
    for task, _ in facts.guarded:
        for name in ("acks_on_failure", "acks_on_timeout"):
            if not getattr(task, name):
                yield f"task {task.name} has {name} = False", f"app.conf.task_{name} = True"


@warning
def lease_too_short(facts: Facts) -> Iterator[Complaint]:
    """A lease that one slow answer or pause outlasts lapses under a living run, which is then run a second time."""
    least = max(SHORTEST_LEASE, facts.store.round_trip * ROUND_TRIPS)
    yield from _shorter(facts, "lease", least, enough=max(30, int(least.total_seconds())))


@error
def history_too_short(facts: Facts) -> Iterator[Complaint]:
    """A message that the broker delivers once more when its job is forgotten is a new job, and takes effect again."""
    least = max(facts.visibility_timeout or SHORTEST_HISTORY, SHORTEST_HISTORY)
    yield from _shorter(facts, "history", least, enough=int(2 * least.total_seconds()))


@error
def notify_refused(facts: Facts) -> Iterator[Complaint]:
    """A task whose call-back could not be sent cannot be submitted."""
    for task, _ in facts.guarded:
        if reason := task.notify_refused:
            # The reason names the setting that mends it, if one does. The URL is not shown: it may hold a secret.
            fix = next((line for setting, line in NOTIFY_SETTINGS.items() if setting in reason), NOTIFY_URL)
            yield f"the notify of task {task.name} is refused: {reason}", fix


@warning
def unguarded_effects(facts: Facts) -> Iterator[Complaint]:
    """A task that is not guarded takes effect as often as it is delivered, and never if its worker dies."""
    for task in facts.tasks:
        calls = sorted(filter(EFFECTFUL_CALLS.fullmatch, task.calls))
        signs = [*EFFECTS.findall(_last(task).lower()), *(f"{call}()" for call in calls)]
        if task.policy is None and not task.only_one and signs:
            yield f"task {task.name} looks effectful ({', '.join(signs)}) and is not guarded", "@once.task(key=...)"


@warning
def unstable_key(facts: Facts) -> Iterator[Complaint]:
    """An argument that differs with each call makes each of them another work: no duplicate is ever seen."""
    for task, policy in facts.guarded:
        if policy.key is not None:
            continue
        moving = [name for name, kind in task.counted.items() if MOVING_NAMES.search(name) or kind in MOVING_TYPES]
        if moving:
            named = ", ".join(f'"{name}"' for name in moving)
            yield (
                f"task {task.name} has no key, and its {' and '.join(moving)} is part of what makes calls the same",
                f"@once.task(ignore=({named},))",
            )


@warning
def beat_doubles(facts: Facts) -> Iterator[Complaint]:
    """Two beats, or one that is restarted at the wrong moment, send a periodic task twice."""
    by_name = {task.name: task for task in facts.tasks}
    for period in facts.schedule:
        task = by_name.get(period.task)
        if task and task.policy is None and not task.only_one:
            yield (
                f"beat sends {period.task} ({period.name!r}), which is neither guarded nor @only_one",
                "@app.task\n@only_one",
            )


@error
def beat_retention(facts: Facts) -> Iterator[Complaint]:
    """Within its retention a completed job answers for the next one, which is of the same key.

    A periodic task then runs once in its retention, not once in each period.
    """
    policies = {task.name: policy for task, policy in facts.guarded}
    for period in facts.schedule:
        policy = policies.get(period.task)
        # Beat's arguments are always the same; what a callable makes of them may not be.
        if policy is None or policy.key is TASK_ID or callable(policy.key):
            continue
        if period.every and policy.retention >= period.every:
            yield (
                f"beat sends {period.task} every {period.every}, and its retention is {policy.retention}",
                "@once.task(retention=0)  # or key=TASK_ID, or @only_one",
            )


@warning
def beat_unknown(facts: Facts) -> Iterator[Complaint]:
    """Workers drop a message of a task that they do not know: a periodic one never runs."""
    for period in facts.schedule:
        # It may be a task of another app, on the same broker.
        if not period.known and not any(period.task in (worker.knows or ()) for worker in facts.workers):
            yield (
                f"beat sends {period.task!r} ({period.name!r}), which is no task of the app",
                'app.conf.include = ["yourapp.tasks"]  # or correct its name in beat_schedule',
            )


CHECKS = (
    acks_late,
    reject_on_worker_lost,
    acks_on_failure,
    lease_too_short,
    history_too_short,
    notify_refused,
    unguarded_effects,
    unstable_key,
    beat_doubles,
    beat_retention,
    beat_unknown,
)


def _last(task: TaskFacts) -> str:
    return task.name.rpartition(".")[2]


def _shorter(facts: Facts, option: str, least: timedelta, *, enough: int) -> Iterator[Complaint]:
    """Complain of a time that is the app's once, and of a task's own by its name."""
    usual = getattr(Policy.of(**facts.settings.policy), option)
    spans = {task.name: getattr(policy, option) for task, policy in facts.guarded}
    if usual < least and usual in spans.values():
        yield f"the app has a {option} of {usual.total_seconds():g} s", f"Oncelery(app, {option}={enough})"
    for name, span in spans.items():
        if span < least and span != usual:
            yield f"task {name} has a {option} of {span.total_seconds():g} s", f"@once.task({option}={enough})"
