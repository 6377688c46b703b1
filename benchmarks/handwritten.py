"""The guard one writes by hand for PostgreSQL: INSERT ... ON CONFLICT DO NOTHING claims, UPDATE marks as done."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Self

import psycopg

from benchmarks.calls import TASK, Call

TABLE = """
CREATE TABLE IF NOT EXISTS guard (
    key text PRIMARY KEY,
    state text NOT NULL DEFAULT 'processing',
    claimed_at timestamptz NOT NULL DEFAULT now(),
    done_at timestamptz,
    result jsonb
)
"""
CLAIM = "INSERT INTO guard (key) VALUES (%s) ON CONFLICT DO NOTHING RETURNING key"
DONE = "UPDATE guard SET state = 'completed', done_at = now(), result = %s WHERE key = %s"


class Handwritten:
    """One worker's guard, on one connection that is always open: the least that psycopg can take."""

    name = "by hand: INSERT ON CONFLICT, UPDATE"

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True)
        self.connection.execute(TABLE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def guard(self, call: Call) -> Mapping[str, str]:
        """Guard one run: claim, (run,) mark as done."""
        arguments = json.dumps([TASK, call], sort_keys=True)
        key = hashlib.sha256(arguments.encode()).hexdigest()
        if self.connection.execute(CLAIM, (key,)).fetchone() is None:
            return {"status": "skipped"}
        self.connection.execute(DONE, ("null", key))
        return {"status": "done"}
