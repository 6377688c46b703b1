"""Canvases of guarded tasks: the same as of plain ones, and once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import chain, chord, group
from celery.result import AsyncResult, GroupResult
from faults.brokers import Broker
from faults.workers import Worker, Workers
from guarded.versions import counts_partial_arguments
from guarded.world import SOON, World

from oncelery.embedded.process import eventually

#: What has been told, in a canvas of any shape.
WORDS = ("increment", "total", "refuse", "lament", "mourn", "become")


@pytest.fixture(scope="module", autouse=True)
def worker(world: World, crew: Workers, broker_here: Broker) -> Worker:
    """Give two children, which all tests here share."""
    return world.start(crew, broker=broker_here)


class Canvas:
    """The tasks of one kind, as a canvas of one test uses them."""

    def __init__(self, world: World, kind: str) -> None:
        self.world = world
        self.kind = kind
        self.name = world.name()

    def inc(self, *x: int) -> Any:
        return self.task("increment").s(*x, self.name)

    def seven(self) -> Any:
        return self.task("increment").si(6, self.name)

    def sum(self) -> Any:
        return self.task("total").s(self.name)

    def refuse(self, *x: int) -> Any:
        return self.task("refuse").s(*x, self.name)

    def become(self, *x: int) -> Any:
        return self.task("become").s(*x, self.name)

    def lament(self) -> Any:
        return self.task("lament").s(self.name)

    def mourn(self) -> Any:
        return self.task("mourn").s(self.name)

    def task(self, name: str) -> Any:
        return self.world.app.tasks[f"{self.kind}-{name}"]

    def value_of(self, result: Any) -> Any:
        if isinstance(result, GroupResult):
            # Not result.get(), which looks once a second.
            return [self.value_of(part) for part in result]
        try:
            return result.get(timeout=SOON)
        except Exception as error:  # noqa: BLE001 - an error is an outcome
            return type(error).__name__, str(error).replace(self.name, "name")

    def told(self) -> list[tuple[str, str]]:
        entries = [entry for word in WORDS for entry in self.world.told(self.name, word)]
        return sorted((entry.what, repr(entry.payload)) for entry in entries)

    def outcome(self, draw: Callable[[Canvas], Any], tells: int) -> Any:
        """Run the canvas; give its result, the states of all its parts and what was told."""
        result = draw(self)
        parts = [part for top in ancestry(result) for part in leaves(top)]
        # Before the value is asked for: of a chord, it is the error of a part only if that is there by then.
        assert eventually(lambda: all(part.ready() for part in parts), SOON)
        value = self.value_of(result)
        assert eventually(lambda: len(self.told()) >= tells, SOON), self.told()
        return value, [part.state for part in parts], self.told()


def ancestry(result: Any) -> list[Any]:
    return [result, *(ancestry(result.parent) if result.parent else [])]


def leaves(result: Any) -> list[AsyncResult[Any]]:
    return [leaf for part in result for leaf in leaves(part)] if isinstance(result, GroupResult) else [result]


CANVASES: dict[str, tuple[Callable[[Canvas], Any], int]] = {
    "chain": (lambda c: chain(c.inc(1), c.inc(), c.inc()).delay(), 3),
    "pipe": (lambda c: (c.inc(1) | c.inc()).delay(), 2),
    "group": (lambda c: group(c.inc(1), c.inc(2), c.inc(3)).delay(), 3),
    "group of one": (lambda c: group(c.inc(1)).delay(), 1),
    "chord": (lambda c: chord([c.inc(1), c.inc(2)], c.sum()).delay(), 3),
    "group in a chain": (lambda c: (c.inc(1) | group(c.inc(), c.seven()) | c.sum()).delay(), 4),
    "chain in a group": (lambda c: group(chain(c.inc(1), c.inc()), c.inc(5)).delay(), 3),
    "chain in a chord": (lambda c: chord([chain(c.inc(1), c.inc()), c.inc(5)], c.sum()).delay(), 4),
    "chord in a chain": (lambda c: (chord([c.inc(1), c.inc(2)], c.sum()) | c.inc()).delay(), 4),
    "chords in a group": (
        lambda c: group(chord([c.inc(n), c.inc(n + 1)], c.sum()) for n in (1, 5)).delay(),
        6,
    ),
    "group in a group": (lambda c: group(c.inc(1), group(c.inc(2), c.inc(3))).delay(), 3),
    "keyword arguments": (lambda c: chain(c.task("increment").s(x=1, name=c.name), c.inc()).delay(), 2),
    "immutable": (lambda c: chain(c.inc(1), c.seven()).delay(), 2),
    "delayed": (lambda c: chain(c.inc(1).set(countdown=0.1), c.inc()).delay(), 2),
    "link": (lambda c: c.inc(1).apply_async(link=c.inc()), 2),
    "links": (lambda c: c.inc(1).apply_async(link=[c.inc(), c.seven() | c.inc()]), 4),
    "link to a group": (lambda c: c.inc(1).apply_async(link=group(c.inc(), c.seven())), 3),
    "chunks": (lambda c: c.task("increment").chunks([(n, c.name) for n in range(4)], 2).group().delay(), 4),
    "starmap": (lambda c: c.task("increment").starmap([(n, c.name) for n in range(3)]).delay(), 3),
    "error": (lambda c: c.refuse(1).delay(), 1),
    "error in a chain": (lambda c: chain(c.inc(1), c.refuse(), c.inc()).delay(), 2),
    "error in a group": (lambda c: group(c.inc(1), c.refuse(2)).delay(), 2),
    "error in a chord": (lambda c: chord([c.inc(1), c.refuse(2)], c.sum()).delay(), 2),
    "error in the body of a chord": (lambda c: chord([c.inc(1), c.inc(2)], c.task("refuse").s(c.name)).delay(), 3),
    "errback": (lambda c: c.refuse(1).apply_async(link_error=c.lament()), 2),
    "errbacks": (lambda c: c.refuse(1).apply_async(link_error=[c.lament(), c.mourn()]), 3),
    "errback of a chain": (lambda c: chain(c.inc(1), c.refuse()).apply_async(link_error=c.lament()), 3),
    "errback of a chord": (lambda c: chord([c.inc(1), c.refuse(2)], c.sum().on_error(c.lament())).delay(), 3),
    "replaced": (lambda c: c.become(1).delay(), 2),
    "replaced in a chain": (lambda c: chain(c.inc(1), c.become(), c.inc()).delay(), 4),
    "replaced in a chord": (lambda c: chord([c.become(1), c.inc(2)], c.sum()).delay(), 4),
    "replaced with a link": (lambda c: c.become(1).apply_async(link=c.inc()), 3),
}


@pytest.mark.parametrize(
    "shape", [pytest.param(shape, marks=counts_partial_arguments if "errback" in shape else ()) for shape in CANVASES]
)
def test_a_canvas_of_guarded_tasks_does_what_it_does_with_plain_ones(world: World, shape: str) -> None:
    plain, guarded = (Canvas(world, kind).outcome(*CANVASES[shape]) for kind in ("plain", "guarded"))

    assert guarded == plain


# Once


def test_a_chain_sent_twice_takes_effect_once_and_both_have_the_result(world: World) -> None:
    canvas = Canvas(world, "guarded")

    results = [chain(canvas.inc(1), canvas.inc(), canvas.inc()).delay() for _ in range(2)]

    assert [result.get(timeout=SOON) for result in results] == [4, 4]
    assert len(canvas.told()) == 3


def test_one_chain_object_sent_several_times_does_what_it_does_with_plain_tasks(world: World) -> None:
    plain, guarded = Canvas(world, "plain"), Canvas(world, "guarded")

    for canvas in (plain, guarded):
        drawn = chain(canvas.inc(), canvas.inc())
        for x in (10, 20, 30):
            drawn.apply_async((x,))

    assert eventually(lambda: len(plain.told()) == len(guarded.told()) == 6, SOON), guarded.told()
    assert guarded.told() == plain.told()


def test_a_chord_sent_twice_takes_effect_once_and_both_have_the_result(world: World) -> None:
    canvas = Canvas(world, "guarded")

    results = [chord([canvas.inc(1), canvas.inc(2)], canvas.sum()).delay() for _ in range(2)]

    assert [result.get(timeout=SOON) for result in results] == [5, 5]
    assert len(canvas.told()) == 3


def test_the_same_work_twice_in_one_canvas_is_done_once(world: World) -> None:
    canvas = Canvas(world, "guarded")

    result = chord([canvas.inc(1), canvas.inc(1), canvas.inc(1)], canvas.sum()).delay()

    assert result.get(timeout=SOON) == 6
    assert [told[0] for told in canvas.told()] == ["increment", "total"]


def test_part_of_a_canvas_waits_for_the_same_work_that_runs_elsewhere(world: World) -> None:
    canvas, name = Canvas(world, "guarded"), world.name()
    gate = world.gate(name)
    lone = world.tasks.joining.delay(name, 5, gate.path)
    assert world.hears(name, "start")

    result = chain(world.tasks.joining.s(name, 5, gate.path), canvas.inc(), canvas.inc()).delay()
    assert eventually(lambda: world.job(lone).duplicates >= 2, SOON)
    gate.open()

    assert (lone.get(timeout=SOON), result.get(timeout=SOON)) == (5, 7)
    assert len(world.told(name)) == 1


def test_a_message_delivered_again_lets_its_chain_and_callbacks_go_on_once(world: World) -> None:
    canvas, name = Canvas(world, "guarded"), world.name()
    notes = [world.tasks.notifying.si(name, n) for n in (1, 2)]
    with world.captured() as sent:
        result: Any = chain(canvas.inc(1).set(link=notes), canvas.inc(), canvas.inc()).delay()
    assert result.get(timeout=SOON) == 4
    assert world.hears(name, times=2)

    # As if its worker had died before it told.
    result.parent.parent.forget()
    sent.again()
    assert eventually(lambda: world.job(result.parent).duplicates >= 1, SOON)

    assert len(canvas.told()) == 3
    assert len(world.told(name)) == 2


@pytest.mark.parametrize("how", ["copy", "again"])
def test_a_message_too_many_lets_no_plain_task_run_twice(world: World, how: str) -> None:
    name = world.name()
    plain, last = Canvas(world, "plain"), Canvas(world, "plain")
    with world.captured() as sent:
        result: Any = chain(world.tasks.joining.si(name, 1).set(link=plain.inc()), last.inc()).delay()
    assert result.get(timeout=SOON) == 2
    assert eventually(lambda: len(plain.told()) == 1, SOON)

    getattr(sent, how)()
    assert eventually(lambda: world.job(result.parent).duplicates == 1, SOON)
    # What was published after that message comes after what it would have published.
    assert chain(world.tasks.joining.si(world.name(), 1), last.inc()).delay().get(timeout=SOON) == 2

    assert (len(plain.told()), len(last.told())) == (1, 2)


def test_a_failure_in_a_canvas_is_a_dead_letter(world: World) -> None:
    canvas = Canvas(world, "guarded")

    result: Any = chain(canvas.inc(1), canvas.refuse(), canvas.inc()).delay()

    with pytest.raises(Exception, match=canvas.name):
        result.get(timeout=SOON)
    assert world.job(result.parent).state == "buried"
