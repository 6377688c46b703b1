"""What the product is for: 200 jobs, 40 of them sent twice, under kill -9. None lost, none recorded twice."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import psutil
import pytest

from faults.scene import SOON, Scene
from faults.shop import receipt
from faults.workers import Worker
from oncelery.embedded.process import eventually
from oncelery.job import State

#: One job in so many is sent twice back to back, and another one again when all have ended.
TWICE = 10


def kill_a_child(worker: Worker, chance: random.Random) -> None:
    # It may just have ended; the worker then has another.
    with suppress(psutil.NoSuchProcess):
        chance.choice(worker.children()).kill()


def kill_the_worker(worker: Worker, _: random.Random) -> None:
    worker.kill()
    worker.restart()


@pytest.mark.parametrize(
    ("count", "kill", "kills"),
    [
        (200, kill_a_child, 10),
        (200, kill_the_worker, 3),
        pytest.param(3_000, kill_a_child, 300, marks=pytest.mark.prove),
        pytest.param(2_000, kill_the_worker, 30, marks=pytest.mark.prove),
    ],
)
def test_jobs_of_which_a_fifth_is_sent_twice_take_effect_once_each_while_workers_are_killed(
    scene: Scene, count: int, kill: Callable[[Worker, random.Random], None], kills: int
) -> None:
    chance = random.Random(f"{kills} kills on {scene.broker.kind}")
    # Half of them take effect inside a step.
    tasks = {f"order-{number}": ("charge", "charge_in_step")[number % 2] for number in range(count)}
    seconds = {order: chance.uniform(0.1, 0.2) for order in tasks}
    at_once, later = list(tasks)[::TWICE], list(tasks)[1::TWICE]

    def send(order: str) -> str:
        sent: str = getattr(scene.shop, tasks[order]).delay(order, seconds=seconds[order]).id
        return sent

    worker = scene.start(concurrency=4)
    jobs = {order: send(order) for order in tasks for _ in range(1 + (order in at_once))}
    for effects in sorted(chance.sample(range(5, count - 20), kills)):
        assert eventually(lambda: scene.journal.count() >= effects, SOON)  # noqa: B023 - called at once
        kill(worker, chance)
    assert eventually(lambda: scene.all_are(State.COMPLETED, jobs.values()), SOON)
    assert {order: send(order) for order in later}.items() <= jobs.items()

    assert all(scene.returned(job_id, receipt(order)) for order, job_id in jobs.items())
    verdict = scene.journal.verdict(list(tasks))
    assert not verdict.lost
    assert not verdict.unexpected
    commits = Counter(scene.commits())
    assert commits <= Counter(jobs.values())
    # A kill between a commit and its line in the journal leaves that line out; the ledger has it.
    assert commits.total() >= count - 4 * kills
    # What a kill between an effect and its record repeats, as no guard can prevent.
    cut_short = [order for order, job_id in jobs.items() if scene.job(job_id).past]
    assert set(verdict.duplicated) <= set(cut_short)
    assert cut_short
