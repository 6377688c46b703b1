"""The model's store and a real one, side by side: the same requests, the same answers, the same jobs."""

# ruff: noqa: ANN401 - an answer may be of any of their classes

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

from oncelery.job import Cause, Job, Lease, OnDuplicate, Reason, Submission
from oncelery.settlement import Bury, Cancel, Complete, Release, Settlement
from oncelery.stores.base import Store as RealStore
from oncelery.testing.clock import FakeClock

from .ledger import COMPLETED, JOIN, NO_JOB, REPLACE, RUNNING, TRAIL, Answer, Ledger, Store
from .steps import name

#: Jobs of one key. The last one is a call: its body is empty.
JOBS = 3
CALL_JOB = JOBS - 1
HOLDERS = (1, 2)

# Each is out of reach of however many of the one before it are in a trace.
LEASE, DELAY, RETENTION, HISTORY = timedelta(seconds=30), timedelta(hours=2), timedelta(days=50), timedelta(days=50_000)

SETTLEMENTS: dict[str, Settlement] = {
    "bury": Bury(reason=Reason.FAILED),
    "cancel": Cancel(reason="asked"),
    "retry": Release(cause=Cause.RETRY, delay=DELAY),
    "handback": Release(cause=Cause.HANDBACK),
    "crash": Release(cause=Cause.CRASH),
}


#: What is told of a delivery before a run, and the lease that goes with it.
OPENINGS = {"opening": LEASE, "opened": timedelta(0), "dead": None}


class Op(NamedTuple):
    """One request, or time that passes."""

    verb: str
    job: int = 0
    holder: int = 0
    detail: str = ""

    def __str__(self) -> str:
        who = f"h{self.holder}: " if self.holder else ""
        return f"{who}{self.verb} {name(self.job)} {self.detail}".strip()


def operations() -> list[Op]:
    """Give all that can be asked."""
    ops = [Op("pass", detail=length) for length in ("lease", "delay", "retention", "history")]
    ops.append(Op("due"))
    for job in range(JOBS):
        ops += [Op("reserve", job, detail=way) for way in (JOIN, TRAIL, REPLACE) if job != CALL_JOB]
        ops += [Op("begin", job, holder, body) for holder in HOLDERS for body in ("", "with body")]
        ops += [Op("cancel", job, detail=force) for force in ("", "by force")]
        ops += [Op(verb, job) for verb in ("revive", "discard")]
        ops += [Op("received", job, detail=how) for how in OPENINGS]
    for holder in HOLDERS:
        ops.append(Op("renew", holder=holder))
        ops += [Op("settle", holder=holder, detail=how) for how in ("complete", *SETTLEMENTS)]
    return ops


