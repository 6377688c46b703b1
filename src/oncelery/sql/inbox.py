"""The inbox: a row in the caller's database that says of a job that its effect is there.

It is inserted in the transaction that makes the effect, so the one is there if and only if the other is. Whoever comes
second, be it a run after a crash or one that was taken over and wakes, meets the row and undoes what it did.
"""

from __future__ import annotations

import random
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from oncelery.errors import ConfigurationError

if TYPE_CHECKING:
    from oncelery.job import Lease
    from oncelery.sql.callers import Caller, Done

TABLE = "oncelery_effects"

#: A row is kept for the job's history, and for this long at least: its job may wait for a worker.
KEPT_AT_LEAST = timedelta(days=1)

#: Of so many transactions one deletes rows that are past their time, this many at most.
PRUNE_EVERY = 500
PRUNE_LIMIT = 2_000

#: How each database says it. In a first attempt a row past its time is that of another job, which had the same id.
_DIALECTS = {
    "postgresql": {
        "bytes": "bytea",
        "instant": "timestamptz",
        "now": "now()",
        "until": "now() + make_interval(secs => :keep)",
        "old": "SELECT ctid FROM oncelery_effects WHERE expires_at <= now() LIMIT :limit FOR UPDATE SKIP LOCKED",
        "row": "ctid",
    },
    "sqlite": {
        "bytes": "BLOB",
        "instant": "REAL",
        "now": "julianday('now')",
        "until": "julianday('now') + :keep / 86400.0",
        "old": "SELECT rowid FROM oncelery_effects WHERE expires_at <= julianday('now') LIMIT :limit",
        "row": "rowid",
    },
}

_DDL = """\
CREATE TABLE IF NOT EXISTS oncelery_effects (
  job_id text NOT NULL,
  key text NOT NULL,
  task text NOT NULL,
  fence bigint NOT NULL,
  result {bytes} NOT NULL,
  committed_at {instant} NOT NULL,
  expires_at {instant} NOT NULL,
  PRIMARY KEY (job_id, key)
);
CREATE INDEX IF NOT EXISTS oncelery_effects_expiring ON oncelery_effects (expires_at);
"""

_INSERT = """\
INSERT INTO oncelery_effects AS effect (job_id, key, task, fence, result, committed_at, expires_at)
VALUES (:job_id, :key, :task, :fence, :result, {now}, {until})
ON CONFLICT (job_id, key) DO UPDATE SET
  fence = excluded.fence, result = excluded.result,
  committed_at = excluded.committed_at, expires_at = excluded.expires_at
WHERE :attempt = 1 AND effect.expires_at <= {now}"""

_FIND = """\
SELECT result FROM oncelery_effects
WHERE job_id = :job_id AND key = :key AND (:attempt > 1 OR expires_at > {now})"""

_PRUNE = "DELETE FROM oncelery_effects WHERE {row} IN ({old})"


def ddl(dialect: str) -> str:
    """Write the statements that make the inbox; those that find it change nothing."""
    return _DDL.format(**_words(dialect))


def dialect_of(url: str) -> str:
    """Name the language of the database that a URL leads to."""
    name = urlsplit(url).scheme.partition("+")[0]
    return "postgresql" if name == "postgres" else name


def create(url: str) -> None:
    """Make the inbox in the database that a URL leads to, unless it is there.

    Raises:
        ConfigurationError: the database is of another kind, its driver is missing, or it cannot be reached.
    """
    statements = [statement for statement in ddl(dialect_of(url)).split(";") if statement.strip()]
    try:
        if urlsplit(url).scheme in {"postgresql", "postgres"}:
            import psycopg  # noqa: PLC0415 - optional

            with psycopg.connect(url) as connection:
                for statement in statements:
                    connection.execute(statement.encode())
        else:
            import sqlalchemy  # noqa: PLC0415 - optional

            with sqlalchemy.create_engine(url).begin() as connection:
                for statement in statements:
                    connection.exec_driver_sql(statement)
    except Exception as error:
        raise ConfigurationError(f"could not make {TABLE}: {error}") from error


class Inbox:
    """The inbox of the database that a caller's transaction is in."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._words = _words(caller.dialect)

    def insert(self, lease: Lease, result: bytes, *, keep: timedelta) -> bool:
        """Say in the transaction that this job's effect is there; False if that has been said before.

        A rival's transaction that has said so and not yet ended is waited for.
        """
        values = {
            **_identity(lease),
            "task": lease.task,
            "fence": lease.fence,
            "result": result,
            "keep": max(keep, KEPT_AT_LEAST).total_seconds(),
        }
        return self._execute(_INSERT, values).count == 1

    def find(self, lease: Lease) -> bytes | None:
        """Give the result of a job whose effect is there."""
        rows = self._execute(_FIND, _identity(lease)).rows
        return bytes(rows[0][0]) if rows else None

    def prune(self) -> None:
        """Delete rows past their time, now and then, in a transaction that the caller commits."""
        if random.random() * PRUNE_EVERY < 1:  # noqa: S311 - no secret
            self._caller.begin()
            self._execute(_PRUNE, {"limit": PRUNE_LIMIT})
            self._caller.commit()

    def _execute(self, statement: str, values: dict[str, object]) -> Done:
        try:
            return self._caller.execute(statement.format(**self._words), values)
        except Exception as error:
            if TABLE in str(error) and ("does not exist" in str(error) or "no such table" in str(error)):
                raise ConfigurationError(
                    f"this database has no table {TABLE}: run `oncelery migrate --effects <its URL>`, "
                    "or give the DDL that `oncelery migrate --print` prints to whoever keeps its schema"
                ) from error
            raise


def _words(dialect: str) -> dict[str, str]:
    if dialect not in _DIALECTS:
        raise ConfigurationError(
            f"run.transaction(...) knows {' and '.join(_DIALECTS)}, not {dialect}: "
            "there, make the effect idempotent by run.idempotency_key(...) or by run.fence"
        )
    return _DIALECTS[dialect]


def _identity(lease: Lease) -> dict[str, object]:
    # The key too: it tells apart apps that share this database and choose their own task ids.
    return {"job_id": lease.job_id, "key": lease.key, "attempt": lease.attempt}
