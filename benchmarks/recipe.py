"""The recipe that tutorials give for Redis, as they give it: GET, SET NX EX, run, SET; skipped if the key exists."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Self

import redis

from benchmarks.calls import TASK, Call

#: How long the recipe's lock lasts, and how long it remembers what is done; in seconds.
LOCK_EXPIRES = 600
DONE_EXPIRES = 86_400


class Recipe:
    """One worker's guard; here for what it costs. (If the worker dies its lock stays: the task is lost)."""

    name = "recipe: GET, SET NX EX, SET"

    def __init__(self, url: str) -> None:
        self.redis = redis.Redis.from_url(url)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.redis.close()

    def guard(self, call: Call) -> Mapping[str, str]:
        """Guard one run: look, lock, (run,) mark as done."""
        key = recipe_key(TASK, call)
        if self.redis.get(key) is not None:
            return {"status": "skipped"}
        if not self.redis.set(key, "processing", nx=True, ex=LOCK_EXPIRES):
            return {"status": "skipped"}
        self.redis.set(key, "completed", ex=DONE_EXPIRES)
        return {"status": "done"}


def recipe_key(task: str, call: Call) -> str:
    """Name a call as the recipe does: a truncated hash of its keyword arguments."""
    digest = hashlib.sha256(json.dumps(call, sort_keys=True).encode()).hexdigest()
    return f"task:{task}:{digest[:16]}"
