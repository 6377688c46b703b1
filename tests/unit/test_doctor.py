from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from oncelery.errors import ConfigurationError
from oncelery.fingerprint import TASK_ID
from oncelery.job import State, Tally
from oncelery.operations.doctor import CHECKS, STORE_CHECKS, Severity, examine
from oncelery.operations.facts import BrokerFacts, Facts, Period, QueueFacts, StoreFacts, TaskFacts, WorkerFacts
from oncelery.policy import Policy
from oncelery.settings import Settings
from oncelery.stores.facts import ServerFacts

DOCUMENT = Path(__file__).parents[2] / "docs" / "doctor.md"
NOW = datetime(2030, 1, 1, tzinfo=UTC)

REDIS = ServerFacts(
    kind="redis",
    version=(8, 0),
    now=NOW,
    says={"maxmemory_policy": "noeviction", "aof_enabled": "1", "appendfsync": "everysec", "run_id": "a"},
    replica=False,
)
POSTGRES = ServerFacts(
    kind="postgresql",
    version=(18, 1),
    now=NOW,
    says={"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"},
    replica=False,
)
TALLY = Tally(states=dict.fromkeys(State, 0), lapsed=0, overdue=timedelta(0), decisions={})
CHARGE = TaskFacts(name="shop.charge", policy=Policy(key="order_id"), counted={"order_id": "str"})
TIDY = TaskFacts(name="shop.tidy", only_one=True)
WORKER = WorkerFacts(
    name="worker@here", prefetched=2, concurrency=2, knows=frozenset({"shop.charge", "oncelery.notify"})
)

#: Nothing is wrong with it. (What kombu reads as YAML runs no code.)
GOOD = Facts(
    store=StoreFacts(scheme="redis", server=REDIS, tally=TALLY, p99={"shop.charge": timedelta(seconds=30)}),
    settings=Settings(store="redis://store"),
    conf={
        "accept_content": ["json", "yaml"],
        "broker_connection_retry": True,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_transport_options": {"visibility_timeout": 43200, "socket_timeout": 30, "read_timeout": 30},
        "worker_prefetch_multiplier": 1,
    },
    tasks=(CHARGE, TIDY),
    schedule=(Period(name="tidy up", task="shop.tidy", every=timedelta(minutes=5)),),
    broker=BrokerFacts(kind="redis", server=REDIS),
    workers=(WORKER, replace(WORKER, name="worker@there", knows=frozenset({"shop.tidy"}))),
)


def configured(**changes: object) -> Facts:
    return replace(GOOD, conf={**GOOD.conf, **changes})


def stored(**changes: Any) -> Facts:  # noqa: ANN401 - as `replace` takes it
    return replace(GOOD, store=replace(GOOD.store, **changes))


def on_redis(*, version: tuple[int, ...] = (8, 0), **says: str) -> Facts:
    return stored(server=replace(REDIS, version=version, says={**REDIS.says, **says}))


def on_postgres(says: Mapping[str, str] | None = None, **changes: Any) -> Facts:  # noqa: ANN401 - as `replace` takes it
    server = replace(POSTGRES, says={**POSTGRES.says, **(says or {})}, **changes)
    return replace(GOOD, store=replace(GOOD.store, scheme="postgresql", server=server))


def brokered(**changes: Any) -> Facts:  # noqa: ANN401 - as `replace` takes it
    return replace(GOOD, broker=replace(GOOD.broker, **changes))


def charging(**changes: Any) -> Facts:  # noqa: ANN401 - as `replace` takes it
    return replace(GOOD, tasks=(replace(CHARGE, **changes), TIDY))


def knowing(*known: set[str] | None) -> Facts:
    tasks = [None if names is None else frozenset(names) for names in known]
    return replace(GOOD, workers=tuple(replace(WORKER, name=f"{n}", knows=names) for n, names in enumerate(tasks)))


def tidying(policy: Policy) -> Facts:
    return replace(GOOD, tasks=(CHARGE, TaskFacts(name="shop.tidy", policy=policy)))


def quorum(arguments: dict[str, object], version: tuple[int, ...] = (4, 1)) -> Facts:
    queue = QueueFacts(name="orders", arguments={"x-queue-type": "quorum", **arguments})
    return brokered(kind="amqp", server=None, version=version, queues=(queue,))


def replicated(*, to_write: int, replicas: int, max_lag: int = 3, safe_replicas: int = 0) -> Facts:
    says = {
        "connected_slaves": str(replicas),
        "min-replicas-to-write": str(to_write),
        "min-replicas-max-lag": str(max_lag),
        "appendfsync": "always",
    }
    return stored(server=replace(REDIS, says={**REDIS.says, **says}, replicas=safe_replicas))


def safely(facts: Facts) -> Facts:
    safe = Policy(key="order_id", durability="safe")  # type: ignore[arg-type] # as people write it
    return replace(facts, tasks=(replace(CHARGE, policy=safe), TIDY))


STRANGE = Period(name="tidy theirs", task="their.tidy", every=timedelta(minutes=5), known=False)

