"""Books: an account in a database, in which each job that is done once leaves one row and one amount."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import sqlalchemy
from sqlalchemy import orm

ORDER = "order-1"

#: What a job adds to the balance.
AMOUNT = 5

DDL = (
    "DROP TABLE IF EXISTS payments",
    "DROP TABLE IF EXISTS account",
    "DROP TABLE IF EXISTS oncelery_effects",
    "CREATE TABLE payments (order_id text NOT NULL, amount integer NOT NULL)",
    "CREATE TABLE account (balance integer NOT NULL)",
    "INSERT INTO account VALUES (0)",
)

#: What one job writes; each library has its own way to say where the order goes.
INSERT = f"INSERT INTO payments VALUES (:order, {AMOUNT})"  # noqa: S608 - a number
ADD = f"UPDATE account SET balance = balance + {AMOUNT}"  # noqa: S608 - a number


class Payments(orm.DeclarativeBase):
    """The tables, for sessions."""


class Payment(Payments):
    """A row that a session writes when it is flushed."""

    __tablename__ = "payments"
    order_id: orm.Mapped[str] = orm.mapped_column(primary_key=True)
    amount: orm.Mapped[int]


class Books:
    """An account, and each kind of target through which it is written."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))

    def open(self) -> None:
        """Make the tables, empty; without an inbox."""
        with self.engine.begin() as connection:
            for statement in DDL:
                connection.exec_driver_sql(statement)

    @contextmanager
    def target(self, kind: str) -> Iterator[Any]:
        """Give a target of this kind, as a user would have it at hand."""
        match kind:
            case "psycopg":
                with psycopg.connect(self.url) as connection:
                    yield connection
            case "connection":
                with self.engine.connect() as link:
                    yield link
            case "session":
                with orm.Session(self.engine) as session:
                    yield session
            case "engine":
                yield self.engine

    @property
    def entries(self) -> list[str]:
        """The orders that were paid, one for each row."""
        with self.engine.connect() as connection:
            return list(connection.execute(sqlalchemy.text("SELECT order_id FROM payments ORDER BY 1")).scalars())

    @property
    def balance(self) -> int:
        """What the account holds."""
        with self.engine.connect() as connection:
            return int(connection.execute(sqlalchemy.text("SELECT balance FROM account")).scalar_one())

    @property
    def effects(self) -> int:
        """How many rows the inbox has."""
        with self.engine.connect() as connection:
            return int(connection.execute(sqlalchemy.text("SELECT count(*) FROM oncelery_effects")).scalar_one())

    def close(self) -> None:
        """Let go of the connections."""
        self.engine.dispose()


def pay(connection: Any, order: str, *, before_the_sum: Callable[[], object] = lambda: None) -> None:
    """Write one payment through whatever it is."""
    if isinstance(connection, psycopg.Connection):
        connection.execute(INSERT.replace(":order", "%s").encode(), (order,))
        before_the_sum()
        connection.execute(ADD.encode())
    elif isinstance(connection, orm.Session):
        connection.add(Payment(order_id=order, amount=AMOUNT))
        before_the_sum()
        connection.execute(sqlalchemy.text(ADD))
    else:
        connection.execute(sqlalchemy.text(INSERT), {"order": order})
        before_the_sum()
        connection.execute(sqlalchemy.text(ADD))