class Twin:
    """Asks both, and compares."""

    def __init__(self, model: Store, store: RealStore, clock: FakeClock) -> None:
        self.model = model
        self.model.receipts = 2
        self.store = store
        self.clock = clock
        self.ledger = Ledger((None,) * JOBS)
        #: What each holder was granted last: by the model, and in truth.
        self.leases: dict[int, tuple[int, int, Lease]] = {}
        self.fences: dict[int, int] = {}

    def do(self, op: Op) -> None:
        """Make one request of both; what differs is an AssertionError."""
        match op.verb:
            case "pass":
                self.pass_time(op.detail)
            case "due":
                self.due()
            case "renew" | "settle" if op.holder not in self.leases:
                return
            case verb:
                self.ledger, expected = getattr(self, f"expect_{verb}")(op)
                answer = getattr(self, f"ask_{verb}")(op)
                self.compare_answer(expected, answer)
                if expected.name == "Granted":
                    self.leases[op.holder] = expected.job, expected.fence, answer.lease
        self.compare_jobs()

    def situation(self) -> tuple[object, ...]:
        """Give all that the model's next answers depend on."""
        return self.ledger, tuple((holder, *lease[:2]) for holder, lease in sorted(self.leases.items()))

    # Each verb, of the model and of the store

    def expect_reserve(self, op: Op) -> tuple[Ledger, Answer]:
        return self.model.reserve(self.ledger, op.job, op.detail)

    def ask_reserve(self, op: Op) -> Any:
        return self.store.reserve(submission(op.job), on_duplicate=OnDuplicate(op.detail))

    def expect_begin(self, op: Op) -> tuple[Ledger, Answer]:
        empty = op.job == CALL_JOB
        return self.model.begin(self.ledger, op.job, op.holder, body=bool(op.detail), empty=empty)

    def ask_begin(self, op: Op) -> Any:
        return self.store.begin(
            submission(op.job, body=bool(op.detail)),
            holder=f"h{op.holder}",
            worker="w",
            lease=LEASE,
            max_crashes=self.model.max_crashes,
            hold=self.model.hold,
        )

    def expect_renew(self, op: Op) -> tuple[Ledger, Answer]:
        job, fence, _ = self.leases[op.holder]
        return self.model.renew(self.ledger, job, fence, op.holder)

    def ask_renew(self, op: Op) -> Any:
        return self.store.renew([self.leases[op.holder][2]])[0]

    def expect_settle(self, op: Op) -> tuple[Ledger, Answer]:
        job, fence, _ = self.leases[op.holder]
        return self.model.settle(self.ledger, job, fence, op.holder, op.detail)

    def ask_settle(self, op: Op) -> Any:
        _, fence, lease = self.leases[op.holder]
        return self.store.settle(lease, SETTLEMENTS.get(op.detail) or Complete(result=b"%d" % fence))

    def expect_cancel(self, op: Op) -> tuple[Ledger, Answer]:
        return self.model.cancel(self.ledger, op.job, force=bool(op.detail))

    def ask_cancel(self, op: Op) -> Any:
        return self.store.cancel(name(op.job), reason="asked", force=bool(op.detail))

    def expect_revive(self, op: Op) -> tuple[Ledger, Answer]:
        return self.model.revive(self.ledger, op.job)

    def ask_revive(self, op: Op) -> Any:
        return self.store.revive(name(op.job))

    def expect_discard(self, op: Op) -> tuple[Ledger, Answer]:
        return self.model.discard(self.ledger, op.job)

    def ask_discard(self, op: Op) -> Any:
        return self.store.discard(name(op.job))

    def expect_received(self, op: Op) -> tuple[Ledger, Answer]:
        return self.model.received(self.ledger, op.job, op.detail)

    def ask_received(self, op: Op) -> Any:
        return self.store.received(name(op.job), limit=self.model.receipts, lease=OPENINGS[op.detail])

    def due(self) -> None:
        """Let the slowest check be due, and make it."""
        self.pass_time("delay")
        expected = {name(job) for job in self.jobs() if self.model.due(self.ledger, job)[1]}
        for job in self.jobs():
            if not self.model.due(self.ledger, job)[1]:
                self.ledger = self.model.due(self.ledger, job)[0]
        taken = self.store.due(limit=JOBS, empty_queues=["celery"])
        assert {job.id for job in taken if job.state.live} == expected

    def pass_time(self, length: str) -> None:
        """Let time pass: whatever is shorter passes too."""
        lengths = {"lease": LEASE, "delay": DELAY, "retention": RETENTION, "history": HISTORY}
        # Longer than the delay: its message is overdue as well.
        self.clock.now += lengths[length] + timedelta(minutes=1) * (length != "lease")
        order = list(lengths)
        for job in self.jobs():
            record = self.ledger.get(job)
            if record.state == RUNNING:
                self.ledger = self.model.lapse(self.ledger, job)
            if record.opened:
                self.ledger = self.model.tire(self.ledger, job)
            if record.early and order.index(length) >= 1:
                self.ledger = self.model.ripen(self.ledger, job)
            if record.retained and order.index(length) >= 2:
                self.ledger = self.model.expire(self.ledger, job)
        if length == "history":
            for job in self.jobs():
                if self.ledger.get(job).state in ("completed", "cancelled"):
                    self.ledger = self.model.prune(self.ledger, job)
            self.store.prune(limit=JOBS)

    def jobs(self) -> list[int]:
        return [job for job in range(JOBS) if self.ledger.records[job]]

    # Comparing

    def compare_answer(self, expected: Answer, answer: Any) -> None:
        assert type(answer).__name__ == expected.name, f"the model says {expected}"
        match expected.name:
            case "Granted":
                assert answer.lease.job_id == name(expected.job)
                assert answer.recovered == expected.flag
                self.compare_fence(expected.fence, answer.lease.fence)
            case "Renewed":
                assert answer.cancel_requested == expected.flag
            case "Settled" | "Fenced":
                assert answer.state == expected.state
                if expected.name == "Settled":
                    record = self.ledger.get(expected.job)
                    assert answer.next_id == ("" if record.live or record.trail == NO_JOB else name(record.trail))
            case "Counted":
                assert answer.received == expected.result
            case "Absent":
                pass
            case _:
                assert (answer.job.id, answer.job.state) == (name(expected.job), expected.state)
                if expected.state == COMPLETED:
                    assert answer.job.result == b"%d" % expected.result

    def compare_fence(self, expected: int, fence: int) -> None:
        """Fences count microseconds in truth, and grants in the model: their order must be the same."""
        self.fences[expected] = fence
        in_order = [self.fences[number] for number in sorted(self.fences)]
        assert in_order == sorted(set(in_order)), "fences are granted in another order"

    def compare_jobs(self) -> None:
        for job in range(JOBS):
            assert self.summary(self.store.get(name(job))) == self.expected_summary(job), name(job)
        last = self.store.last("key")
        assert (last.id if last else "") == (name(self.ledger.last) if self.ledger.last != NO_JOB else "")

    def summary(self, job: Job | None) -> dict[str, Any]:
        if job is None:
            return {}
        return {
            "state": job.state.value,
            "holder": job.holder,
            "begun": job.begun_at is not None,
            "early": job.not_before is not None and job.not_before > self.clock.now,
            "lapsed": job.lease_until is not None and job.lease_until <= self.clock.now,
            "crashes": job.crashes if job.state.live else 0,
            "cancel_requested": job.cancel_requested,
            "retained": job.retained_until is not None and job.retained_until > self.clock.now,
            "reason": job.reason,
            "behind": job.behind if job.state.live else "",
        }

    def expected_summary(self, job: int) -> dict[str, Any]:
        record = self.ledger.records[job]
        if record is None:
            return {}
        return {
            "state": record.state,
            "holder": f"h{record.holder}" if record.holder else "",
            "begun": record.begun,
            "early": record.early,
            "lapsed": record.lapsed,
            "crashes": record.crashes,
            "cancel_requested": record.cancel_requested,
            "retained": record.retained,
            "reason": record.reason,
            "behind": name(record.behind) if record.live and record.behind != NO_JOB else "",
        }


def submission(job: int, *, body: bool = True) -> Submission:
    content = b"" if job == CALL_JOB else b"body"
    return Submission(
        id=name(job),
        key="key",
        task="task",
        body=content if body else None,
        retention=RETENTION,
        history=HISTORY,
    )
