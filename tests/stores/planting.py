"""Runs the sentences of the conformance suite as plain functions, to see which of them catches a planted bug."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from oncelery.testing import FakeClock
from oncelery.testing.conformance import Opener, StoreConformance
from oncelery.testing.conformance.model import Model
from oncelery.testing.conformance.races import ProcessRaces, ThreadRaces
from oncelery.testing.conformance.within import Transactions

#: Not run on planted bugs: they need more than one process, chance, or a connection.
LEFT_OUT = (Model, ThreadRaces, ProcessRaces, Transactions)

Sentence = Callable[[Mapping[str, object]], None]


def first_false_sentence(fresh: Callable[[], Opener], *, first: str = "", only: str = "") -> str | None:
    """Say sentence after sentence, each to an empty ledger, until one is not true; give its name.

    Those whose name has `first` in it come first, to save time. Only a sentence that is not true counts: a bug that
    breaks the store altogether would be found by any test, and proves nothing of this suite.
    """
    for name, say in sorted(sentences(), key=lambda sentence: first not in sentence[0]):
        if only not in ("", name):
            continue
        clock = FakeClock()
        opener = fresh()
        store = opener(clock=clock)
        try:
            say({"store": store, "clock": clock, "opener": opener})
        except AssertionError:
            return name
        finally:
            store.close()
    return None


def sentences() -> Iterator[tuple[str, Sentence]]:
    """Give all sentences, one for each of their parameters."""
    for part in StoreConformance.__mro__:
        if part in LEFT_OUT:
            continue
        for name, test in vars(part).items():
            marks = {mark.name for mark in getattr(test, "pytestmark", [])}
            if name.startswith("test_") and "xfail" not in marks:
                for parameters in _parameters_of(test):
                    yield f"{name}{[*parameters.values()] or ''}", _bind(test, parameters)


def _bind(test: Callable[..., None], parameters: Mapping[str, object]) -> Sentence:
    needed = list(inspect.signature(test).parameters)[1:]

    def say(fixtures: Mapping[str, object]) -> None:
        given = {**fixtures, **parameters}
        test(StoreConformance(), **{name: given[name] for name in needed})

    return say


def _parameters_of(test: Callable[..., None]) -> Iterator[dict[str, object]]:
    marks: list[Any] = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
    for chosen in itertools.product(*(list(mark.args[1]) for mark in marks)):
        parameters: dict[str, object] = {}
        for mark, values in zip(marks, chosen, strict=True):
            names = mark.args[0]
            parameters |= {names: values} if isinstance(names, str) else dict(zip(names, values, strict=True))
        yield parameters
