from __future__ import annotations

from datetime import timedelta
from math import nan
from typing import Any

import pytest

from oncelery.errors import ConfigurationError
from oncelery.job import Durability, OnDuplicate
from oncelery.policy import Backoff, Policy


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"lease": timedelta(0)}, "lease"),
        ({"retention": timedelta(seconds=-1)}, "retention"),
        ({"history": timedelta(hours=1)}, "history"),
        ({"history": timedelta.max}, "no time may be longer"),
        ({"lease": timedelta(days=400_000)}, "no time may be longer"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_crashes": -1}, "max_crashes"),
        ({"on_takeover": "hope"}, "on_takeover"),
        ({"on_duplicate": "ignore"}, "on_duplicate must be one of 'join'"),
        ({"durability": "eventually"}, "durability"),
        ({"retention": "a day"}, "retention"),
        ({"lease": True}, "lease"),
        ({"lease": float("inf")}, "lease"),
        ({"history": float("nan")}, "history"),
        ({"retry_on": "TimeoutError"}, "retry_on"),
        ({"retain": 5}, "no such option: retain"),
    ],
)
def test_a_wrong_option_is_refused_by_name(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        Policy.of(**options)


@pytest.mark.parametrize(
    "options", [{"first": timedelta(seconds=-1)}, {"most": timedelta(0)}, {"factor": 0.5}, {"factor": nan}]
)
def test_a_backoff_that_cannot_be_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="backoff"):
        Backoff(**options)


def test_words_seconds_and_a_lone_error_class_are_read_as_meant() -> None:
    policy = Policy.of(on_duplicate="trail", durability="safe", lease=5, retention=timedelta(hours=1), retry_on=OSError)

    assert policy == Policy(
        on_duplicate=OnDuplicate.TRAIL,
        durability=Durability.SAFE,
        lease=timedelta(seconds=5),
        retention=timedelta(hours=1),
        retry_on=(OSError,),
    )
