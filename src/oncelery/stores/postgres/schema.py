"""The ledger's schema: made, kept up to date, and never set back, however many processes start at once."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from psycopg import errors, sql

from oncelery.errors import ConfigurationError
from oncelery.stores.postgres.connections import BoundedConnection

#: Of the functions in this folder. Raise it with every change of one, or servers that have them will not get it.
#: Processes of the version before go on calling them while a new version is rolled out: what a function takes and gives
#: may only be added to.
REVISION = 5

#: How long a migration may wait for another one, and take.
MIGRATION_SECONDS = 300

_FOLDER = files(__package__)

_VERSION = """\
CREATE TABLE IF NOT EXISTS version (
  only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
  migration integer NOT NULL,
  revision integer NOT NULL
)"""
_FIRST_VERSION = "INSERT INTO version (migration, revision) VALUES (0, 0) ON CONFLICT DO NOTHING"


@dataclass(frozen=True, slots=True)
class Version:
    """How far a ledger has come."""

    migration: int
    revision: int

    def covers(self, need: Version) -> bool:
        """Whether this is that version, or a newer one."""
        return self.migration >= need.migration and self.revision >= need.revision


def required() -> Version:
    """Tell what this version of the package needs."""
    return Version(len(migrations()), REVISION)


def installed(connection: BoundedConnection, schema: str) -> Version:
    """Tell what is there; of a ledger that is not there, that nothing is."""
    query = sql.SQL("SELECT migration, revision FROM {}.version").format(sql.Identifier(schema))
    try:
        with connection.transaction():
            row = connection.execute(query).fetchone()
    except (errors.UndefinedTable, errors.InvalidSchemaName):
        row = None
    return Version(*row) if row else Version(0, 0)


def verify(connection: BoundedConnection, schema: str) -> None:
    """Raise ConfigurationError unless the ledger is of this version, or a newer one."""
    have = installed(connection, schema)
    if not have.covers(required()):
        state = "has no ledger" if have == Version(0, 0) else "has the ledger of an older version"
        raise ConfigurationError(f"the schema {schema!r} {state}: run `oncelery migrate`")


def migrate(connection: BoundedConnection, schema: str) -> None:
    """Bring the ledger to this version. Nothing is done to one that has it, or a newer one."""
    if installed(connection, schema).covers(required()):
        return
    connection.silence_seconds = MIGRATION_SECONDS
    with connection.transaction():
        limit = f"{MIGRATION_SECONDS}s"
        connection.execute(
            "SELECT set_config('statement_timeout', %s, true), set_config('lock_timeout', %s, true)", (limit, limit)
        )
        # One process at a time; the others then find it done.
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('oncelery:migrate:' || %s, 0))", (schema,))
        _prepare(connection, schema)
        _apply(connection, installed(connection, schema))


def script(schema: str, have: Version = Version(0, 0)) -> str:  # noqa: B008 - it is frozen
    """Write what `migrate` would do to a ledger that has come so far, for whoever keeps the schema by other means."""
    name, need = sql.Identifier(schema).as_string(), required()
    parts = [file.read_text() for file in migrations()[have.migration :]]
    parts += [file.read_text() for file in functions()] if have.revision < need.revision else []
    if not parts:
        return ""
    version = f"UPDATE version SET migration = {need.migration}, revision = {need.revision};"  # noqa: S608 - numbers
    begin = [f"CREATE SCHEMA IF NOT EXISTS {name};", f"SET LOCAL search_path TO {name}, pg_temp;", f"{_VERSION};"]
    return "\n".join(["BEGIN;", *begin, f"{_FIRST_VERSION};", *parts, version, "COMMIT;", ""])


def _prepare(connection: BoundedConnection, schema: str) -> None:
    # Asked first: where a database administrator has made the schema, ours may not have the right to make one.
    if connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", (schema,)).fetchone() is None:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
    connection.execute(sql.SQL("SET LOCAL search_path TO {}, pg_temp").format(sql.Identifier(schema)))
    connection.execute(_VERSION)
    connection.execute(_FIRST_VERSION)


def _apply(connection: BoundedConnection, have: Version) -> None:
    need = required()
    for migration in migrations()[have.migration :]:
        connection.execute(migration.read_bytes())
    if have.revision < need.revision:
        for function in functions():
            connection.execute(function.read_bytes())
    connection.execute(
        "UPDATE version SET migration = greatest(migration, %s), revision = greatest(revision, %s)",
        (need.migration, need.revision),
    )


def functions() -> list[Traversable]:
    """List the files of the verbs, and first the one that they are made of."""
    return sorted(_sql_files(_FOLDER), key=lambda file: (file.name != "entry.sql", file.name))


def migrations() -> list[Traversable]:
    """List the files of the migrations, the oldest first."""
    return sorted(_sql_files(_FOLDER / "migrations"), key=lambda file: file.name)


def _sql_files(folder: Traversable) -> list[Traversable]:
    return [file for file in folder.iterdir() if file.name.endswith(".sql")]
