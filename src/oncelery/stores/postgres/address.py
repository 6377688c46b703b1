"""Where the ledger is: the URL that PostgreSQL's own tools take, and what it says to Oncelery alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict

from oncelery.errors import ConfigurationError

#: Most connections of one process. A verb takes about a millisecond of one.
DEFAULT_CONNECTIONS = 4

#: How long the server may take to accept a connection, unless the URL says otherwise (`connect_timeout=`).
CONNECT_SECONDS = 5

#: How long the server lets a statement take, unless the URL says otherwise (`options=-c statement_timeout=`).
STATEMENT_SECONDS = 10

_WORDS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A URL, read. It may hold a password and is never shown."""

    conninfo: str
    #: How to connect, beside what the URL says.
    options: Mapping[str, Any]
    #: `?migrate=false`: the schema is somebody else's work; say so if it is missing.
    migrate: bool
    #: `?connections=`
    connections: int

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read a URL; raise ConfigurationError if it cannot be one."""
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        migrate = _boolean("migrate", query.pop("migrate", "true"))
        pgbouncer = _boolean("pgbouncer", query.pop("pgbouncer", "false"))
        connections = _number("connections", query.pop("connections", str(DEFAULT_CONNECTIONS)))
        # By hand: `urlunsplit` leaves out the two slashes where there is no host, as for a socket.
        conninfo = f"{parts.scheme}://{parts.netloc}{parts.path}?{urlencode(query, quote_via=quote)}".rstrip("?")
        options = _options(_read(conninfo), pgbouncer=pgbouncer)
        return cls(conninfo=conninfo, options=options, migrate=migrate, connections=connections)


def _read(conninfo: str) -> Mapping[str, object]:
    # Neither shown nor chained: what cannot be read as a host or a port may be a part of the password.
    unreadable = ConfigurationError(
        "this is no PostgreSQL URL: write postgresql://user:password@host:5432/database, "
        "with %-escapes for special characters in the password"
    )
    try:
        known = conninfo_to_dict(conninfo)
    except psycopg.Error:
        raise unreadable from None
    if not re.fullmatch(r"[0-9,]*", str(known.get("port", ""))):
        raise unreadable
    return known


def _options(known: Mapping[str, object], *, pgbouncer: bool) -> dict[str, object]:
    # Each statement is a transaction of its own: one round trip.
    options: dict[str, object] = {"autocommit": True, "fallback_application_name": "oncelery"}
    if "connect_timeout" not in known:
        options["connect_timeout"] = CONNECT_SECONDS
    if pgbouncer:
        # It gives each transaction another connection: nothing may be prepared, and it refuses `options`.
        options["prepare_threshold"] = None
    else:
        # Whatever the database's own default is: each verb locks what it decides on, and others would refuse rivals.
        isolation = r"-c default_transaction_isolation=read\ committed"
        options["options"] = f"-c statement_timeout={STATEMENT_SECONDS}s {isolation} {known.get('options', '')}"
    return options


def _boolean(name: str, word: str) -> bool:
    if word not in _WORDS:
        raise ConfigurationError(f"?{name}= must be true or false, not {word!r}")
    return _WORDS[word]


def _number(name: str, word: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise ConfigurationError(f"?{name}= must be a number from 1, not {word!r}")
    return int(word)
