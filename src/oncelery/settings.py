"""One frozen Settings: from the constructor, the app's configuration and the environment, in that order."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from oncelery.errors import ConfigurationError
from oncelery.policy import Policy

#: `oncelery_lease = 10` in the app's configuration (so CELERY_ONCELERY_LEASE in Django), or ONCELERY_LEASE=10.
PREFIX = "oncelery_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What holds for the whole app."""

    #: Where the ledger is kept: a URL for `open_store`.
    store: str
    #: Keeps apps that share a store apart; also part of every key.
    namespace: str = "oncelery"
    #: How often a worker looks for lost jobs, in seconds; 0 switches its sweeper off.
    sweep_every: float = 2.0
    #: How many deliveries of a job may come without a run before it is buried as "never started".
    max_received: int = 3
    #: A publication that the broker refuses: "accept" the job for the sweeper, or "refuse" it with the broker's error.
    on_broker_down: Literal["accept", "refuse"] = "accept"
    #: A queue to which dead letters are copied, besides being kept in the ledger.
    dead_letter_queue: str = ""
    #: Defaults for the options of all tasks.
    policy: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def gather(cls, given: Mapping[str, Any], conf: Callable[[str], Any]) -> Settings:
        """Take each setting from where it is said first; unknown names are refused."""
        own = {entry.name: entry for entry in fields(cls) if entry.name != "policy"}
        options = {entry.name for entry in fields(Policy)}
        unknown = given.keys() - own.keys() - options
        if unknown:
            raise ConfigurationError(f"no such setting: {', '.join(sorted(unknown))}")
        found: dict[str, Any] = {
            name: value for name in own.keys() | options if (value := _first(name, given, conf)) is not None
        }
        if "store" not in found:
            raise ConfigurationError(
                "no store: write Oncelery(app, store='redis://…'), or set oncelery_store or ONCELERY_STORE"
            )
        return cls(
            **{name: value for name, value in found.items() if name in own},
            policy={name: value for name, value in found.items() if name in options},
        )

    def __post_init__(self) -> None:
        if self.on_broker_down not in ("accept", "refuse"):
            raise ConfigurationError(f'on_broker_down must be "accept" or "refuse", not {self.on_broker_down!r}')
        if self.sweep_every < 0:
            raise ConfigurationError(f"sweep_every cannot be negative: {self.sweep_every}")


def _first(name: str, given: Mapping[str, Any], conf: Callable[[str], Any]) -> object:
    if given.get(name) is not None:
        return given[name]
    configured = conf(PREFIX + name)
    if configured is not None:
        return configured
    text = os.environ.get((PREFIX + name).upper())
    return None if text is None else _number(text)


def _number(text: str) -> str | float:
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return text
