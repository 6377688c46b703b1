"""What every question is given: how much to measure, and the servers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cached_property
from types import TracebackType
from typing import Self

from benchmarks.measure import Effort
from benchmarks.sites import KINDS, Kind, Site
from oncelery.embedded.process import ServerNotFoundError


class Laboratory:
    """Starts servers when first asked for them, and stops them; a kind that is missing here is named and left out."""

    def __init__(self, effort: Effort) -> None:
        self.effort = effort
        self._running = ExitStack()

    @cached_property
    def sites(self) -> list[Site]:
        """Give a server of each kind, which all questions share."""
        return [site for kind in KINDS for site in _start(kind, self._running)]

    def fresh_sites(self) -> Iterator[Site]:
        """Give a new server of each kind, one after the other."""
        for kind in KINDS:
            with ExitStack() as running:
                yield from _start(kind, running)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._running.__exit__(kind, error, traceback)


def say(what: str) -> None:
    """Tell the person who waits; the tables alone go to standard output."""
    print(what, file=sys.stderr, flush=True)


def _start(kind: Kind, running: ExitStack) -> Iterator[Site]:
    try:
        yield running.enter_context(kind())
    except ServerNotFoundError as missing:
        say(f"left out: {missing}")
