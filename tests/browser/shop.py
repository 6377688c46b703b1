"""A shop after a busy hour: a ledger with jobs in every state, for pictures and for a look at every page."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from celery import Celery
from msgspec.structs import replace

from oncelery import Oncelery, fingerprint
from oncelery.answers import Granted
from oncelery.celery.message import Message
from oncelery.codec import encode
from oncelery.job import Answer, Cause, Failure, Lease, Progress, Reason, Submission
from oncelery.ledger import Ledger
from oncelery.policy import Policy
from oncelery.settlement import Bury, Complete, Release
from oncelery.stores.memory import MemoryStore

WORKERS = ("celery@pay-1", "celery@pay-2", "celery@mail-1")

TRACEBACK = """Traceback (most recent call last):
  File "shop/tasks.py", line 41, in charge
    return gateway.charge(order_id, amount, idempotency_key=run.idempotency_key("charge"))
  File "shop/gateway.py", line 88, in charge
    raise CardRefused(answer.code)
shop.gateway.CardRefused: do_not_honor
"""
REFUSED = Failure(type="shop.gateway.CardRefused", message="do_not_honor", traceback=TRACEBACK)
TIMEOUT = Failure(type="shop.gateway.GatewayTimeout", message="no answer after 10 s", traceback=TRACEBACK)


class Shop:
    """The shop, its ledger, and a clock that is set while it is filled."""

    def __init__(self) -> None:
        self.random = random.Random(7)
        self.now: datetime | None = None
        self.app = Celery("shop", broker="memory://", set_as_current=False)
        self.once = Oncelery(self.app, store="memory://")
        self.ledger = Ledger(MemoryStore(clock=lambda: self.now or datetime.now(UTC)))
        self.once.__dict__["ledger"] = self.ledger
        self.running: list[Lease] = []
        tasks: dict[str, dict[str, Any]] = {
            "shop.charge": {"key": "order_id", "scope": "tenant", "bury_on": OSError, "retry_on": TimeoutError},
            "shop.send_receipt": {"key": "order_id"},
            "shop.sync_inventory": {},
            "reports.build": {"on_duplicate": "trail"},
        }
        for name, options in tasks.items():
            self.once.task(name=name, shared=False, **options)(_called)

    def fill(self) -> None:
        """Let an hour pass."""
        begin = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=54)
        for minute in range(54):
            self.now = begin + timedelta(minutes=minute)
            for _ in range(5 + self.random.randrange(6) + (6 if 20 < minute < 34 else 0)):
                self._pass(self.random.uniform(0.5, 3))
                self._sell()
        self.now = datetime.now(UTC) - timedelta(minutes=4)
        self.story = self._take_over()
        self.now = datetime.now(UTC) - timedelta(seconds=25)
        for name, done, total, stage in (
            ("reports.build", 7, 12, "rendering pages"),
            ("shop.sync_inventory", 61_200, 84_000, "warehouses"),
            ("shop.charge", 1, 2, "captured"),
        ):
            lease = self._begin(self._reserve(name, tenant="acme"))
            self.ledger.record(lease, progress=Progress(done=done, total=total, stage=stage))
            self.running.append(lease)
            self._pass(2)
        for _ in range(4):
            self._reserve("shop.send_receipt")
        self.ledger.cancel(self._reserve("reports.build").id, reason="by ada")
        self.now = None
        self._count()

    def beat(self) -> None:
        """Let the workers renew their leases."""
        self.ledger.renew(self.running)

    def _sell(self) -> None:
        tenant = self.random.choice(["acme", "globex", "initech"])
        job = self._reserve("shop.charge", tenant=tenant)
        if self.random.random() < 0.22:
            self._click_again(job)
        lease = self._begin(job)
        self._pass(0.4)
        luck = self.random.random()
        if luck < 0.012:
            self.ledger.settle(lease, Bury(reason=Reason.FAILED, error=REFUSED))
            return
        if luck < 0.05:
            self.ledger.settle(lease, Release(cause=Cause.RETRY, error=TIMEOUT))
            lease = self._begin(job)
        self.ledger.record(lease, step=("charge", encode({"charge": "ch_3Q", "amount": 4900})))
        self.ledger.settle(lease, Complete(result=encode({"charge": "ch_3Q", "amount": 4900})))
        receipt = self._begin(self._reserve("shop.send_receipt", tenant=tenant))
        self.ledger.settle(receipt, Complete(result=encode(None)))

    def _take_over(self) -> str:
        """Let a worker die half-way, and another one finish what it began."""
        job = self._reserve("shop.charge", tenant="acme", order_id="o-1042")
        first = self._begin(job, WORKERS[0] + ":4121")
        self.ledger.record(first, step=("reserve stock", encode({"sku": "B-17", "left": 3})))
        self._pass(3)
        self._click_again(job)
        self._pass(34)
        second = self._begin(job, WORKERS[1] + ":7310")
        self._pass(0.6)
        self.ledger.record(second, step=("charge", encode({"charge": "ch_3Qx9"})))
        self.ledger.record(second, progress=Progress(done=2, total=2, stage="captured"))
        self.ledger.settle(second, Complete(result=encode({"charge": "ch_3Qx9", "amount": 4900})))
        self._pass(20)
        self._click_again(job)
        return job.id

    def _click_again(self, job: Submission) -> None:
        self.ledger.reserve(replace(job, id=self._new_id()))

    def _new_id(self) -> str:
        return str(UUID(int=self.random.getrandbits(128), version=4))

    def _reserve(self, task: str, *, tenant: str = "", order_id: str = "") -> Submission:
        order = order_id or f"o-{self.random.randrange(10**6):06}"
        call: dict[str, Any] = {"order_id": order, "amount": 4900, "tenant": tenant, "card_token": "tok_visa"}
        submission = Submission(
            id=self._new_id(),
            key=fingerprint(task, {"order_id": order}),
            task=task,
            body=Message(task, (), call).pack(self.app),
            scope=tenant if task == "shop.charge" else "",
            queue="payments" if task == "shop.charge" else "celery",
            caller="shop@web-1",
        )
        self.ledger.reserve(submission)
        return submission

    def _begin(self, job: Submission, worker: str = "") -> Lease:
        answer = self.ledger.begin(job, Policy(), worker=worker or f"{self.random.choice(WORKERS)}:2210")
        assert isinstance(answer, Granted), answer
        return answer.lease

    def _pass(self, seconds: float) -> None:
        assert self.now
        self.now += timedelta(seconds=seconds)

    def _count(self) -> None:
        """Write counters as workers would have, whose runs take time."""
        counts: dict[tuple[str, str], int] = {}
        for task, jobs, quick, slow in (
            ("shop.charge", 612, "0.5", "5"),
            ("shop.send_receipt", 598, "0.1", "0.5"),
            ("shop.sync_inventory", 12, "300", "900"),
            ("reports.build", 31, "10", "60"),
        ):
            few = max(jobs // 40, 1)
            counts |= {(task, "accepted"): jobs, (task, "began"): jobs + few, (task, "completed"): jobs}
            counts |= {(task, f"run/{quick}"): jobs - few, (task, f"run/{slow}"): few, (task, "released"): few}
            counts |= {(task, "run microseconds"): jobs * int(float(quick) * 700_000)}
        counts |= {("shop.charge", "released/crash"): 1, ("shop.charge", "buried"): 7}
        counts |= {("shop.charge", "duplicate"): 131, ("shop.charge", f"duplicate/{Answer.JOINED}"): 131}
        self.ledger.count(counts)


def _called(order_id: str, amount: int, tenant: str = "", card_token: str = "") -> None:
    """Stand for a task; nobody runs it here."""
