"""The run under way, as its task sees it: `current_run()`."""

from __future__ import annotations

import hashlib
import logging
import random
import secrets
import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from datetime import timedelta
from math import isfinite
from time import monotonic, sleep
from typing import Any, ParamSpec, TypeVar

from msgspec.structs import replace

from oncelery.answers import Absent, Declined, Fenced, Granted, Recorded, RenewAnswer, Renewed, Settled
from oncelery.codec import decode, encode
from oncelery.errors import JobCancelledError, LeaseLostError, OutcomeUnknownError, StoreUnavailableError
from oncelery.failpoints import failpoint
from oncelery.job import Lease, Progress, Submission
from oncelery.ledger import Ledger
from oncelery.policy import Policy
from oncelery.settlement import Postponed, Settlement
from oncelery.sql.transaction import Effect, Transaction, one_of
from oncelery.stores.memory import MemoryStore

P = ParamSpec("P")
T = TypeVar("T")

#: Progress of the same stage is written at most this often, in seconds; a tight loop must not flood the store.
PROGRESS_EVERY = 0.5

#: How often a run calls a verb of a ledger that does not know it, and records itself again in between.
TRIES = 3

#: How long a worker waits for a store that is away, in seconds: an outcome at hand is worth waiting for.
PATIENCE = 300.0

#: The longest pause between two questions, in seconds; twice as long at most, to spread the workers that wait.
LONGEST_PAUSE = 2.0

_logger = logging.getLogger("oncelery")

_current: ContextVar[Run | None] = ContextVar("oncelery_run", default=None)


def current_run() -> Run:
    """Answer the run of the guarded task that is running here, or a free-standing one where none is.

    So a task that is called directly, as in a unit test, works as it is; what it records is forgotten.
    """
    return _current.get() or _free_standing()


def run_under_way() -> Run | None:
    """Answer the run of the guarded task that is running here, if one is."""
    return _current.get()


class running:  # noqa: N801 - reads as what it does: `with running(run):`
    """Makes this the current run. A class, as is all that surrounds a task: a generator takes three times as long."""

    __slots__ = ("_run", "_token")

    def __init__(self, run: Run) -> None:
        self._run = run

    def __enter__(self) -> None:
        self._token = _current.set(self._run)

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)


