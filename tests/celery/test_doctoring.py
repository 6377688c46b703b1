"""The doctor on real servers: silent where all is well, and not where something was planted."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule
from faults.brokers import broker_on
from faults.workers import ALONE, Workers
from guarded.receiver import SECRET
from guarded.world import SOON, unshared_tasks
from kombu import Queue
from kombu.transport import TRANSPORT_ALIASES
from redis import Redis

from oncelery import Oncelery, only_one
from oncelery.celery import facts
from oncelery.celery.facts import gather
from oncelery.embedded.process import eventually
from oncelery.job import Submission
from oncelery.testing.servers import PostgresServer, RabbitMQServer, RedisServer, ValkeyServer

Shop = Callable[..., Oncelery]

SIGNED = {"webhook_secrets": SECRET}


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for no worker where there is none."""
    monkeypatch.setattr(facts, "WORKERS_PATIENCE", 0.05)


@pytest.fixture
def shop(valkey: ValkeyServer) -> Iterator[Shop]:
    """Make an app as the documents advise, with changes."""
    made: list[Oncelery] = []

    def make(
        *, store: str = valkey.url, broker: Any = valkey.url, conf: dict[str, Any] | None = None, **settings: Any
    ) -> Oncelery:
        app = Celery("shop", broker=broker, backend=valkey.url, set_as_current=False)
        app.conf.update(conf or {})
        once = Oncelery(
            app, **{"store": store, "recommended": True, "namespace": f"n{secrets.token_hex(4)}", **settings}
        )

        @once.task(name="shop.charge", key="order_id", shared=False)
        def charge(order_id: str) -> None: ...

        @app.task(name="shop.tidy", shared=False)
        @only_one
        def tidy() -> None: ...

        app.conf.beat_schedule = {"tidy": {"task": "shop.tidy", "schedule": 300.0}}
        made.append(once)
        return once

    with unshared_tasks():
        yield make
    for once in made:
        once.app.close()
        if "ledger" in vars(once):
            once.ledger.store.close()


def found(once: Oncelery) -> set[str]:
    return {finding.check for finding in once.doctor()}


@contextmanager
def set_to(server: ValkeyServer, **settings: str) -> Iterator[None]:
    """Configure a shared server wrongly, for a moment."""
    with Redis.from_url(server.url, decode_responses=True) as client:
        names = {name.replace("_", "-"): value for name, value in settings.items()}
        before = {name: client.config_get(name)[name] for name in names}
        for name, value in names.items():
            client.config_set(name, value)
        try:
            yield
        finally:
            for name, value in before.items():
                client.config_set(name, value)


def test_it_is_silent_on_valkey(shop: Shop) -> None:
    assert found(shop()) == set()


def test_it_is_silent_on_postgresql_and_rabbitmq(shop: Shop, rabbitmq: RabbitMQServer) -> None:
    with PostgresServer(options={"fsync": "on"}) as server:
        assert found(shop(store=server.url, broker=rabbitmq.create_vhost())) == set()


def test_what_celery_does_by_default_is_found(shop: Shop) -> None:
    assert found(shop(recommended=False)) == {"broker-retries", "broker-silence", "prefetch"}


@pytest.mark.parametrize(
    ("check", "conf"),
    [
        ("pickle-accepted", {"accept_content": ["json", "pickle"]}),
        ("always-eager", {"task_always_eager": True}),
        ("acks-on-failure", {"task_acks_on_failure_or_timeout": False}),
        ("visibility-timeout", {"broker_transport_options": {"visibility_timeout": 60}}),
        ("prefetch", {"worker_prefetch_multiplier": 8}),
        ("broker-retry-on-startup", {"broker_connection_retry_on_startup": False}),
        ("beat-retention", {"oncelery_namespace": "n1"}),
    ],
)
def test_a_setting_of_celery_that_is_wrong_is_found(shop: Shop, check: str, conf: dict[str, Any]) -> None:
    once = shop(conf=conf)
    if check == "beat-retention":

        @once.task(name="shop.report")
        def report() -> None: ...

        once.app.conf.beat_schedule = {"report": {"task": "shop.report", "schedule": timedelta(hours=1)}}

    assert check in found(once)


def test_a_schedule_of_any_kind_is_read(shop: Shop) -> None:
    once = shop()
    never = crontab(day_of_month=30, month_of_year=1)
    vars(never)["month_of_year"] = {2}  # as Celery 5.6 and older take it
    day, hour, minutes = timedelta(days=1), timedelta(hours=1), timedelta(minutes=5)
    times = [
        (300.0, minutes),
        (hour, hour),
        (schedule(300), minutes),
        (crontab(minute="0,5"), minutes),
        (crontab(hour=3, minute=0), day),
        (crontab(hour=3, minute=0, day_of_week="mon,tue"), day),
        (crontab(hour=3, minute=0, day_of_week="sun"), 7 * day),
        (never, None),
        (BaseSchedule(), None),
    ]
    once.app.conf.beat_schedule = {str(n): {"task": "shop.tidy", "schedule": when} for n, (when, _) in enumerate(times)}

    assert [period.every for period in gather(once).schedule] == [every for _, every in times]


