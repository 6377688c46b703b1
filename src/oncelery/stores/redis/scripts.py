"""The scripts, one `.lua` file per verb, as the server gets them."""

from __future__ import annotations

import hashlib
import re
from datetime import timedelta
from functools import cache
from importlib.resources import files

from oncelery.job import PAST_KEPT
from oncelery.stores.base import PUBLISH_GRACE, SLOW_CHECK

MICROSECOND = timedelta(microseconds=1)

#: How many duplicates the audit lists; older ones are only counted.
AUDIT_KEPT = 100_000

#: How long duplicates stay counted by the hour.
HOURS_KEPT = timedelta(days=90)

#: How many jobs a page looks at, whether it shows them or not; a page that ends early says where to go on.
EXAMINED_AT_ONCE = 2_000

#: How many places a page fetches at a time from each of the sources that it merges.
FETCHED_AT_ONCE = 10

#: How many lapsed runs end in one call of `due`, beside the jobs it gives.
ENDED_AT_ONCE = 1_000

#: What the scripts take from Python: the numbers of the contract, and bounds.
CONSTANTS = {
    "PUBLISH_GRACE": PUBLISH_GRACE // MICROSECOND,
    "SLOW_CHECK": SLOW_CHECK // MICROSECOND,
    "HOUR": timedelta(hours=1) // MICROSECOND,
    "HOURS_KEPT": HOURS_KEPT // MICROSECOND,
    "PAST_KEPT": PAST_KEPT,
    "AUDIT_KEPT": AUDIT_KEPT,
    "EXAMINED_AT_ONCE": EXAMINED_AT_ONCE,
    "FETCHED_AT_ONCE": FETCHED_AT_ONCE,
    "ENDED_AT_ONCE": ENDED_AT_ONCE,
}

#: Scripts that write nothing: a server that is full, or a replica, runs them too.
READ_ONLY = {"get", "last", "find", "duplicates", "duplicate_counts", "tally"}

#: How many words a script's head has.
HEAD_WORDS = 4


class Script:
    """One verb, ready to send: `head` is all of its command between the number of words and the script's inputs."""

    def __init__(self, verb: str, namespace: str, *, flagged: bool) -> None:
        text = _text(verb, flagged=flagged).encode()
        key = b"{%b}:" % namespace.encode()
        keys = b"$1\r\n1\r\n" + word(key)
        sha = hashlib.sha1(text).hexdigest().encode()  # noqa: S324 - Redis's name for a script
        self.head = word(b"EVALSHA") + word(sha) + keys
        #: The same with the whole text, for a server that has not seen it yet.
        self.full_head = word(b"EVAL") + word(text) + keys


class Library(dict[str, Script]):
    """The scripts of a namespace, each made when it is first asked for.

    Those for servers that read a script's first line (from Redis 7.0) have flags there: a full server then refuses the
    script before it has written anything. Older servers would take the line for an error.
    """

    def __init__(self, namespace: str, *, flagged: bool) -> None:
        super().__init__()
        self._namespace = namespace
        self._flagged = flagged

    def __missing__(self, verb: str) -> Script:
        script = self[verb] = Script(verb, self._namespace, flagged=self._flagged)
        return script


def word(value: bytes) -> bytes:
    """Write one word of a command as the server reads it."""
    return b"$%d\r\n%b\r\n" % (len(value), value)


@cache
def _text(verb: str, *, flagged: bool) -> str:
    constants = "".join(f"local {name} = {value}\n" for name, value in CONSTANTS.items())
    first = "#!lua flags=no-writes\n" if verb in READ_ONLY else "#!lua\n"
    return (first if flagged else "") + constants + _file(f"{verb}.lua")


def _file(name: str) -> str:
    """Read a script, with the files that it includes at their place."""
    text = (files(__package__) / name).read_text()
    return re.sub(r"^--include (\S+)$", lambda line: _file(line[1]), text, flags=re.MULTILINE)