def insist(ask: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Ask until the store answers. Every verb may be repeated, and a run whose outcome is unknown must not be acked."""
    deadline = monotonic() + PATIENCE
    pause = 0.1
    while True:
        try:
            return ask(*args, **kwargs)
        except StoreUnavailableError as error:
            if monotonic() > deadline:
                raise
            _logger.warning("the store does not answer, asking again in %.1f s: %s", pause, error)
        sleep(pause * (1 + random.random()))  # noqa: S311 - spreads the workers that wait
        pause = min(pause * 2, LONGEST_PAUSE)


def _cannot_begin(_: Ledger) -> Absent:
    return Absent()


class Run:
    """One begin-to-settle of a job."""

    def __init__(
        self,
        ledger: Ledger,
        lease: Lease,
        *,
        recovered: bool,
        steps: Mapping[str, bytes],
        begin: Callable[[Ledger], Granted | Declined | Absent] = _cannot_begin,
        write: Callable[[Any], bytes] = encode,
        keep: timedelta | None = None,
    ) -> None:
        self.lease = lease
        self.ledger = ledger
        #: An earlier run of this job ended without a word: its effect may have happened.
        self.recovered = recovered
        #: The retry that the task has asked for, and what publishes it once this run has released its job.
        self.postponed: Postponed | None = None
        self.afterwards: Callable[[], object] | None = None
        #: What replaces the task, as it is recorded beside the result.
        self.replacement: bytes | None = None
        #: What its transaction has committed; and whether one was about to commit, and nobody knows whether it has.
        self.effect: Effect | None = None
        self.in_doubt = False
        #: What keeps a time limit from striking while something is recorded.
        self.undisturbed: Callable[[], AbstractContextManager[None]] = nullcontext
        #: How a result is written, and how long the proof of an effect is kept; None where there is no job to prove.
        self.write = write
        self.keep = keep
        self._transaction: Transaction | None = None
        self._steps = dict(steps)
        #: What records this run again, with its body, where the ledger has lost its job. The heartbeat and the task may
        #: both find that out, one after the other; and what one of them has begun, the store may not let it finish.
        self._begin = begin
        self._restoring = threading.RLock()
        self._is_incomplete = False
        #: What the ledger answered instead, if another run has the job by then.
        self.declined: Declined | Absent | None = None
        #: Whether its settlement is under way, or over: what a renewal is answered means nothing then.
        self.is_settling = False
        self._lost = False
        self._cancelled = False
        self._sure_until = monotonic() + lease.duration.total_seconds()
        self._progress: tuple[float, str | None] = (0.0, None)

    @property
    def job_id(self) -> str:
        """The job's id, which is the Celery task id."""
        return self.lease.job_id

    @property
    def key(self) -> str:
        """The identity of the work."""
        return self.lease.key

    @property
    def fence(self) -> int:
        """A number greater than that of every earlier run of this key; for writers that can compare it."""
        return self.lease.fence

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self.lease.attempt

    def idempotency_key(self, name: str) -> str:
        """Make a key for a receiver that honours one: the same in every run of this job, another in every other job."""
        # A file name that is not UTF-8 has lone surrogates.
        return hashlib.sha256(f"{self.job_id}\0{name}".encode(errors="surrogatepass")).hexdigest()

    def step(self, name: str, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `fn` once for this job: a finished step is never run again, also after a crash.

        Its value is kept as JSON, and that is what later runs get.

        Raises:
            OutcomeUnknownError: `fn` has returned a value that cannot be kept. The job becomes a dead letter.
        """
        if name in self._steps:
            return decode(self._steps[name], object)  # type: ignore[return-value] # it was T when it was recorded
        self.ledger.limit_step(name)
        self.raise_if_cancelled()
        value = fn(*args, **kwargs)
        # The step is done: worth waiting for a store that is away, or it would be done again.
        with self.undisturbed():
            failpoint("before-record")
            # Known from here on, also to the heartbeat: if the ledger loses the job now, it is recorded again with it.
            self._steps[name] = written = self._written(name, value)
            answer = insist(self.ask, lambda ledger, lease: ledger.record(lease, step=(name, written)))
        self._heed(answer)
        return value

    def _written(self, name: str, value: object) -> bytes:
        """Write the value of a finished step."""
        try:
            written = encode(value)
            self.ledger.limit_step(name, written)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            # No error as any other: a retry would do the step again.
            what = f"step {name!r} is done, but its value cannot be kept: {error}"
            raise OutcomeUnknownError(what, key=self.key, job_id=self.job_id) from error
        return written

    def transaction(self, target: object) -> Transaction:
        """Make writes in your database and the end of this job one: `with run.transaction(session) as tx:`.

        What is written in the block is committed at its end, once for this job, whatever is killed when; the job is
        then completed, with `tx.result`. A run that comes second, or was taken over, is rolled back.

        Args:
            target: A Connection of psycopg 3; a Session, Connection or Engine of SQLAlchemy 2 (for an engine, write
                with `tx.connection`). On PostgreSQL or SQLite.

        Raises:
            ConfigurationError: the target cannot take part, or this run has another transaction.
        """
        self._transaction = one_of(self, target, self._transaction)
        return self._transaction

    def progress(
        self, done: float, total: float | None = None, stage: str | None = None, message: str | None = None
    ) -> None:
        """Say how far the run has come; raises if the job is cancelled or taken over."""
        written_at, written_stage = self._progress
        if done != total and stage == written_stage and monotonic() - written_at < PROGRESS_EVERY:
            self.raise_if_cancelled()
            return
        self._progress = (monotonic(), stage)
        # As it can be read again, whatever it was computed from: else nobody could read the job any more.
        progress = Progress(
            done=_finite(done) or 0.0,
            total=_finite(total),
            stage=stage and str(stage),
            message=message and str(message),
        )
        try:
            self._heed(self.ask(lambda ledger, lease: ledger.record(lease, progress=progress)))
        except StoreUnavailableError as error:
            # Nobody sees it, but nothing depends on it.
            _logger.warning("could not record the progress of job %s: %s", self.job_id, error)
        self.raise_if_cancelled()

    def raise_if_cancelled(self) -> None:
        """Raise if the job is cancelled, or is no longer ours; asks the store only when the lease may have lapsed."""
        if monotonic() > self._sure_until:
            lease = self.lease
            self.renewed(lease, self.ledger.renew([lease])[0])
        if self._lost:
            raise LeaseLostError(key=self.key, job_id=self.job_id)
        if self._cancelled:
            raise JobCancelledError(key=self.key, job_id=self.job_id)

    def renewed(self, lease: Lease, answer: RenewAnswer) -> None:
        """Take note of a renewal, made by this run or by the heartbeat."""
        if isinstance(answer, Renewed):
            self._cancelled = self._cancelled or answer.cancel_requested
            self._sure_until = monotonic() + self.lease.duration.total_seconds()
            return
        with self._restoring:
            # A renewal may be answered after the settlement that ended the run: nothing is lost then.
            if not self.is_settling and self._is_lost(lease, answer, self.ledger):
                self.lose()

    def settle(self, settlement: Settlement) -> Settled | Fenced | Declined | Absent:
        """End this run; the answer of `begin` if the ledger had lost the job and another run has it by now."""
        # Before it is said: a renewal that is fenced by it comes after this.
        self.is_settling = True
        return self.ask(lambda ledger, lease: ledger.settle(lease, settlement))

    def ask(
        self, verb: Callable[[Ledger, Lease], T | Fenced | Absent], ledger: Ledger | None = None
    ) -> T | Fenced | Declined | Absent:
        """Call a verb under this run's lease. If the ledger has lost the run, restore it and call the verb again."""
        ledger = ledger or self.ledger
        for _ in range(TRIES):
            lease = self.lease
            answer = verb(ledger, lease)
            if not isinstance(answer, Fenced | Absent):
                return answer
            if lost := self._is_lost(lease, answer, ledger):
                return lost
        raise StoreUnavailableError(f"the store does not keep job {self.job_id}, which was recorded again")

    def _is_lost(self, lease: Lease, answer: Fenced | Absent, ledger: Ledger) -> Fenced | Declined | Absent | None:
        """Restore this run if the ledger has lost it; return None if the run has its job, else why not.

        If the ledger does not know the job (Absent), it has lost it, and no other run has it.
        """
        with self._restoring:
            if self.lease is not lease:
                return None
            if isinstance(answer, Fenced) and not self._is_incomplete:
                return answer
            self.declined = self._restore(ledger)
            return self.declined

    def _restore(self, ledger: Ledger) -> Declined | Absent | None:
        """Record this run again under the same holder, with its body, the steps it knows, and a cancel it knows of."""
        # If the store fails half-way, the next verb is fenced by the fence that it has granted: see _is_lost.
        self._is_incomplete = True
        answer = self._begin(ledger)
        if not isinstance(answer, Granted):
            return answer
        for step in tuple(self._steps.items()):
            ledger.record(answer.lease, step=step)
        if self._cancelled:
            ledger.cancel(self.job_id)
        # The runs before this one are forgotten, but not by the policy that counts them.
        self.lease = replace(answer.lease, attempt=self.lease.attempt, crashes=self.lease.crashes)
        self._sure_until = monotonic() + self.lease.duration.total_seconds()
        self._is_incomplete = False
        return None

    def lose(self) -> None:
        """Take note that another run has the job, and report it, once."""
        if not self._lost:
            self._lost = True
            self.ledger.lose(self.lease)

    @property
    def lost(self) -> bool:
        """Whether another run is known to have taken over."""
        return self._lost

    @property
    def cancelled(self) -> bool:
        """Whether the job is known to have been asked to end."""
        return self._cancelled

    def _heed(self, answer: Recorded | Fenced | Declined | Absent) -> None:
        if not isinstance(answer, Recorded):
            self.lose()
            state = answer.state if isinstance(answer, Fenced) else None
            raise LeaseLostError(key=self.key, job_id=self.job_id, state=state)
        self._cancelled = self._cancelled or answer.cancel_requested


def _finite(number: float | None) -> float | None:
    """Give a number that JSON has as well; None for none, for an infinite one and for what is not a number."""
    try:
        return float(number) if number is not None and isfinite(number) else None
    except OverflowError:
        return None


def _free_standing() -> Run:
    ledger = Ledger(MemoryStore())
    answer = ledger.begin(Submission(id=str(uuid.uuid4()), key=secrets.token_hex(32), task="-", body=b""), Policy())
    assert isinstance(answer, Granted)  # noqa: S101 - nobody else knows this ledger
    return Run(ledger, answer.lease, recovered=False, steps={})
