"""A table of tickets, and the desk at which they are filed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from oncelery import insert_once

metadata = sa.MetaData()
tickets = sa.Table(
    "tickets",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("idempotency_key", sa.Text, unique=True),
    sa.Column("site", sa.Text),
    sa.Column("number", sa.Integer),
    sa.Column("note", sa.Text, server_default="none"),
    sa.UniqueConstraint("site", "number"),
)


@dataclass(frozen=True, kw_only=True)
class Desk:
    """A way to the tickets."""

    target: Any
    connection: sa.Connection
    table: Any = "tickets"

    def file(self, *numbers: int, **options: Any) -> tuple[list[int], list[int]]:  # noqa: ANN401
        """File tickets, and tell the numbers of those inserted and of the duplicates."""
        choices: dict[str, Any] = {"key": ("site", "number"), **options}
        result = insert_once(self.target, self.table, map(ticket, numbers), **choices)
        return [row["number"] for row in result.inserted], [row["number"] for row in result.duplicates]

    def execute(self, statement: str) -> Any:  # noqa: ANN401
        return self.connection.exec_driver_sql(statement)

    def filed(self) -> list[int]:
        return [number for (number,) in self.execute("SELECT number FROM tickets ORDER BY id")]


def ticket(number: int) -> dict[str, Any]:
    return {"site": "north", "number": number}


def ddl(error: Exception) -> str:
    return str(error).partition("Add it:\n")[2]
