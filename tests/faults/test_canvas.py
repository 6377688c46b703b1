"""Chains, groups and chords of which every part loses its child: in its run, and once more before it can tell."""

from __future__ import annotations

from collections import Counter

from celery import chain, chord, group

from faults.scene import SOON, Scene
from faults.shop import receipt
from oncelery.job import Cause
from oncelery.testing.failpoints import Failpoint


def test_a_canvas_goes_on_and_commits_each_part_once_though_each_loses_its_child_twice(scene: Scene) -> None:
    scene.start(
        Failpoint("first-run", "kill", times=None), Failpoint("after-settle", "kill", times=None), concurrency=4
    )
    charge = scene.shop.charge
    orders = {name: [f"{name}-{number}" for number in range(2)] for name in ("chain", "group", "chord")}

    line = chain(*[charge.si(order) for order in orders["chain"]]).delay()
    both = group(charge.si(order) for order in orders["group"]).delay()
    all_of_them = chord([charge.si(order) for order in orders["chord"]], scene.shop.bundle.s("bundle")).delay()

    assert line.get(timeout=SOON) == receipt(orders["chain"][-1])
    assert both.get(timeout=SOON) == [receipt(order) for order in orders["group"]]
    assert all_of_them.get(timeout=SOON) == {"bundle": orders["chord"]}
    parts = [*orders["chain"], *orders["group"], *orders["chord"], "bundle"]
    assert scene.journal.verdict(parts).is_clean
    assert set(Counter(scene.commits()).values()) == {1}
    assert len(scene.commits()) == len(parts)
    assert Counter(entry.key for entry in scene.journal.entries(what="start")) == Counter(parts * 2)
    for job_id in scene.commits():
        assert [attempt.cause for attempt in scene.job(job_id).past] == [Cause.CRASH]
