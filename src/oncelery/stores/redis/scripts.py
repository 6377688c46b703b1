"""The scripts, one `.lua` file per verb, as the server gets them."""

from __future__ import annotations

import hashlib
import re
from datetime import timedelta
from importlib.resources import files

from oncelery.job import ALIAS_RETENTION, ALIASES_KEPT, MICROSECOND, PAST_KEPT, SUMMARY_BYTES
from oncelery.stores.base import AUDIT_KEPT, HOURS_KEPT, PUBLISH_GRACE, SLOW_CHECK
from oncelery.stores.redis.wire import words

#: How many jobs or duplicates a script looks at, whether it shows them or not: no other call waits for it for more
#: than a few milliseconds. A page that ends early says where to go on.
EXAMINED_AT_ONCE = 500

#: How many bytes of result, steps, past and error stand beside the rest of a finished job; more is kept apart.
KEPT_WITH_ENTRY = 1024

#: How many entries are fetched at a time, at most, to look at them one after the other.
FETCHED_AT_ONCE = 64

#: How many jobs end in one call of `due`, beside those it gives.
ENDED_AT_ONCE = 1_000

#: How many jobs of each kind are set right in one call of `due`, after a clock was ahead.
SET_RIGHT_AT_ONCE = 100

#: What is added to the time at which a running job is looked at, so that it comes after all queued ones in the sorted
#: set that lists both: their times are microseconds since 1970, and below this until 2096.
RUNS = 4_000_000_000_000_000

#: What the scripts take from Python: the numbers of the contract, and bounds.
CONSTANTS = {
    "PUBLISH_GRACE": PUBLISH_GRACE // MICROSECOND,
    "SLOW_CHECK": SLOW_CHECK // MICROSECOND,
    "HOUR": timedelta(hours=1) // MICROSECOND,
    "HOURS_KEPT": HOURS_KEPT // MICROSECOND,
    "RUNS": RUNS,
    "MINUTE": timedelta(minutes=1) // MICROSECOND,
    "PAST_KEPT": PAST_KEPT,
    "ALIAS_RETENTION": ALIAS_RETENTION // MICROSECOND,
    "ALIASES_KEPT": ALIASES_KEPT,
    "SUMMARY_BYTES": SUMMARY_BYTES,
    "KEPT_WITH_ENTRY": KEPT_WITH_ENTRY,
    "AUDIT_KEPT": AUDIT_KEPT,
    "EXAMINED_AT_ONCE": EXAMINED_AT_ONCE,
    "FETCHED_AT_ONCE": FETCHED_AT_ONCE,
    "ENDED_AT_ONCE": ENDED_AT_ONCE,
    "SET_RIGHT_AT_ONCE": SET_RIGHT_AT_ONCE,
}

#: What a server that is full may run all the same: scripts that only read, and those that leave less than they found
#: (`discard` turns a job and its body into one small entry).
FLAGS = {
    **dict.fromkeys(("get", "last", "find", "duplicates", "duplicate_counts", "tally"), " flags=no-writes"),
    **dict.fromkeys(("discard", "prune"), " flags=allow-oom"),
}


class Script:
    """One verb, ready to send: the first words of its command."""

    def __init__(self, verb: str, *, flagged: bool) -> None:
        text = read_script(verb, flagged=flagged)
        self.head = words(("EVALSHA", hashlib.sha1(text.encode()).hexdigest()))  # noqa: S324 - as Redis calls a script
        #: The same with the whole text, for a server that has not seen it yet.
        self.text_head = words(("EVAL", text))


class Library(dict[str, Script]):
    """All scripts, each made when it is first asked for.

    Those for servers that read a script's first line (from Redis 7.0) have flags there: a full server then refuses the
    script before it has written anything. Older servers would take the line for an error.
    """

    def __init__(self, *, flagged: bool) -> None:
        super().__init__()
        self._flagged = flagged

    def __missing__(self, verb: str) -> Script:
        script = self[verb] = Script(verb, flagged=self._flagged)
        return script


FLAGGED = Library(flagged=True)
UNFLAGGED = Library(flagged=False)


def read_script(verb: str, *, flagged: bool) -> str:
    """Read the whole text of a script."""
    first = f"#!lua{FLAGS.get(verb, '')}\n"
    constants = "".join(f"local {name} = {value}\n" for name, value in CONSTANTS.items())
    return (first if flagged else "") + constants + _read(f"{verb}.lua")


def _read(name: str) -> str:
    """Read a file, with the files that it includes at their places."""
    text = (files(__package__) / name).read_text()
    return re.sub(r"^--include (\S+)$", lambda line: _read(line[1]), text, flags=re.MULTILINE)
