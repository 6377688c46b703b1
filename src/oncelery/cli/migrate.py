"""`oncelery migrate`: makes the tables, or brings them to this version."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import click

from oncelery.cli.output import json_option, print_json
from oncelery.cli.target import Target, target_options
from oncelery.errors import ConfigurationError
from oncelery.job import DEFAULT_NAMESPACE
from oncelery.sql.inbox import TABLE, create, ddl, dialect_of
from oncelery.stores import open_store


@runtime_checkable
class Migrated(Protocol):
    """A store that has a schema."""

    def migrate(self) -> None:
        """Bring it to this version."""

    def missing(self) -> str:
        """Write what that would do."""

    def close(self) -> None:
        """Let go of connections."""


@click.command()
@click.option(
    "--effects",
    default="",
    metavar="URL",
    help=f"A database in which run.transaction(...) writes while the ledger is elsewhere: makes {TABLE} there.",
)
@click.option("--print", "only_print", is_flag=True, help="Print the statements, and do nothing.")
@json_option
@target_options
def migrate(target: Target, *, effects: str, only_print: bool, as_json: bool) -> None:
    """Make the ledger's schema, or bring it to this version; make the inbox for effects.

    What is there already is left alone, and nothing is ever set back. With --print and no URL, all statements for
    PostgreSQL are printed; with a URL, those that are missing there. With -A it is the app's ledger; the namespace is
    the schema.
    """
    store, namespace = target.store, target.namespace or DEFAULT_NAMESPACE
    if target.app and not store:
        settings = target.once().settings
        store, namespace = settings.store, settings.namespace
    if only_print:
        click.echo(_printed(store, namespace, effects), nl=False)
        return
    if not store and not effects:
        raise click.UsageError("give --store, --effects or both; or --print")
    made = {}
    if store:
        ledger = _ledger(store, namespace)
        ledger.migrate()
        ledger.close()
        made["ledger"] = f"the ledger in the schema {namespace!r} is of this version"
    if effects:
        create(effects)
        made["effects"] = f"the table {TABLE} is there"
    if as_json:
        print_json(made)
    else:
        click.echo("\n".join(made.values()))


def _printed(store: str, namespace: str, effects: str) -> str:
    if not store and not effects:
        return _whole(namespace) + ddl("postgresql")
    missing = _ledger(store, namespace).missing() if store else ""
    return missing + (ddl(dialect_of(effects)) if effects else "")


def _whole(namespace: str) -> str:
    from oncelery.stores.postgres.schema import script  # noqa: PLC0415 - the driver is an extra

    return script(namespace)


def _ledger(url: str, namespace: str) -> Migrated:
    store = open_store(url, namespace=namespace)
    if not isinstance(store, Migrated):
        raise ConfigurationError("only a ledger in PostgreSQL has a schema: there is nothing to migrate here")
    return store
