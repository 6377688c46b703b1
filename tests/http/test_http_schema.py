from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from guarded import served_eagerly
from guarded.serving import WebServer

from oncelery.http import new_key

CONFIGURATION = Path(__file__).with_name("schemathesis.toml")


@pytest.mark.parametrize("keys", [False, True], ids=["without keys", "with keys"])
def test_the_schema_is_true(tmp_path: Path, keys: bool) -> None:  # noqa: FBT001
    secret, key = new_key("tester")
    kept = {"name": key.name, "sha256": key.sha256, "scope": key.scope, "roles": sorted(key.roles)}
    (tmp_path / "keys.json").write_text(json.dumps([kept]))
    environment = {served_eagerly.KEYS: str(tmp_path / "keys.json")} if keys else {}

    with WebServer(tmp_path / "server", "guarded.served_eagerly:app", environment) as server:
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIGURATION), "run"]
        options = ["--max-examples", "5", "--workers", "1", "--seed", "1", "--request-timeout", "40"]
        headers = ["--header", f"X-API-Key: {secret}"] if keys else []
        run = subprocess.run(
            [*command, f"{server.url}/openapi.json", *options, *headers],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )
        log = server.log_file.read_text()

    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:] + log[-4000:]