def test_a_schedule_that_names_no_task_of_the_app_is_found(shop: Shop) -> None:
    once = shop()
    names = ("shop.tidy", "celery.backend_cleanup", "shop.tidi")
    once.app.conf.beat_schedule = {name: {"task": name, "schedule": 300.0} for name in names}

    (finding,) = once.doctor()

    assert (finding.check, "shop.tidi" in finding.what) == ("beat-unknown", True)


def test_tasks_that_are_declared_badly_are_found(shop: Shop) -> None:
    once = shop()
    app = once.app

    @app.task(name="shop.send_receipt")
    def send_receipt() -> None: ...

    @app.task(name="shop.tell")
    def tell(session: Any) -> None:
        session.post("https://example.org")

    @once.task(name="shop.log")
    def log(line: str, request_id: str) -> None: ...

    @once.task(name="shop.quick", lease=1, key="n")
    def quick(n: int) -> None: ...

    app.conf.beat_schedule = {"tell": {"task": "shop.tell", "schedule": 300.0}}
    app.finalize()
    app.tasks["shop.charge"].acks_late = False
    app.tasks["shop.quick"].reject_on_worker_lost = False

    findings = once.doctor()

    assert {finding.check for finding in findings} == {
        "acks-late",
        "beat-doubles",
        "lease-too-short",
        "reject-on-worker-lost",
        "unguarded-effects",
        "unstable-key",
    }
    assert {finding.what.split()[1] for finding in findings if finding.check == "unguarded-effects"} == {
        "shop.send_receipt",
        "shop.tell",
    }


@pytest.mark.parametrize(
    ("url", "settings", "remedy"),
    [
        ("https://example.org/told", {}, "Oncelery(app, webhook_secrets="),
        ("https://10.0.0.1/told", SIGNED, "Oncelery(app, allow_private=True)"),
        ("http://example.org/told", SIGNED, '@once.task(notify="https://'),
    ],
)
def test_a_call_back_that_would_be_refused_is_found_before_anybody_calls(
    shop: Shop, url: str, settings: dict[str, Any], remedy: str
) -> None:
    once = shop(**settings)

    @once.task(name="shop.refund", key="order_id", notify=url)
    def refund(order_id: str) -> None: ...

    (finding,) = once.doctor()

    assert (finding.check, finding.fix.startswith(remedy)) == ("notify-refused", True)
    assert ("shop.refund" in finding.what, url in finding.what) == (True, False)


def test_a_call_back_that_can_be_sent_is_not_suspected(shop: Shop) -> None:
    assert found(shop(**SIGNED, notify="https://example.org/told")) == set()


def test_a_valkey_that_evicts_forgets_or_is_full_is_found(shop: Shop, private_valkey: ValkeyServer) -> None:
    once = shop(store=private_valkey.url)

    with set_to(private_valkey, maxmemory_policy="allkeys-lru", maxmemory="100mb"):
        assert found(once) == {"redis-eviction"}
    with set_to(private_valkey, appendonly="no"):
        assert found(once) == {"redis-persistence"}
    with set_to(private_valkey, maxmemory="1mb"), pytest.MonkeyPatch.context() as patch:
        # A full server refuses the script that the sum is made by.
        patch.setattr(facts, "_longest_delay", lambda _ledger: timedelta(0))
        assert "redis-memory" in found(once)


def test_a_server_that_does_not_let_us_look_is_not_suspected(shop: Shop, private_valkey: ValkeyServer) -> None:
    with Redis.from_url(private_valkey.url) as client:
        client.execute_command("ACL", "SETUSER", "shop", "on", ">word", "~*", "&*", "+@all", "-info", "-config")
    url = private_valkey.url.replace("redis://", "redis://shop:word@")

    assert found(shop(store=url, broker=url)) == set()


def test_a_replica_is_found(shop: Shop, valkey: ValkeyServer, private_valkey: ValkeyServer) -> None:
    with Redis.from_url(private_valkey.url) as client:
        client.replicaof("127.0.0.1", valkey.port)

        assert "store-is-replica" in found(shop(store=private_valkey.url))


def test_an_older_redis_that_cannot_tell_when_a_write_is_safe_is_found(shop: Shop, redis7: RedisServer) -> None:
    with Redis.from_url(redis7.url) as client:
        version = str(client.info()["redis_version"])
    expected = {"durability-safe"} if version < "7.2" else set()

    assert found(shop(store=redis7.url, durability="safe")) == expected
    assert found(shop(store=redis7.url)) == set()


