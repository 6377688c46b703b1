from __future__ import annotations

import os
import subprocess
import sys

import psycopg
import pytest

from oncelery.testing.servers import PostgresServer

#: It gives up by itself, after a minute for each thing that it waits for.
SOON = 400.0


def test_each_ticket_is_kept_once_though_broker_and_worker_are_lost_in_the_middle_of_a_batch(
    postgres: PostgresServer, pytestconfig: pytest.Config
) -> None:
    database = postgres.create_database()

    played = subprocess.run(
        [sys.executable, "-m", "examples.work_orders"],
        env=os.environ | {"DATABASE_URL": database},
        cwd=pytestconfig.rootpath,
        capture_output=True,
        text=True,
        timeout=SOON,
        check=False,
    )

    assert played.returncode == 0, played.stdout + played.stderr
    # What the reader is shown is what the reader will see; but on a slow machine the first batch may need two attempts.
    readme = (pytestconfig.rootpath / "examples" / "work_orders" / "README.md").read_text()
    shown = readme.partition("$ python -m examples.work_orders\n")[2].partition("```")[0].splitlines()
    seen = played.stdout.splitlines()
    assert seen[:2] + seen[3:] == shown[:2] + shown[3:]
    assert seen[2].startswith("   completed by attempt")
    with psycopg.connect(database) as connection:
        counts = connection.execute("SELECT count(*), count(DISTINCT idempotency_key) FROM tickets").fetchone()
        sites = connection.execute("SELECT site, count(*), max(number) FROM tickets GROUP BY site ORDER BY site")
        assert counts == (2100, 2100)
        assert sites.fetchall() == [("north", 1100, 1099), ("south", 1000, 999)]


def test_who_has_no_driver_is_told_in_one_line_what_to_install(pytestconfig: pytest.Config) -> None:
    play = "runpy.run_module('examples.work_orders', run_name='__main__')"

    played = subprocess.run(
        [sys.executable, "-c", f"import runpy, sys; sys.modules['psycopg'] = None; {play}"],
        cwd=pytestconfig.rootpath,
        capture_output=True,
        text=True,
        timeout=SOON,
        check=False,
    )

    (told,) = played.stderr.splitlines()
    assert played.returncode == 1
    assert "psycopg" in told
    assert "pip install 'oncelery[testing]'" in told
