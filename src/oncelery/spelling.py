"""Names that people write: one that nobody knows is refused, with the nearest one that is known."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from oncelery.errors import ConfigurationError

#: How alike two names are, from 0 to 1, for one to be meant by the other: to say so, and to be sure of it.
ALIKE = 0.6
SURELY = 0.8


def refuse_unknown(names: Iterable[str], known: Collection[str], *, what: str, prefix: str = "") -> None:
    """Refuse names of options or settings that there are none of; `prefix` is what is written before each.

    Raises:
        ConfigurationError: it has each of them, and what was meant.
    """
    unknown = sorted(set(names) - set(known))
    if unknown:
        told = (f"{prefix}{name}{asked_back(nearest(name, known), prefix)}" for name in unknown)
        raise ConfigurationError(f"no such {what}: {', '.join(told)}")


def nearest(name: str, known: Collection[str], *, alike: float = ALIKE) -> str:
    """Tell the known name that is most like this one; nothing if none is as much alike."""
    from difflib import get_close_matches  # noqa: PLC0415 - seldom wanted

    return next(iter(get_close_matches(name, known, 1, alike)), "")


def asked_back(meant: str, prefix: str = "") -> str:
    """Ask whether this was meant."""
    return meant and f" (did you mean {prefix}{meant}?)"
