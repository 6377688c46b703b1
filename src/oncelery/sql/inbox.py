"""The inbox: a row in the caller's database that says of a job that its effect is there.

It is inserted in the transaction that makes the effect, so the one is there if and only if the other is. Whoever comes
second, be it a run after a crash or one that was taken over and wakes, meets the row and undoes what it did.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from oncelery.errors import ConfigurationError

if TYPE_CHECKING:
    from oncelery.job import Lease
    from oncelery.sql.callers import Caller, Done

TABLE = "oncelery_effects"

#: A row is kept for the job's history, and for this long at least; and again for this long if its job has not ended, or
#: is a dead letter, which may be revived.
KEPT_AT_LEAST = timedelta(days=1)

#: Of so many transactions one deletes rows that are past their time, this many at most: of each the ledger is asked.
PRUNE_EVERY = 100
PRUNE_LIMIT = 200

#: The extra of ours that brings a package.
_EXTRAS = {"psycopg": "postgres", "sqlalchemy": "sqlalchemy"}

#: How each database says it.
_DIALECTS = {
    "postgresql": {
        "bytes": "bytea",
        "instant": "timestamptz",
        "now": "now()",
        "until": "now() + make_interval(secs => :keep)",
        "listed": "SELECT json_array_elements_text(CAST(:ids AS json))",
    },
    "sqlite": {
        "bytes": "BLOB",
        "instant": "REAL",
        "now": "julianday('now')",
        "until": "julianday('now') + :keep / 86400.0",
        "listed": "SELECT value FROM json_each(:ids)",
    },
}

_DDL = """\
CREATE TABLE IF NOT EXISTS {table} (
  job_id text NOT NULL,
  key text NOT NULL,
  namespace text NOT NULL,
  task text NOT NULL,
  fence bigint NOT NULL,
  result {bytes} NOT NULL,
  committed_at {instant} NOT NULL,
  expires_at {instant} NOT NULL,
  PRIMARY KEY (job_id, key)
);
CREATE INDEX IF NOT EXISTS {table}_expiring ON {table} (expires_at);
"""

_INSERT = """\
INSERT INTO {table} AS effect (job_id, key, namespace, task, fence, result, committed_at, expires_at)
VALUES (:job_id, :key, :namespace, :task, :fence, :result, {now}, {until})
ON CONFLICT (job_id, key) DO UPDATE SET
  fence = excluded.fence, result = excluded.result,
  committed_at = excluded.committed_at, expires_at = excluded.expires_at
WHERE effect.fence = :instead_of"""

_FIND = "SELECT fence, result FROM {table} WHERE job_id = :job_id AND key = :key"

#: Only those that this ledger can tell of: other apps may have tasks of the same names.
_OLD = """\
SELECT job_id, key FROM {table}
WHERE expires_at <= {now} AND namespace = :namespace AND task = :task LIMIT :limit"""

_KEEP = "UPDATE {table} SET expires_at = {until} WHERE namespace = :namespace AND job_id IN ({listed})"

_DELETE = "DELETE FROM {table} WHERE expires_at <= {now} AND namespace = :namespace AND job_id IN ({listed})"


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

            engine = sqlalchemy.create_engine(url)
            try:
                with engine.begin() as connection:
                    for statement in statements:
                        connection.exec_driver_sql(statement)
            finally:
                engine.dispose()
    except Exception as error:
        raise ConfigurationError(f"could not make {TABLE}: {error}{_remedy(error)}") from error


class Inbox:
    """The inbox of the database that a caller's transaction is in."""

    def __init__(self, caller: Caller, namespace: str) -> None:
        self._caller = caller
        self._namespace = namespace
        self._words = _words(caller.dialect)

    def insert(self, lease: Lease, result: bytes, *, keep: timedelta, instead_of: int = 0) -> bool:
        """Say in the transaction that this job's effect is there; False if that has been said before.

        A rival's transaction that has said so and not yet ended is waited for. What was said under the fence
        `instead_of` does not count: another job said it, that had the same id.
        """
        values = {
            **_identity(lease),
            "namespace": self._namespace,
            "task": lease.task,
            "fence": lease.fence,
            "result": result,
            "instead_of": instead_of,
            "keep": max(keep, KEPT_AT_LEAST).total_seconds(),
        }
        return self._execute(_INSERT, values).count == 1

    def find(self, lease: Lease) -> tuple[int, bytes] | None:
        """Give the fence and the result of a run that has said so under the id of this job."""
        rows = self._execute(_FIND, _identity(lease)).rows
        return (rows[0][0], bytes(rows[0][1])) if rows else None

    def prune(self, task: str, is_needed: Callable[[str, str], bool]) -> None:
        """Delete a task's rows past their time, now and then; not that of a job (by its id and key) that needs it."""
        if random.random() * PRUNE_EVERY >= 1:  # noqa: S311 - no secret
            return
        ours = {"namespace": self._namespace}
        old = self._alone(_OLD, {**ours, "task": task, "limit": PRUNE_LIMIT}).rows
        needed = {job_id for job_id, key in old if is_needed(job_id, key)}
        if needed:
            self._alone(_KEEP, {**ours, "ids": _listed(needed), "keep": KEPT_AT_LEAST.total_seconds()})
        if gone := {job_id for job_id, _ in old} - needed:
            self._alone(_DELETE, {**ours, "ids": _listed(gone)})

    def _alone(self, statement: str, values: dict[str, object]) -> Done:
        """Run a statement in a transaction of its own."""
        try:
            self._caller.begin()
            done = self._execute(statement, values)
            self._caller.commit()
        except BaseException:  # whatever strikes, nothing may be left open
            self._caller.rollback()
            raise
        return done

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
    return {"table": TABLE, **_DIALECTS[dialect]}


def _remedy(error: Exception) -> str:
    extra = _EXTRAS.get(error.name or "") if isinstance(error, ModuleNotFoundError) else None
    return f": pip install 'oncelery[{extra}]'" if extra else ""


def _identity(lease: Lease) -> dict[str, object]:
    # The key too: it tells apart apps that share this database and choose their own task ids.
    return {"job_id": lease.job_id, "key": lease.key}


def _listed(ids: Iterable[str]) -> str:
    return json.dumps(sorted(ids))
