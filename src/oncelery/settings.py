"""One frozen Settings: from the constructor, the app's configuration and the environment, in that order."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from oncelery.errors import ConfigurationError
from oncelery.job import DEFAULT_NAMESPACE, Quota
from oncelery.policy import Policy

#: `oncelery_lease = 10` in the app's configuration (so CELERY_ONCELERY_LEASE in Django), or ONCELERY_LEASE=10.
PREFIX = "oncelery_"

#: What the environment, which has nothing but text, means as numbers.
NUMBERS = frozenset({"sweep_every", "max_received", "retention", "lease", "history", "max_attempts", "max_crashes"})

#: What it means as yes and no.
BOOLEANS = frozenset({"allow_private"})
BOOLEAN_WORDS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What holds for the whole app."""

    #: Where the ledger is kept: a URL for `open_store`. Empty until somebody says so.
    store: str = ""
    #: Keeps apps that share a store apart; also part of every key.
    namespace: str = DEFAULT_NAMESPACE
    #: How often a worker looks for lost jobs, in seconds; 0 switches its sweeper off.
    sweep_every: float = 2.0
    #: So many deaths of processes by a job's message, before it could begin, bury it as "never started"; one more if
    #: the first took the whole worker along, so that nobody could tell.
    max_received: int = 3
    #: A publication that the broker refuses: "accept" the job for the sweeper, or "refuse" it with the broker's error.
    on_broker_down: Literal["accept", "refuse"] = "accept"
    #: A queue to which dead letters are copied, besides being kept in the ledger.
    dead_letter_queue: str = ""
    #: What call-backs are signed with, the newest first: `whsec_…`. To give each scope its own, a mapping of scopes to
    #: secrets ("" for all others), or a callable that is asked for those of a scope.
    webhook_secrets: str | Sequence[str] | Mapping[str, Any] | Callable[[str], Any] = field(default=(), repr=False)
    #: Whether call-backs may go to addresses that are not public, and there over plain http.
    allow_private: bool = False
    #: Names of arguments and fields that are not shown, beside those that `oncelery.operations.redaction` has.
    redact: str | Sequence[str] = ()
    #: What each scope may have: a mapping of scopes to a Quota, "*" for those that are not named; or a callable that is
    #: asked for that of a scope.
    quotas: Mapping[str, Quota] | Callable[[str], Quota | None] = field(default_factory=dict)
    #: Defaults for the options of all tasks.
    policy: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def names(cls) -> frozenset[str]:
        """Name all that may be set for the whole app, the options of tasks among it."""
        return frozenset(entry.name for entry in fields(cls)) - {"policy"} | Policy.names()

    @classmethod
    def gather(cls, given: Mapping[str, Any], conf: Callable[[str], Any]) -> Settings:
        """Take each setting from where it is said first."""
        found: dict[str, Any] = {
            name: value for name in cls.names() if (value := _first(name, given, conf)) is not None
        }
        options = Policy.names()
        return cls(
            **{name: value for name, value in found.items() if name not in options},
            policy={name: value for name, value in found.items() if name in options},
        )

    def quota_of(self, scope: str) -> Quota | None:
        """Tell what a scope may have; None: as much as it likes."""
        quotas = self.quotas
        return quotas(scope) if callable(quotas) else quotas.get(scope, quotas.get("*"))

    def __post_init__(self) -> None:
        for name in ("store", "namespace", "dead_letter_queue"):
            if not isinstance(value := getattr(self, name), str):
                raise ConfigurationError(f"{name} must be a text, not {value!r}")
        for name, kind in (("sweep_every", int | float), ("max_received", int)):
            if not isinstance(value := getattr(self, name), kind) or not value >= 0:
                what = "whole number" if kind is int else "number"
                raise ConfigurationError(f"{name} must be a {what}, and not negative: {value!r}")
        quotas: object = self.quotas
        named = isinstance(quotas, Mapping) and all(isinstance(each, Quota) for each in quotas.values())
        if not (callable(quotas) or named):
            raise ConfigurationError('quotas must be a mapping such as {"acme": Quota(max_active=10)}, or a callable')
        if not isinstance(self.allow_private, bool):
            raise ConfigurationError(f"allow_private must be True or False, not {self.allow_private!r}")
        if self.on_broker_down not in ("accept", "refuse"):
            raise ConfigurationError(f'on_broker_down must be "accept" or "refuse", not {self.on_broker_down!r}')


def _first(name: str, given: Mapping[str, Any], conf: Callable[[str], Any]) -> object:
    if given.get(name) is not None:
        return given[name]
    configured = conf(PREFIX + name)
    if configured is not None:
        return configured
    text = os.environ.get((PREFIX + name).upper())
    if text is not None and name in BOOLEANS:
        return BOOLEAN_WORDS.get(text.lower(), text)
    return text if text is None or name not in NUMBERS else _number(text)


def _number(text: str) -> str | float:
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        # Whoever wants a number names the setting when refusing this.
        return text
