"""A pytest plugin: the fixture `oncelery_bench`. Nothing of Celery is loaded before a test asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from oncelery.celery.extension import Oncelery
    from oncelery.testing.bench import Bench


@pytest.fixture
def oncelery_bench() -> Iterator[Callable[[Oncelery], Bench]]:
    """Give what puts an app on the bench for this test, with no server and no worker: call it with your `once`."""
    from oncelery.testing.bench import Bench  # noqa: PLC0415 - loads Celery

    with ExitStack() as stack:
        yield lambda once: stack.enter_context(Bench(once).in_place())