PLANTED = [
    ("store-missing", replace(GOOD, store=StoreFacts(scheme=""))),
    ("store-unreachable", replace(GOOD, store=StoreFacts(scheme="redis", error="connection refused"))),
    ("store-in-memory", replace(GOOD, store=StoreFacts(scheme="memory"))),
    ("store-is-replica", stored(server=replace(REDIS, replica=True))),
    ("redis-eviction", on_redis(maxmemory_policy="allkeys-lru")),
    ("redis-eviction", brokered(server=replace(REDIS, says={"maxmemory_policy": "volatile-lru", "run_id": "b"}))),
    ("redis-memory", on_redis(maxmemory="1000", used_memory="900")),
    ("redis-persistence", on_redis(aof_enabled="0")),
    ("redis-version", on_redis(version=(6, 2))),
    ("durability-safe", safely(on_redis(version=(7, 0)))),
    ("durability-latency", safely(GOOD)),
    ("redis-min-replicas", replicated(to_write=0, replicas=2)),
    ("redis-min-replicas", replicated(to_write=1, replicas=2, max_lag=0)),
    ("redis-spare-replica", replicated(to_write=1, replicas=1)),
    ("redis-spare-replica", safely(replicated(to_write=1, replicas=2, safe_replicas=2))),
    ("postgres-fsync", on_postgres({"fsync": "off"})),
    ("postgres-fsync", on_postgres({"full_page_writes": "off"})),
    ("postgres-synchronous-commit", on_postgres({"synchronous_commit": "off"})),
    ("postgres-migrations", on_postgres(ready=False, migrates=False)),
    ("postgres-version", on_postgres(version=(13, 4))),
    ("clock-skew", stored(skew=timedelta(seconds=-5))),
    ("broker-unreachable", brokered(error="connection refused")),
    ("broker-unreachable", brokered(error="no module named 'redis'", missing="redis")),
    ("broker-is-replica", brokered(server=replace(REDIS, replica=True))),
    ("visibility-timeout", configured(broker_transport_options={"visibility_timeout": 20, "socket_timeout": 30})),
    ("visibility-timeout", stored(longest_delay=timedelta(days=1))),
    ("consumer-timeout", replace(stored(p99={"shop.charge": timedelta(hours=1)}), broker=BrokerFacts(kind="amqp"))),
    ("quorum-delivery-limit", quorum({})),
    ("quorum-delivery-limit", quorum({"x-delivery-limit": 3, "x-dead-letter-exchange": "dead"})),
    ("quorum-limit-negative", quorum({"x-delivery-limit": -1}, version=(3, 13))),
    ("broker-silence", configured(broker_transport_options={"visibility_timeout": 43200})),
    ("broker-silence", replace(configured(broker_transport_options=None), broker=BrokerFacts(kind="amqp"))),
    ("broker-retry-on-startup", configured(broker_connection_retry_on_startup=False)),
    ("broker-retries", configured(broker_connection_max_retries=100)),
    ("broker-retries", configured(broker_connection_retry=False)),
    ("prefetch", replace(configured(worker_prefetch_multiplier=4), broker=BrokerFacts(kind="amqp"))),
    ("prefetch", replace(GOOD, workers=(WorkerFacts(name="w", prefetched=8, concurrency=2),))),
    ("pickle-accepted", configured(accept_content=["json", "pickle"])),
    ("pickle-accepted", configured(result_accept_content=["application/x-python-serialize"])),
    ("misspelt-variable", replace(GOOD, variables=("ONCELERY_LEASE", "ONCELERY_LEESE", "ONCELERY_APP"))),
    ("always-eager", configured(task_always_eager=True)),
    ("sweeper-absent", stored(tally=Tally(states={}, lapsed=1, overdue=timedelta(hours=1), decisions={}))),
    ("sweeper-off", replace(GOOD, settings=Settings(store="redis://store", sweep_every=0))),
    (
        "no-worker",
        replace(
            stored(tally=Tally(states={State.QUEUED: 3}, lapsed=0, overdue=timedelta(0), decisions={})), workers=()
        ),
    ),
    ("task-unknown", knowing({"shop.tidy"}, {"shop.charge_all"})),
    ("task-unknown", knowing(set())),
    ("acks-late", charging(acks_late=False)),
    ("reject-on-worker-lost", charging(reject_on_worker_lost=False)),
    ("acks-on-failure", charging(acks_on_failure=False)),
    ("acks-on-failure", charging(acks_on_timeout=False)),
    ("lease-too-short", charging(policy=Policy(key="order_id", lease=timedelta(seconds=1)))),
    ("lease-too-short", stored(round_trip=timedelta(seconds=2))),
    (
        "history-too-short",
        charging(policy=Policy(key="order_id", retention=timedelta(0), history=timedelta(minutes=59))),
    ),
    (
        "history-too-short",
        replace(
            charging(policy=Policy(key="order_id", retention=timedelta(0), history=timedelta(0))),
            broker=BrokerFacts(kind="amqp"),
        ),
    ),
    ("notify-refused", charging(notify_refused="call-backs are sent to https:// only")),
    ("unguarded-effects", replace(GOOD, tasks=(*GOOD.tasks, TaskFacts(name="shop.send_receipt")))),
    (
        "unguarded-effects",
        replace(GOOD, tasks=(*GOOD.tasks, TaskFacts(name="shop.tell", calls=frozenset({"sendmail"})))),
    ),
    ("unstable-key", charging(policy=Policy(), counted={"order": "str", "request_id": "str"})),
    ("unstable-key", charging(policy=Policy(), counted={"order": "str", "when": "datetime"})),
    ("beat-doubles", replace(GOOD, tasks=(CHARGE, TaskFacts(name="shop.tidy")))),
    ("beat-retention", tidying(Policy())),
    ("beat-retention", tidying(Policy(key="project"))),
    ("beat-unknown", replace(GOOD, schedule=(STRANGE,))),
]


