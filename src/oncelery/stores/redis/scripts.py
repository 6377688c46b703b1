"""The scripts, one `.lua` file per verb, as the server gets them."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from functools import cache
from importlib.resources import files

from oncelery.job import PAST_KEPT
from oncelery.stores.base import PUBLISH_GRACE, SLOW_CHECK

#: How many duplicates the audit lists; older ones are only counted.
AUDIT_KEPT = 100_000

#: What the scripts take from Python: numbers that the contract fixes.
CONSTANTS = {
    "PUBLISH_GRACE": PUBLISH_GRACE // timedelta(microseconds=1),
    "SLOW_CHECK": SLOW_CHECK // timedelta(microseconds=1),
    "PAST_KEPT": PAST_KEPT,
    "AUDIT_KEPT": AUDIT_KEPT,
}

#: The files that stand in front of a verb's own.
READS = ("shared",)
CHANGES = ("shared", "changes")
ACCEPTS = ("shared", "changes", "accept")

PRELUDES = {
    "reserve": ACCEPTS,
    "begin": ACCEPTS,
    "renew": READS,
    "settle": CHANGES,
    "get": READS,
    "last": READS,
}

#: Scripts that a full server, too, runs: they write nothing.
READ_ONLY = {"get", "last"}


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
    folder = files(__package__)
    constants = "".join(f"local {name} = {value}\n" for name, value in CONSTANTS.items())
    parts = [(folder / f"{name}.lua").read_text() for name in (*PRELUDES[verb], verb)]
    first = "#!lua flags=no-writes\n" if verb in READ_ONLY else "#!lua\n"
    return (first if flagged else "") + constants + "\n".join(parts)
