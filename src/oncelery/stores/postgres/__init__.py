"""The PostgreSQL store: one function in the database per verb."""

from oncelery.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
