"""Worlds for the tests that ask for one; a plug-in of tests/conftest.py."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from faults.brokers import Broker, broker_on
from faults.workers import Workers

from guarded.hand import Hand
from guarded.world import World, unshared_tasks
from oncelery.testing.servers import RabbitMQServer, ValkeyServer

AnyWorld = TypeVar("AnyWorld", bound=World)


@pytest.fixture
def hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hand]:
    """Give a world of this process alone, in which the test itself plays the worker."""
    yield from set_up(Hand(tmp_path), monkeypatch)


@pytest.fixture(scope="module")
def broker_here(valkey: ValkeyServer) -> Broker:
    """Give the broker of this module's world; a module on another one says so."""
    return broker_on(valkey)


@pytest.fixture(scope="module")
def rabbit_broker(rabbitmq: RabbitMQServer) -> Broker:
    """Give a broker on RabbitMQ."""
    return broker_on(rabbitmq)


@pytest.fixture(scope="module")
def settings_here() -> dict[str, object]:
    """Give further settings for this module's world; a module that has some says so."""
    return {}


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: pytest.TempPathFactory,
    valkey: ValkeyServer,
    broker_here: Broker,
    settings_here: dict[str, object],
) -> Iterator[World]:
    """Give a world whose ledger and results are on Valkey, among those of others."""
    namespace = secrets.token_hex(4)
    ledger = {"oncelery_store": valkey.url, "oncelery_namespace": namespace, "result_backend": valkey.url}
    world = World(tmp_path_factory.mktemp("world"), broker_here.settings | ledger | settings_here)
    with pytest.MonkeyPatch.context() as patch:
        yield from set_up(world, patch)


@pytest.fixture(scope="module")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """Give what starts workers that all tests of a module share; shows what they said at its end."""
    with Workers(tmp_path_factory.mktemp("workers")) as workers:
        yield workers
    for worker in workers.started:
        sys.stdout.write(f"{worker.log_file}:\n{worker.log}\n")


def set_up(world: AnyWorld, patch: pytest.MonkeyPatch) -> Iterator[AnyWorld]:
    """Tell tasks that run in this process where the journal is, and take the world down in the end."""
    for variable, value in world.journal.environment.items():
        patch.setenv(variable, value)
    with unshared_tasks():
        yield world
    world.close()