def test_a_variable_of_the_environment_that_is_almost_a_setting_is_found(
    shop: Shop, valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = found(shop(store=valkey.url))

    monkeypatch.setenv("ONCELERY_RETENTOIN", "60")

    assert found(shop(store=valkey.url)) - before == {"misspelt-variable"}


def test_a_postgresql_that_may_forget_is_found(shop: Shop, postgres: PostgresServer) -> None:
    database = postgres.create_database()

    # That of the tests does not write to disk, for speed.
    assert found(shop(store=f"{database}?migrate=false")) == {"postgres-fsync", "postgres-migrations"}
    hasty = f"{database}?options=-c%20synchronous_commit%3Doff"
    assert found(shop(store=hasty)) == {"postgres-fsync", "postgres-synchronous-commit"}


def test_servers_that_do_not_answer_are_found_and_told_apart(shop: Shop, valkey: ValkeyServer) -> None:
    nowhere = "redis://127.0.0.1:1/0"

    assert found(shop(store=nowhere)) == {"store-unreachable"}
    assert found(shop(broker=nowhere)) == {"broker-unreachable"}
    assert found(shop(store="")) == {"store-missing"}
    assert found(shop(store="memory://")) == {"store-in-memory"}
    assert found(shop(broker=valkey.url, store="mysql://localhost")) == {"store-unreachable"}


@pytest.mark.parametrize(
    ("broker", "remedy"),
    [
        ("foo://localhost", "correct broker_url"),
        ("rediss://localhost", "pip install 'celery[redis]'"),
        (["sqs://localhost", "sqs://elsewhere"], "pip install 'celery[sqs]'"),
    ],
)
def test_a_broker_whose_transport_cannot_be_loaded_is_found(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, broker: Any, remedy: str
) -> None:
    for alias in ("rediss", "sqs"):
        monkeypatch.setitem(TRANSPORT_ALIASES, alias, "not_installed:Transport")

    (finding,) = shop(broker=broker).doctor()

    assert (finding.check, remedy in finding.fix) == ("broker-unreachable", True)


@pytest.mark.parametrize("limit", [3, -1])
def test_a_quorum_queue_that_drops_messages_is_found(shop: Shop, rabbitmq: RabbitMQServer, *, limit: int) -> None:
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": limit}
    once = shop(broker=rabbitmq.create_vhost(), conf={"task_queues": [Queue("celery", queue_arguments=arguments)]})

    version = gather(once).broker.version
    unlimited = set() if version >= (4, 0) else {"quorum-limit-negative"}
    assert version >= (3, 8)
    assert found(once) == ({"quorum-delivery-limit"} if limit > 0 else unlimited)


def test_jobs_that_nobody_looks_after_are_found(shop: Shop) -> None:
    once = shop()
    once.ledger.reserve(Submission(id="1", key="a" * 64, task="shop.charge", body=b"[]", delay=timedelta(days=2)))

    assert found(once) == {"no-worker", "visibility-timeout"}


def test_how_long_tasks_run_is_read_from_the_counters(shop: Shop) -> None:
    once = shop(conf={"broker_transport_options": {"visibility_timeout": 700}})
    once.ledger.count({("shop.charge", "run/900"): 3, ("shop.charge", "run/3600"): 1, ("shop.quick", "run/0.1"): 50})

    (finding,) = once.doctor()

    assert gather(once).store.p99 == {"shop.charge": timedelta(seconds=900), "shop.quick": timedelta(seconds=0.05)}
    assert finding.check == "visibility-timeout"


def test_a_worker_is_asked_how_far_it_fetches_ahead_and_which_tasks_it_knows(
    shop: Shop, workers: Workers, monkeypatch: pytest.MonkeyPatch, valkey: ValkeyServer
) -> None:
    monkeypatch.setattr(facts, "WORKERS_PATIENCE", 3.0)
    broker = broker_on(valkey)
    workers.start("faults.plain_app", broker=broker, concurrency=1, options=[*ALONE, "--prefetch-multiplier", "7"])

    once = shop(broker=broker.url)
    once.app.conf.beat_schedule = {"write": {"task": "write", "schedule": 300.0}}
    # One that has just started may not hear yet.
    assert eventually(lambda: bool(once.app.control.ping(timeout=1.0)), SOON)

    # It is then told with its name.
    once.app.control.rate_limit("write", "1000/s", reply=True, limit=1)

    what = {finding.check: finding.what for finding in once.doctor()}

    assert set(what) == {"prefetch", "task-unknown"}
    assert "fetches 7 messages for 1" in what["prefetch"]
    assert "shop.charge" in what["task-unknown"]
