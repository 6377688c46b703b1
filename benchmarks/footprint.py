"""What does a completed job weigh in its store?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from time import monotonic, sleep
from typing import TypeVar
from uuid import uuid4

import psycopg
import redis
from celery import Celery, states

from benchmarks.calls import calls
from benchmarks.handwritten import Handwritten
from benchmarks.laboratory import Laboratory, say
from benchmarks.measure import Effort
from benchmarks.ours import Oncelery
from benchmarks.recipe import Recipe
from benchmarks.report import Table
from benchmarks.sites import Site

T = TypeVar("T")

#: How many threads fill a store.
THREADS = 4

#: Done before the first weighing: connections, scripts, statements, and the least that an index takes.
WARM_UP = 200

#: Tables, their indexes, and what is stored beside them.
RELATIONS_SIZE = r"""
SELECT sum(pg_total_relation_size(relation.oid))
  FROM pg_class AS relation JOIN pg_namespace AS schema ON schema.oid = relation.relnamespace
 WHERE relation.relkind = 'r' AND schema.nspname NOT LIKE 'pg\_%' AND schema.nspname <> 'information_schema'
"""


def ask(laboratory: Laboratory) -> Table:
    """Fill a fresh store with completed jobs and weigh it before and after; the rivals' records likewise."""
    effort = laboratory.effort
    table = Table(
        title=f"Weight of a completed job, of {effort.jobs:,}",
        note="Each has returned None. All keys, indexes and tables count. The recipe's lock only tells a duplicate; "
        "the job also keeps result and history, for which a user of the recipe has Celery's result beside the lock.",
    )
    for site in laboratory.fresh_sites():
        for record, weight in _on_redis(site, effort) if site.rival is Recipe else _on_postgres(site, effort):
            say(f"weighed: {site.name}, {record}")
            table.rows.append({"server": site.name, "record": record, "bytes": weight})
    return table


def _on_redis(site: Site, effort: Effort) -> Iterator[tuple[str, float]]:
    with redis.Redis.from_url(site.unix) as client, Oncelery(site.unix) as ours, Recipe(site.unix) as recipe:

        def weigh() -> int:
            return _calm_weight(client, effort.calm_seconds)

        yield "Oncelery: job", _weight_of_one(weigh, calls, ours.guard, effort.jobs)
        client.flushall()
        yield "recipe: lock key", _weight_of_one(weigh, calls, recipe.guard, effort.jobs)
        client.flushall()
        yield "Celery: result key", _weight_of_one(weigh, _task_ids, _celery_result(site.tcp), effort.jobs)


def _on_postgres(site: Site, effort: Effort) -> Iterator[tuple[str, float]]:
    with psycopg.connect(site.unix, autocommit=True) as connection:

        def weigh() -> int:
            connection.execute("VACUUM")
            (size,) = connection.execute(RELATIONS_SIZE).fetchone() or (0,)
            return int(size)

        with Oncelery(site.unix) as ours:
            yield "Oncelery: job", _weight_of_one(weigh, calls, ours.guard, effort.jobs)
        with Handwritten(site.unix) as handwritten:
            yield "by hand: row", _weight_of_one(weigh, calls, handwritten.guard, effort.jobs)


def _weight_of_one(
    weigh: Callable[[], int], prepare: Callable[[int], Iterable[T]], act: Callable[[T], object], number: int
) -> float:
    def fill(number: int) -> None:
        with ThreadPoolExecutor(THREADS) as threads:
            for _ in threads.map(act, prepare(number)):
                pass

    fill(WARM_UP)
    before = weigh()
    fill(number)
    return (weigh() - before) / number


def _calm_weight(client: redis.Redis, seconds: float) -> int:
    """Wait until tables are re-hashed and what was deleted is freed, and give the memory in use."""
    weight, since = -1, monotonic()
    while monotonic() - since < seconds:
        memory = client.info("memory")
        # What the connections and the log on its way to the disk take is no part of a job.
        passing = memory["mem_clients_normal"] + memory["mem_aof_buffer"]
        now = memory["used_memory"] - passing
        if now != weight or memory["lazyfree_pending_objects"]:
            weight, since = now, monotonic()
        sleep(0.1)
    return weight


def _task_ids(number: int) -> Iterator[str]:
    return (str(uuid4()) for _ in range(number))


def _celery_result(url: str) -> Callable[[str], object]:
    backend = Celery(backend=url, set_as_current=False).backend
    return lambda task_id: backend.store_result(task_id, None, states.SUCCESS)
