"""What a PostgreSQL says of itself."""

from __future__ import annotations

from oncelery.stores.facts import ServerFacts
from oncelery.stores.postgres import schema
from oncelery.stores.postgres.connections import BoundedConnection

#: Those that decide whether what is committed is there after a crash.
SETTINGS = ("fsync", "full_page_writes", "synchronous_commit")

_ASK = "SELECT current_setting('server_version_num')::int, clock_timestamp(), pg_is_in_recovery()"
_ASK_SETTINGS = "SELECT name, setting FROM pg_settings WHERE name = ANY(%s)"


def server_facts(connection: BoundedConnection, namespace: str, *, migrates: bool) -> ServerFacts:
    """Ask the server at the other end."""
    told = connection.execute(_ASK).fetchone()
    assert told is not None  # noqa: S101 - it is one row
    number, now, replica = told
    return ServerFacts(
        kind="postgresql",
        version=(number // 10_000, number % 10_000),
        now=now,
        says=dict(connection.execute(_ASK_SETTINGS, (list(SETTINGS),)).fetchall()),
        replica=replica,
        ready=schema.installed(connection, namespace).covers(schema.required()),
        migrates=migrates,
    )
