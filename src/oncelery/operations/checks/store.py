"""Is the ledger kept where nothing forgets it?"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from oncelery.operations.checks.check import Complaint, error, warning
from oncelery.operations.facts import Facts
from oncelery.stores.facts import WAITAOF_SINCE, ServerFacts

#: The oldest Redis that its makers still mend; PostgreSQL's is of the ledger's own making.
OLDEST_REDIS = (7, 0)
OLDEST_POSTGRES = (14, 0)

#: Delays are counted by one clock and kept by another: more than this between them is felt.
MOST_SKEW = timedelta(seconds=2)

#: How much of its memory a server may have used before writes are about to be refused.
NEARLY_FULL = 0.8


@error
def store_missing(facts: Facts) -> Iterator[Complaint]:
    """Guarded tasks refuse to be published or run without a ledger."""
    if not facts.store.scheme:
        yield "no store is set", 'Oncelery(app, store="redis://localhost:6379/1")  # or oncelery_store, ONCELERY_STORE'


@error
def store_unreachable(facts: Facts) -> Iterator[Complaint]:
    """While the store is away guarded tasks are neither accepted nor run."""
    # An error of ours may carry its remedy: a driver that is not installed.
    problem, install, what = facts.store.error.partition("pip install ")
    if install:
        yield f"the store cannot be asked: {problem.removesuffix(': ')}", install + what
    elif problem:
        yield f"the store does not answer: {problem}", "start the server, or correct oncelery_store (ONCELERY_STORE)"


@error
def store_in_memory(facts: Facts) -> Iterator[Complaint]:
    """Each process has a ledger of its own in memory: duplicates are not seen, and a restart forgets all jobs."""
    if facts.store.scheme == "memory" and facts.broker.kind not in {"", "memory"}:
        yield "the ledger is in memory, but the broker is shared", 'Oncelery(app, store="redis://localhost:6379/1")'


@error
def store_is_replica(facts: Facts) -> Iterator[Complaint]:
    """A replica refuses every write."""
    server = facts.store.server
    if server and server.replica:
        yield "the store's URL leads to a replica", _PRIMARY[server.kind]


@error
def redis_eviction(facts: Facts) -> Iterator[Complaint]:
    """A full server that evicts forgets jobs and messages at random: what was done is done again, or never."""
    for whose, server in _redis_servers(facts):
        policy = server.says.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            yield f"{whose} has maxmemory-policy {policy}", "redis-cli CONFIG SET maxmemory-policy noeviction"


@warning
def redis_memory(facts: Facts) -> Iterator[Complaint]:
    """A server that is full and does not evict refuses all writes: nothing is accepted any more."""
    for whose, server in _redis_servers(facts):
        most, used = (int(server.says.get(name, "0")) for name in ("maxmemory", "used_memory"))
        if most and used > most * NEARLY_FULL:
            yield (
                f"{whose} has used {used / most:.0%} of its maxmemory",
                f"redis-cli CONFIG SET maxmemory {most * 2}  # or shorten retention= and history=",
            )


@warning
def redis_persistence(facts: Facts) -> Iterator[Complaint]:
    """Without an append-only file a restart forgets what happened since the last snapshot, done or not."""
    server = _redis(facts)
    if server and server.says.get("aof_enabled", "1") == "0":
        yield "the store has no append-only file", "redis-cli CONFIG SET appendonly yes  # and CONFIG REWRITE"


@warning
def redis_version(facts: Facts) -> Iterator[Complaint]:
    """Its makers no longer mend it, and it cannot refuse a script before that has written when it is full."""
    server = _redis(facts)
    if server and server.version < OLDEST_REDIS:
        yield f"the store is Redis {_dotted(server)}", "install Redis 7.2 or newer, or Valkey"


@error
def durability_safe(facts: Facts) -> Iterator[Complaint]:
    """A transition that must survive a crash needs a server that can tell when it does; else the task is refused."""
    server = _redis(facts)
    if server is None or not facts.safe_tasks or server.replicas:
        return
    kept = server.says.get("aof_enabled", "1") == "1"
    if not kept or (server.version < WAITAOF_SINCE and server.says.get("appendfsync") != "always"):
        yield (
            f'durability="safe" is asked for by {_named(facts.safe_tasks)}, and this server cannot give it',
            "redis-cli CONFIG SET appendonly yes"
            + ("" if server.version >= WAITAOF_SINCE else " && redis-cli CONFIG SET appendfsync always"),
        )


@warning
def durability_latency(facts: Facts) -> Iterator[Complaint]:
    """A safe write waits for the next `fsync`: with `everysec` some 100 ms for each of the three calls of a job."""
    server = _redis(facts)
    waits = server and server.version >= WAITAOF_SINCE and server.says.get("aof_enabled", "1") == "1"
    if server and waits and facts.safe_tasks and server.says.get("appendfsync") == "everysec":
        yield (
            f'durability="safe" is asked for by {_named(facts.safe_tasks)}, and the store has appendfsync everysec',
            "redis-cli CONFIG SET appendfsync always  # and CONFIG REWRITE",
        )


@warning
def redis_min_replicas(facts: Facts) -> Iterator[Complaint]:
    """A primary that was cut off and replaced does not know it: what it still accepts is thrown away later."""
    server = _redis(facts)
    # The nodes of a cluster stop by themselves when they are cut off.
    if server and _replicas(server) and server.says.get("redis_mode") != "cluster":
        off = [name for name in ("min-replicas-to-write", "min-replicas-max-lag") if server.says.get(name) == "0"]
        if off:
            yield (
                f"the store has replicas, and {off[0]} is 0",
                "redis-cli CONFIG SET min-replicas-to-write 1 && redis-cli CONFIG SET min-replicas-max-lag 3",
            )


@warning
def redis_spare_replica(facts: Facts) -> Iterator[Complaint]:
    """A replica that takes over has one replica less: if writes need more than are left, nothing is accepted."""
    server = _redis(facts)
    if server is None:
        return
    needed = max(int(server.says.get("min-replicas-to-write", "0")), server.replicas if facts.safe_tasks else 0)
    if needed and "connected_slaves" in server.says and _replicas(server) <= needed:
        yield (
            f"a write needs {needed} of {_replicas(server)} replicas, and after a fail-over one is missing",
            f"redis-cli -h NEW REPLICAOF PRIMARY 6379  # {needed + 1} replicas or more for each primary"
            + ("; or no ?replicas=, and appendfsync always" if server.replicas == needed else ""),
        )


@error
def postgres_fsync(facts: Facts) -> Iterator[Complaint]:
    """What is committed but not on disk is lost, or the whole database with it, when the machine goes down."""
    for name in ("fsync", "full_page_writes"):
        if _postgres_says(facts, name) == "off":
            yield f"PostgreSQL runs with {name} = off", f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf();"


@warning
def postgres_synchronous_commit(facts: Facts) -> Iterator[Complaint]:
    """The last commits before a crash are undone, though they were answered; "safe" tasks alone are not concerned."""
    if _postgres_says(facts, "synchronous_commit") == "off":
        yield (
            "PostgreSQL runs with synchronous_commit = off",
            'ALTER SYSTEM SET synchronous_commit = on; SELECT pg_reload_conf();  # or durability="safe"',
        )


@error
def postgres_migrations(facts: Facts) -> Iterator[Complaint]:
    """A ledger without its tables, or with those of an older version, refuses every verb."""
    server = facts.store.server
    if server and not server.ready and not server.migrates:
        yield (
            f"the schema {facts.settings.namespace!r} lacks migrations, and the store's URL says migrate=false",
            f"oncelery migrate --store URL --namespace {facts.settings.namespace}",
        )


@error
def postgres_version(facts: Facts) -> Iterator[Complaint]:
    """The ledger's functions are written for PostgreSQL 14 and newer."""
    server = facts.store.server
    if server and server.kind == "postgresql" and server.version < OLDEST_POSTGRES:
        yield f"the store is PostgreSQL {server.version[0]}", "upgrade the server to PostgreSQL 14 or newer"


