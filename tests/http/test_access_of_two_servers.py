"""Two servers of one service agree on who may do what, and how much."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import msgspec
import pytest
from guarded.served_with_keys import VARIABLE
from guarded.serving import WebServer

from oncelery.embedded.process import eventually
from oncelery.http import ApiKey, new_key
from oncelery.testing.servers import ValkeyServer

#: Longer than a rotation takes on a busy machine; reached only by a test that fails.
SOON = 30.0

STEADY, STEADY_KEY = new_key("steady", scope="acme")
OLD, OLD_KEY = new_key("old", scope="acme")
NEW, NEW_KEY = new_key("new", scope="acme")


def write(path: Path, *keys: ApiKey) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(msgspec.json.encode(keys))
    new.replace(path)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    write(path, STEADY_KEY, OLD_KEY)
    return path


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory, valkey: ValkeyServer, keys: Path) -> Iterator[list[str]]:
    environment = {
        "ONCELERY_STORE": valkey.url,
        "ONCELERY_NAMESPACE": secrets.token_hex(4),
        VARIABLE: str(keys),
    }
    folder = tmp_path_factory.mktemp("servers")
    served = [WebServer(folder / str(n), "guarded.served_with_keys:api", environment) for n in (1, 2)]
    with served[0], served[1]:
        yield [server.url for server in served]


def post(url: str, order: int, key: str = STEADY) -> int:
    return httpx2.post(f"{url}/jobs/charge", json={"order": order}, headers={"X-API-Key": key}, timeout=30).status_code


def test_of_many_that_come_at_once_as_many_are_accepted_as_the_tenant_may_have(servers: list[str]) -> None:
    with ThreadPoolExecutor(12) as clients:
        statuses = Counter(clients.map(lambda n: post(servers[n % 2], n), range(48)))

    assert statuses == {202: 5, 429: 43}


def test_a_key_is_rotated_on_all_servers_while_they_run(servers: list[str], keys: Path) -> None:
    def let_in(key: str) -> list[bool]:
        return [httpx2.get(f"{url}/jobs", headers={"X-API-Key": key}, timeout=30).status_code == 200 for url in servers]

    assert (let_in(OLD), let_in(NEW)) == ([True, True], [False, False])
    write(keys, STEADY_KEY, NEW_KEY)
    assert eventually(lambda: let_in(NEW) == [True, True] and let_in(OLD) == [False, False], SOON)
