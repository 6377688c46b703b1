"""A queue that is longer than the sweeper's patience: what waits in it is old, not lost."""

from __future__ import annotations

from faults.scene import SOON, Scene
from faults.shop import GRACE_VARIABLE
from oncelery.embedded.process import eventually
from oncelery.job import State

#: Jobs, and what each takes: the last one waits for many times the grace.
BACKLOG, SECONDS, GRACE = 300, 0.01, 0.5


def test_a_long_backlog_is_not_published_again(scene: Scene) -> None:
    jobs = [scene.shop.charge.delay(f"order-{number}", seconds=SECONDS).id for number in range(BACKLOG)]

    scene.start(concurrency=1, settings={"oncelery_sweep_every": GRACE}, env={GRACE_VARIABLE: str(GRACE)})

    assert eventually(lambda: scene.all_are(State.COMPLETED, jobs[-1:]), SOON)
    assert eventually(lambda: scene.all_are(State.COMPLETED, jobs), SOON)
    assert scene.journal.verdict([f"order-{number}" for number in range(BACKLOG)]).is_clean
    assert scene.journal.count(what="swept") < BACKLOG / 100
