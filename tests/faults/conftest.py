"""Scenes for faults: one for each test, or one for all tests of a module that leave it as they found it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from faults.brokers import Broker, broker_on
from faults.scene import Scene, scene_of
from oncelery.testing.servers import ValkeyServer

Setting = Callable[..., AbstractContextManager[Scene]]


@pytest.fixture
def setting(tmp_path: Path, valkey: ValkeyServer) -> Setting:
    """Give what sets a scene, with its ledger and results on the Valkey that all tests share."""

    @contextmanager
    def set_scene(broker: Broker, *, store: str = "", lease: float = 2.0, **settings: object) -> Iterator[Scene]:
        with scene_of(
            tmp_path, broker=broker, store=store or valkey.url, results=valkey.url, lease=lease, **settings
        ) as scene:
            try:
                yield scene
            finally:
                for worker in scene.workers.started:
                    sys.stdout.write(f"{worker.log_file}:\n{worker.log}\n")

    return set_scene


@pytest.fixture(scope="module", params=["redis", "rabbitmq", "redis, ledger in PostgreSQL"])
def stage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, valkey: ValkeyServer
) -> Iterator[Scene]:
    """Give a scene that the tests of a module share: on each broker in turn, and with the ledger in PostgreSQL."""
    server, _, ledger = request.param.partition(", ")
    broker = broker_on(request.getfixturevalue({"redis": "valkey", "rabbitmq": "rabbitmq"}[server]))
    store = request.getfixturevalue("postgres").create_database() if ledger else valkey.url
    with scene_of(tmp_path_factory.mktemp("stage"), broker=broker, store=store, results=valkey.url) as scene:
        yield scene


@pytest.fixture(scope="module")
def stage_on_redis(tmp_path_factory: pytest.TempPathFactory, valkey: ValkeyServer) -> Iterator[Scene]:
    """Give a scene that the tests of a module share, for what does not depend on the broker."""
    folder = tmp_path_factory.mktemp("stage")
    with scene_of(folder, broker=broker_on(valkey), store=valkey.url, results=valkey.url) as scene:
        yield scene


@pytest.fixture
def scene(broker: Broker, setting: Setting) -> Iterator[Scene]:
    """Give a scene on each of Celery's brokers in turn."""
    with setting(broker) as scene:
        yield scene
