"""Where the ledger is: the URL that PostgreSQL's own tools take, and what it says to Oncelery alone."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict

from oncelery.errors import ConfigurationError

#: Most connections of one process. A verb takes about a millisecond of one.
DEFAULT_CONNECTIONS = 4

_WORDS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A URL, read. Its text may hold a password and is never shown."""

    conninfo: str
    #: The server settings that the URL asks for (`options=`).
    options: str = ""
    #: `?migrate=false`: the schema is somebody else's work; say so if it is missing.
    migrate: bool = True
    #: `?pgbouncer=true`: a pooler that shares connections between transactions; nothing may be kept in a session.
    pgbouncer: bool = False
    #: `?connections=`
    connections: int = DEFAULT_CONNECTIONS

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read a URL; raise ConfigurationError if it is none."""
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        migrate = _boolean("migrate", query.pop("migrate", "true"))
        pgbouncer = _boolean("pgbouncer", query.pop("pgbouncer", "false"))
        connections = _number("connections", query.pop("connections", str(DEFAULT_CONNECTIONS)))
        conninfo = urlunsplit(parts._replace(query=urlencode(query, quote_via=quote)))
        try:
            known = conninfo_to_dict(conninfo)
        except psycopg.Error:
            # Not shown, nor chained: what cannot be read as a host or port may be a part of the password.
            raise ConfigurationError(
                "this is no PostgreSQL URL: write postgresql://user:password@host:5432/database, "
                "with %-escapes for special characters in the password"
            ) from None
        options = str(known.get("options", ""))
        return cls(conninfo=conninfo, options=options, migrate=migrate, pgbouncer=pgbouncer, connections=connections)


def _boolean(name: str, word: str) -> bool:
    if word not in _WORDS:
        raise ConfigurationError(f"?{name}= must be true or false, not {word!r}")
    return _WORDS[word]


def _number(name: str, word: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise ConfigurationError(f"?{name}= must be a number from 1, not {word!r}")
    return int(word)
