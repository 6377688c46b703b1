"""Compare two ways of doing a thing in short blocks that take turns: what disturbs the machine disturbs both alike."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from time import perf_counter
from typing import Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")

#: How many operations show how long one takes, before the blocks are cut.
CALIBRATION = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much to measure."""

    #: How many pairs of neighbouring blocks.
    pairs: int
    #: How long a block is to last: short enough for its neighbour to see the same machine.
    block_seconds: float
    #: How many completed jobs a store is filled with, to see what one weighs.
    jobs: int
    #: How long a store must weigh the same before that is believed: it tidies up in the background.
    calm_seconds: float


FULL = Effort(pairs=60, block_seconds=0.04, jobs=100_000, calm_seconds=2)
QUICK = Effort(pairs=2, block_seconds=0.001, jobs=50, calm_seconds=0.1)


@dataclass(frozen=True, slots=True)
class Contender(Generic[T]):
    """One way of doing it: what each operation is given, made before the clock starts, and the operation."""

    prepare: Callable[[int], Iterable[T]]
    act: Callable[[T], object]

    def seconds(self, operations: int) -> float:
        """Time one block, and give the seconds of one operation in it."""
        given: Sequence[T] = list(self.prepare(operations))
        act = self.act
        # As `timeit` does: a collection would charge one block with what others left.
        gc.disable()
        try:
            started = perf_counter()
            for each in given:
                act(each)
            return (perf_counter() - started) / operations
        finally:
            gc.enable()


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Seconds of one operation, medians of the blocks; and the ratio of neighbouring blocks, median and quartiles."""

    ours: float
    theirs: float
    ratio: float
    low: float
    high: float


def compare(ours: Contender[T], theirs: Contender[U], effort: Effort) -> Comparison:
    """Run both in turns, the first of one pair second in the next."""
    slowest = max(ours.seconds(CALIBRATION), theirs.seconds(CALIBRATION))
    size = max(1, round(effort.block_seconds / slowest))
    mine: list[float] = []
    other: list[float] = []
    for pair in range(effort.pairs):
        turns = [(ours.seconds, mine), (theirs.seconds, other)]
        for seconds, times in turns if pair % 2 else reversed(turns):
            times.append(seconds(size))
    ratios = [one / two for one, two in zip(mine, other, strict=True)]
    low, middle, high = quantiles(ratios, n=4, method="inclusive")
    return Comparison(ours=median(mine), theirs=median(other), ratio=middle, low=low, high=high)