@warning
def clock_skew(facts: Facts) -> Iterator[Complaint]:
    """Countdowns are reckoned by this machine and kept by the store: jobs begin too early or too late."""
    if abs(facts.store.skew) > MOST_SKEW:
        ahead = facts.store.skew.total_seconds()
        yield (
            f"the store's clock is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} this machine's",
            "timedatectl set-ntp true  # on both machines",
        )


CHECKS = (
    store_missing,
    store_unreachable,
    store_in_memory,
    store_is_replica,
    redis_eviction,
    redis_memory,
    redis_persistence,
    redis_version,
    durability_safe,
    durability_latency,
    redis_min_replicas,
    redis_spare_replica,
    postgres_fsync,
    postgres_synchronous_commit,
    postgres_migrations,
    postgres_version,
    clock_skew,
)

_PRIMARY = {
    "redis": "redis://primary:6379/1 as the store, or redis://sentinel:26379/1?sentinel=NAME",
    "postgresql": "postgresql://primary/database as the store, or add ?target_session_attrs=read-write",
}


def _redis(facts: Facts) -> ServerFacts | None:
    server = facts.store.server
    return server if server and server.kind == "redis" else None


def _redis_servers(facts: Facts) -> Iterator[tuple[str, ServerFacts]]:
    """Give the store and the broker; once, if they are one."""
    store, broker = _redis(facts), facts.broker.server
    if store:
        yield "the store", store
    if broker and not (store and store.says.get("run_id") == broker.says.get("run_id")):
        yield "the broker", broker


def _replicas(server: ServerFacts) -> int:
    return int(server.says.get("connected_slaves", "0"))


def _postgres_says(facts: Facts, name: str) -> str:
    server = facts.store.server
    return server.says.get(name, "") if server and server.kind == "postgresql" else ""


def _dotted(server: ServerFacts) -> str:
    return ".".join(str(number) for number in server.version)


def _named(names: list[str]) -> str:
    most = 3
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
