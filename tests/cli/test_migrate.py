from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner, Result

from oncelery.cli import main
from oncelery.job import Query
from oncelery.stores import open_store
from oncelery.testing.servers import PostgresServer, ValkeyServer


@pytest.fixture
def database(postgres: PostgresServer) -> str:
    return postgres.create_database()


def migrate(*options: str) -> Result:
    return CliRunner().invoke(main, ["migrate", *options], env={"ONCELERY_STORE": "", "ONCELERY_NAMESPACE": ""})


def test_it_makes_the_ledger_and_the_inbox_and_leaves_alone_what_is_there(database: str) -> None:
    for _ in range(2):
        made = migrate("--store", database, "--namespace", "shop", "--effects", database)

        assert (made.exit_code, made.output.count("\n")) == (0, 2)
    assert is_usable(database, "shop")
    assert has_inbox(database)


def test_what_it_prints_makes_the_same(database: str) -> None:
    printed = migrate("--print", "--namespace", "shop")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(printed.output.encode())

    assert is_usable(database, "shop")
    assert has_inbox(database)
    assert migrate("--print", "--store", database, "--namespace", "shop").output == ""


def test_it_prints_what_is_missing_and_does_nothing(database: str) -> None:
    printed = migrate("--print", "--store", database, "--effects", "sqlite:///books.db")

    assert "CREATE OR REPLACE FUNCTION begin" in printed.output
    assert "result BLOB NOT NULL" in printed.output
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT to_regclass('oncelery.jobs')").fetchone() == (None,)


def test_it_makes_an_inbox_in_sqlite(tmp_path: Path) -> None:
    assert migrate("--effects", f"sqlite:///{tmp_path}/books.db").exit_code == 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "give --store, --effects or both"),
        (["--effects", "mysql://localhost/books"], "knows postgresql and sqlite, not mysql"),
        (["--effects", "postgresql://nobody@127.0.0.1:1/books"], "could not make oncelery_effects"),
        (["--store", "memory://"], "nothing to migrate"),
    ],
)
def test_what_cannot_be_done_is_told_in_a_line(options: list[str], told: str) -> None:
    failed = migrate(*options)

    assert failed.exit_code
    assert told in failed.output
    assert "Traceback" not in failed.output


@pytest.mark.parametrize(
    ("package", "url", "extra"),
    [("sqlalchemy", "sqlite:///books.db", "sqlalchemy"), ("psycopg", "postgresql://localhost/books", "postgres")],
)
def test_a_driver_that_is_missing_is_told_with_the_extra_that_brings_it(
    package: str, url: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)

    assert f"pip install 'oncelery[{extra}]'" in migrate("--effects", url).output


def test_a_ledger_on_redis_has_nothing_to_migrate(valkey: ValkeyServer) -> None:
    assert "nothing to migrate" in migrate("--store", valkey.url).output


def test_it_is_a_command_of_the_shell() -> None:
    program = "from oncelery.cli import main; main()"

    told = subprocess.run([sys.executable, "-c", program, "--help"], capture_output=True, text=True, check=True).stdout

    assert "migrate" in told


def is_usable(url: str, namespace: str) -> bool:
    """Whether there is a ledger of this version, which nobody migrates on the way."""
    store = open_store(f"{url}?migrate=false", namespace=namespace)
    found = store.find(Query())
    store.close()
    return found.items == ()


def has_inbox(url: str) -> bool:
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT count(*) FROM oncelery_effects").fetchone() == (0,)