def test_a_good_set_up_has_no_findings() -> None:
    assert examine(GOOD) == ()
    assert examine(on_postgres()) == ()
    assert examine(safely(replicated(to_write=1, replicas=2, safe_replicas=1))) == ()
    assert examine(configured(broker_connection_retry_on_startup=None)) == ()
    assert examine(quorum({"x-delivery-limit": -1})) == ()
    assert examine(quorum({}, version=(3, 12))) == ()
    assert examine(quorum({"x-delivery-limit": -1}, version=())) == ()
    assert examine(replace(GOOD, workers=())) == ()
    assert examine(knowing({"shop.tidy"}, None)) == ()
    assert examine(replace(knowing({"shop.charge", "their.tidy"}), schedule=(STRANGE,))) == ()
    assert examine(tidying(Policy(retention=timedelta(0)))) == ()
    assert examine(tidying(Policy(key=TASK_ID))) == ()
    assert examine(tidying(Policy(key=lambda: datetime.now(UTC)))) == ()


@pytest.mark.parametrize(("name", "facts"), PLANTED, ids=[f"{name}-{n}" for n, (name, _) in enumerate(PLANTED)])
def test_what_is_wrong_is_found_by_its_check_and_by_no_other(name: str, facts: Facts) -> None:
    found = examine(facts)

    assert {finding.check for finding in found} == {name}
    assert all(finding.what and finding.why and finding.fix for finding in found)


def test_every_check_has_something_planted_for_it_and_a_name_and_a_reason_of_its_own() -> None:
    names = [check.name for check in CHECKS]

    assert set(names) == {name for name, _ in PLANTED}
    assert len(set(names)) == len({check.why for check in CHECKS}) == len(names) >= 15


def test_errors_come_first_and_what_is_ignored_does_not_come() -> None:
    facts = replace(GOOD, conf={**GOOD.conf, "broker_connection_retry_on_startup": False, "accept_content": ["pickle"]})

    assert [finding.severity for finding in examine(facts)] == [Severity.ERROR, Severity.WARNING]
    assert [finding.check for finding in examine(facts, ignore=["pickle-accepted"])] == ["broker-retry-on-startup"]
    with pytest.raises(ConfigurationError, match="no such check: nonsense"):
        examine(facts, ignore=["nonsense"])


def test_a_time_of_the_app_is_told_of_once_and_a_tasks_own_by_its_name() -> None:
    def told(**own: Mapping[str, float]) -> list[tuple[str, str]]:
        usual: Mapping[str, Any] = {"lease": 2, "history": 60, "retention": 0}
        tasks = [TaskFacts(name=name, policy=Policy.of(**{**usual, **times})) for name, times in own.items()]
        facts = replace(GOOD, settings=Settings(policy=usual), tasks=tuple(tasks), schedule=(), workers=())
        return [(finding.what, finding.fix) for finding in examine(facts)]

    assert told(a={}, b={}, c={"lease": 30, "history": 86400}) == [
        ("the app has a history of 60 s", "Oncelery(app, history=86400)"),
        ("the app has a lease of 2 s", "Oncelery(app, lease=30)"),
    ]
    assert told(a={"lease": 3, "history": 30}) == [
        ("task a has a history of 30 s", "@once.task(history=86400)"),
        ("task a has a lease of 3 s", "@once.task(lease=30)"),
    ]


def test_a_store_can_be_examined_alone() -> None:
    facts = Facts(store=replace(GOOD.store, skew=timedelta(minutes=1)))

    assert [finding.check for finding in examine(facts)] == ["clock-skew"]
    assert [finding.check for finding in examine(facts, checks=STORE_CHECKS)] == ["clock-skew"]


def test_the_document_lists_every_check_with_its_reason() -> None:
    rows = [f"| `{check.name}` | {check.severity} | {check.why} |" for check in CHECKS]

    text = DOCUMENT.read_text()

    assert [row for row in rows if row not in text] == [], "write these rows into docs/doctor.md"
    assert text.count("\n| `") == len(rows)
