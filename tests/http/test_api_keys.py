"""API keys, from where they come; and whom the service answers that has none."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner
from fastapi import FastAPI
from fastapi.testclient import TestClient
from guarded.hand import Hand
from guarded.web import HERE, client_of
from httpx2 import ASGITransport, AsyncClient
from starlette.types import Receive, Scope, Send

from oncelery import ConfigurationError
from oncelery.cli import main
from oncelery.cli.new_key import ROLES
from oncelery.http import ApiKey, Role, create_app, create_router, new_key
from oncelery.http import keys as keys_module
from oncelery.http.auth import tell_local
from oncelery.http.keys import add_to_file

#: Longer than anything here takes on a busy machine; reached only by a test that fails.
SOON = 20.0

# Keys


def write(path: Path, *keys: ApiKey) -> None:
    entries = [{"name": key.name, "sha256": key.sha256, "scope": key.scope, "roles": sorted(key.roles)} for key in keys]
    new = path.with_suffix(".new")
    new.write_text(json.dumps(entries))
    new.replace(path)


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys_module, "FRESH", -1.0)


@pytest.mark.usefixtures("_at_once")
def test_keys_in_a_file_are_rotated_without_a_restart(
    hand: Hand, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (old, old_key), (new, new_kept) = new_key("old"), new_key("new")
    path = tmp_path / "keys.json"
    write(path, old_key)
    client = client_of(create_app(hand.once, keys=path))

    def statuses() -> list[int]:
        return [client.get("/jobs", headers={"X-API-Key": text}).status_code for text in (old, new)]

    assert statuses() == [200, 401]
    write(path, old_key, new_kept)
    assert statuses() == [200, 200]
    write(path, new_kept)
    assert statuses() == [401, 200]

    path.write_text("[{half a file")
    assert statuses() == [401, 200]
    assert "API keys could not be read again" in caplog.text
    assert old not in path.read_text()


def test_a_file_that_is_missing_or_wrong_at_the_start_is_refused(hand: Hand, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.json"
    for text in (
        "{}",
        '[{"name": "x"}]',
        '[{"name": "x", "sha256": "abc"}]',
        '[{"name":"x","sha256":"%s","roles":["root"]}]',
    ):
        wrong.write_text(text.replace("%s", "0" * 64))
        with pytest.raises(ConfigurationError, match=r"wrong\.json"):
            create_app(hand.once, keys=wrong)
    with pytest.raises(ConfigurationError, match=r"missing\.json"):
        create_app(hand.once, keys=str(tmp_path / "missing.json"))


@pytest.mark.parametrize(
    ("more", "named"), [({"roles": ["read"], "Scope": "acme"}, "Scope"), ({"role": ["read"]}, "role"), ({}, "roles")]
)
def test_a_misspelt_or_missing_field_does_not_give_a_key_more_than_was_meant(
    hand: Hand, tmp_path: Path, more: dict[str, object], named: str
) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps([{"name": "shop", "sha256": "0" * 64, **more}]))

    with pytest.raises(ConfigurationError, match=rf"keys\.json.*field `{named}`"):
        create_app(hand.once, keys=path)


@pytest.mark.usefixtures("_at_once")
def test_keys_may_come_from_a_callable(hand: Hand) -> None:
    text, key = new_key("ops")
    known: list[ApiKey] = []
    client = client_of(create_app(hand.once, keys=lambda: known))

    assert client.get("/jobs", headers={"X-API-Key": text}).status_code == 401
    known.append(key)
    assert client.get("/jobs", headers={"X-API-Key": text}).status_code == 200


@pytest.mark.usefixtures("_at_once")
def test_while_keys_are_read_others_are_answered_and_no_key_is_good_that_was_taken_away(hand: Hand) -> None:
    text, key = new_key("ops")
    known, asked, told = [key], threading.Event(), threading.Event()

    def load_keys() -> list[ApiKey]:
        if not known:
            asked.set()
            assert told.wait(SOON)
        return known

    app = create_app(hand.once, keys=load_keys)

    async def scene() -> list[int]:
        async with AsyncClient(transport=ASGITransport(app), base_url="http://localhost") as client:
            known.clear()
            callers = [asyncio.create_task(client.get("/jobs", headers={"X-API-Key": text})) for _ in range(2)]
            assert await asyncio.to_thread(asked.wait, SOON)
            alive = await client.get("/healthz")
            told.set()
            return [alive.status_code, *(answer.status_code for answer in await asyncio.gather(*callers))]

    assert asyncio.run(scene()) == [200, 401, 401]


def test_an_empty_list_of_keys_lets_nobody_in(hand: Hand) -> None:
    assert client_of(create_app(hand.once, keys=[])).get("/jobs").status_code == 401


def test_a_key_is_kept_as_its_hash_and_has_256_bits() -> None:
    text, key = new_key("shop", scope="acme", roles=["submit"])

    assert text.startswith("once_")
    assert len(text) == len("once_") + 43
    assert text not in repr(key)
    assert (key.scope, key.roles) == ("acme", frozenset({Role.SUBMIT}))


def test_keys_that_are_added_at_the_same_time_are_all_kept_and_for_the_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    at_once = threading.Barrier(12)

    def add(number: int) -> list[str]:
        at_once.wait(SOON)
        made = [new_key(f"key {number} {each}")[1] for each in range(5)]
        for key in made:
            add_to_file(path, key)
        return [key.name for key in made]

    with ThreadPoolExecutor(12) as adding:
        added = {name for names in adding.map(add, range(12)) for name in names}

    assert {entry["name"] for entry in json.loads(path.read_text())} == added
    assert [entry.name for entry in tmp_path.iterdir()] == ["keys.json"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_command_makes_keys_and_adds_them_to_the_file(hand: Hand, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"

    texts = [
        command("ops", "--role", "read", "--file", str(path)),
        command("shop", "--role", "submit", "--file", str(path)),
    ]

    client = client_of(create_app(hand.once, keys=path))
    assert [client.get("/jobs", headers={"X-API-Key": text.strip()}).status_code for text in texts] == [200, 403]
    assert [entry["name"] for entry in json.loads(path.read_text())] == ["ops", "shop"]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_the_command_leaves_the_file_to_who_has_it(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    command("ops", "--role", "read", "--file", str(path))
    path.chmod(0o640)
    os.chown(path, 65_534, 65_533)

    command("shop", "--role", "submit", "--file", str(path))

    about = path.stat()
    assert (about.st_uid, about.st_gid, about.st_mode & 0o777) == (65_534, 65_533, 0o640)
    assert len(json.loads(path.read_text())) == 2


def test_the_command_prints_an_entry_for_whoever_keeps_keys_elsewhere(hand: Hand) -> None:
    text, entry = command("shop", "--scope", "acme", "--role", "read").splitlines()
    told = json.loads(command("shop", *(f"--role={role}" for role in ROLES), "--json"))

    key = ApiKey(**json.loads(entry))
    assert (key.name, key.scope, list(key.roles)) == ("shop", "acme", ["read"])
    assert client_of(create_app(hand.once, keys=[key])).get("/jobs", headers={"X-API-Key": text}).status_code == 200
    assert told["key"].startswith("once_")
    assert sorted(told["entry"]["roles"]) == sorted(ROLES) == sorted(Role)


def test_a_file_that_cannot_be_read_or_written_is_left_alone_and_told(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.json"
    wrong.write_text("[{half a file")

    assert "cannot be read" in command("shop", "--role", "read", "--file", str(wrong))
    assert "cannot be written" in command("shop", "--role", "read", "--file", str(tmp_path / "no" / "keys.json"))
    assert wrong.read_text() == "[{half a file"


def test_the_command_makes_no_key_unless_it_is_told_what_it_may_do(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"

    told = command("shop", "--file", str(path))

    assert "Missing option '--role'" in told
    assert all(role in told for role in ROLES)
    assert not path.exists()


def command(*words: str) -> str:
    return CliRunner().invoke(main, ["new-key", *words]).output


# Without keys


def test_without_keys_only_this_machine_is_answered_and_that_is_said(
    hand: Hand, caplog: pytest.LogCaptureFixture
) -> None:
    tell_local.cache_clear()
    app, other = create_app(hand.once), FastAPI()
    other.include_router(create_router(hand.once))

    assert caplog.text == ""  # a worker may import them, too
    with client_of(app):
        assert caplog.text.count("only callers on this machine are answered") == 1
    tell_local.cache_clear()
    for each in (other, app):
        assert client_of(each).get("/jobs").status_code == 200
        assert caplog.text.count("only callers on this machine are answered") == 2
    for here in ("127.0.0.1", "127.8.8.8", "::1"):
        assert client_of(app, host=here).get("/jobs").status_code == 200
    for elsewhere in ("10.0.0.7", "192.168.1.9", "93.184.216.34", "::ffff:10.0.0.1", "fe80::1", "nonsense"):
        for path in ("/jobs", "/openapi.json", "/docs", "/healthz", "/nowhere"):
            refused = client_of(app, host=elsewhere).get(path)
            assert refused.status_code == 403, (elsewhere, path)
            assert refused.json()["detail"].endswith("give `keys=` to create_router or create_app")


@pytest.mark.parametrize("name", ["evil.example", "127.0.0.1.nip.io", "localhost.evil.example", "169.254.169.254"])
def test_a_name_that_was_bound_to_this_machine_by_others_is_refused(hand: Hand, name: str) -> None:
    assert client_of(create_app(hand.once), name=name).get("/jobs").status_code == 403


@pytest.mark.parametrize("name", ["localhost", "localhost:8000", "127.0.0.1:8000", "[::1]:8000", "dash.localhost"])
def test_this_machine_s_own_names_are_good(hand: Hand, name: str) -> None:
    assert client_of(create_app(hand.once), name=name).get("/jobs").status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://localhost:9999"},
        {"Origin": "http://127.0.0.1"},
        {"Origin": "https://localhost"},
        {"Origin": "http://localhost:nonsense"},
        {"X-Forwarded-For": "10.0.0.7"},
        {"X-Forwarded-Host": "shop.example"},
        {"X-Forwarded-Proto": "https"},
        {"X-Real-IP": "10.0.0.7"},
        {"Forwarded": "for=10.0.0.7"},
        {"Via": "1.1 cache"},
        {"Host": ""},
    ],
)
def test_neither_a_page_from_elsewhere_nor_a_proxy_is_taken_for_this_machine(
    hand: Hand, headers: dict[str, str]
) -> None:
    client = client_of(create_app(hand.once))

    assert client.post("/jobs/any/cancel", headers=headers).status_code == 403
    assert client.post("/jobs/any/cancel", headers={"Origin": "http://localhost"}).status_code == 404


@pytest.mark.parametrize("name", ["localhost:8000", "127.0.0.1:8000", "[::1]:8000"])
def test_without_keys_a_page_of_another_port_of_this_machine_can_do_nothing(hand: Hand, name: str) -> None:
    client = client_of(create_app(hand.once), name=name)
    other = name.replace("8000", "9999")

    assert client.post("/jobs/any/cancel", headers={"Origin": f"http://{other}"}).status_code == 403
    assert client.post("/jobs/any/cancel", headers={"Origin": f"http://{name}"}).status_code == 404


def test_a_proxy_that_adds_no_header_is_known_by_its_old_version_of_http(hand: Hand) -> None:
    app = create_app(hand.once)

    async def by_proxy(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "http_version": "1.0"}, receive, send)

    assert TestClient(by_proxy, base_url="http://127.0.0.1:8000", client=HERE).get("/jobs").status_code == 403


def test_a_router_without_keys_answers_this_machine_only_wherever_it_is_mounted(hand: Hand) -> None:
    app = FastAPI()
    app.include_router(create_router(hand.once), prefix="/queue")

    assert client_of(app).get("/queue/jobs").status_code == 200
    assert client_of(app, host="10.0.0.7").get("/queue/jobs").status_code == 403
    assert client_of(app, name="evil.example").get("/queue/jobs").status_code == 403
