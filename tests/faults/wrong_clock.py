"""A clock that is wrong, for one worker: whatever part of Celery asks Python for the time of day is told another."""

from __future__ import annotations

import datetime as dt
import sys
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from celery.signals import worker_before_create_process, worker_init, worker_ready

#: Tells a worker by how many seconds its clock is ahead; behind, if negative.
VARIABLE = "SHOP_CLOCK_AHEAD"

TOLD = ("celery", "kombu", "oncelery")
#: These only speak of times. To msgspec, which reads annotations late, the false class is none that it knows.
SPARED = ("oncelery.job", "oncelery.answers", "oncelery.events", "oncelery.stores")

real_time = time.time
real_datetime = dt.datetime


def put_on(ahead: float) -> None:
    """Set the clock of this process and of all that it forks; once more whenever it has imported more."""

    class Kind(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, real_datetime)

    class FalseDatetime(real_datetime, metaclass=Kind):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> Any:  # noqa: ANN401 - a true one, to whoever asks
            return real_datetime.now(tz) + dt.timedelta(seconds=ahead)

    def false_time() -> float:
        return real_time() + ahead

    def spread(**_: object) -> None:
        time.time = false_time
        for module in told():
            for name, value in list(vars(module).items()):
                if value is real_time or value is real_datetime:
                    setattr(module, name, false_time if value is real_time else FalseDatetime)

    spread()
    for moment in (worker_init, worker_ready, worker_before_create_process):
        moment.connect(spread, weak=False)


def told() -> Iterator[ModuleType]:
    """Give the modules that are told a false time."""
    for name, module in list(sys.modules.items()):
        if name.startswith(TOLD) and not name.startswith(SPARED):
            yield module
