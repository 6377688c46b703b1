"""The commands, and a real ledger that they work on."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from click.testing import CliRunner, Result
from guarded.world import unshared_tasks

from oncelery.answers import Granted
from oncelery.cli import main
from oncelery.fingerprint import fingerprint
from oncelery.job import Failure, Reason, Submission
from oncelery.ledger import Ledger
from oncelery.policy import Policy
from oncelery.settlement import Bury
from oncelery.stores import open_store
from oncelery.testing.servers import ValkeyServer

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Desk:
    """A ledger with some jobs, and the commands on it."""

    url: str
    namespace: str
    ledger: Ledger

    def run(self, *words: str) -> Result:
        """Run a command on the ledger alone."""
        return invoke(*words, "--store", self.url, "--namespace", self.namespace)

    def json(self, *words: str) -> Any:  # noqa: ANN401 - whatever it tells
        ran = self.run(*words, "--json")
        assert ran.exit_code in {0, 1}, ran.output
        return json.loads(ran.stdout)

    def submit(self, order: str) -> Submission:
        body = json.dumps(["shop.charge", [order], {"tenant": "acme"}, {}]).encode()
        key = fingerprint("shop.charge", {"order": order})
        offer = Submission(id=f"job-{order}", key=key, task="shop.charge", body=body, scope="acme", caller="test")
        self.ledger.reserve(offer)
        return offer

    def begin(self, order: str) -> Granted:
        granted = self.ledger.begin(self.submit(order), Policy(), worker="worker-1")
        assert isinstance(granted, Granted)
        return granted

    def bury(self, order: str, message: str = "no money", traceback: str = "Traceback: line 1") -> str:
        error = Failure(type="CardRefused", message=message, traceback=traceback)
        self.ledger.settle(self.begin(order).lease, Bury(reason=Reason.FAILED, error=error))
        return f"job-{order}"

    def state(self, order: str) -> str:
        job = self.ledger.get(f"job-{order}")
        assert job
        return job.state


def invoke(*words: str) -> Result:
    environment = dict.fromkeys(("ONCELERY_STORE", "ONCELERY_NAMESPACE", "ONCELERY_APP"), "")
    return CliRunner().invoke(main, words, env=environment)


@pytest.fixture
def desk(valkey: ValkeyServer) -> Iterator[Desk]:
    namespace = token_hex(4)
    ledger = Ledger(open_store(valkey.url, namespace=namespace))
    yield Desk(valkey.url, namespace, ledger)
    ledger.store.close()


@pytest.fixture
def app(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Result]]:
    """Run commands with `-A`, in this process."""
    monkeypatch.setenv("SHOP_SERVER", desk.url)
    monkeypatch.setenv("SHOP_NAMESPACE", desk.namespace)
    monkeypatch.syspath_prepend(str(HERE))
    with unshared_tasks():
        yield lambda *words: invoke("-A", "shop", *words)
    if found := sys.modules.pop("shop", None):
        found.app.close()
