"""`with run.transaction(target):` the caller's writes and the end of their job, committed together."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from oncelery.answers import Settled
from oncelery.errors import ConfigurationError, LeaseLostError, StoreUnavailableError
from oncelery.failpoints import failpoint
from oncelery.job import EPOCH, MICROSECOND, State
from oncelery.settlement import Complete
from oncelery.sql.callers import Caller, caller_of, is_refusal, is_rivalry
from oncelery.sql.inbox import Inbox
from oncelery.sql.joining import ledger_within

if TYPE_CHECKING:
    from oncelery.ledger import LedgerWithin
    from oncelery.run import Run

_logger = logging.getLogger("oncelery")


class EffectCommitted(BaseException):
    """An earlier run has committed this job's transaction: the task ends here, past any `except Exception`."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What a transaction has committed for its job."""

    result: bytes
    #: The ledger's answer, where the job was completed in the same transaction.
    settled: Settled | None = None


class Transaction:
    """A block of writes that commits at its end, together with the job: both are there, or neither.

    The block is the job's end, so it stands last in its task, and there is one in a run.
    """

    def __init__(self, run: Run, target: object) -> None:
        #: What the job is completed with, and all its callers get. Set it inside the block.
        self.result: Any = None
        self.target = target
        self._run = run
        self._caller = caller_of(target)
        self._depth = 0
        self._failure: BaseException | None = None

    @property
    def connection(self) -> Any:  # noqa: ANN401 - of whichever library it is
        """What to write with: the session or connection that was given, or one that was opened on the engine."""
        return self._caller.connection

    @property
    def is_open(self) -> bool:
        """Whether its block has begun and not ended."""
        return self._depth > 0

    def __enter__(self) -> Self:
        self._depth += 1
        if self._depth == 1:
            self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._depth -= 1
        self._failure = error or self._failure
        if self._depth:
            return
        try:
            if self._failure is None:
                self._end()
            else:
                self._give_up(self._failure)
        except BaseException:  # whatever strikes, nothing may be left open
            # Harmless where it is committed or undone already.
            self._undo()
            raise
        finally:
            self._caller.end()
        if error is None and self._failure:
            # A block inside has left something half done: whoever caught its error must not take that for done.
            raise self._failure

    def _begin(self) -> None:
        try:
            self._caller.begin()
            self._record = _record_of(self._run, self._caller)
            if self._run.attempt > 1:
                self._stop_if_committed()
        except BaseException:  # as above
            self._undo()
            self._caller.end()
            self._depth = 0
            raise

    def _end(self) -> None:
        run = self._run
        result = run.write(self.result)
        self._caller.flush()
        # Last of all, so that the ledger's rows are locked for no longer than a commit takes.
        if not self._record.write(result):
            self._undo()
            self._stop_if_committed()
            raise LeaseLostError(key=run.key, job_id=run.job_id)
        failpoint("before-commit")
        self._commit()
        failpoint("after-commit")
        run.effect = self._record.effect(result)
        run.in_doubt = False
        self._record.tidy()

    def _commit(self) -> None:
        # Whatever strikes from here on, a signal too, leaves open whether it is committed.
        self._run.in_doubt = True
        try:
            self._caller.commit()
        except Exception as error:
            failpoint("no-reply-to-commit")
            if is_refusal(error):
                self._run.in_doubt = False
                if is_rivalry(error):
                    what = f"job {self._run.job_id}: undone for the sake of another transaction: {error}"
                    raise StoreUnavailableError(what) from error
                raise
            raise StoreUnavailableError(
                f"job {self._run.job_id}: the database did not say whether it has committed. "
                "The next run will find out, and not write again what is there."
            ) from error

    def _undo(self) -> None:
        self._run.is_settling = self._run.in_doubt
        try:
            self._caller.rollback()
        except Exception as error:  # noqa: BLE001 - the connection is gone, and the transaction with it
            _logger.warning("could not roll back the transaction of job %s: %s", self._run.job_id, error)

    def _give_up(self, failure: BaseException) -> None:
        self._undo()
        if isinstance(failure, Exception):
            with suppress(Exception):  # it is the failure that is told
                # What stood in the way may be the effect itself, which another run has committed.
                self._stop_if_committed()
            self._undo()

    def _stop_if_committed(self) -> None:
        """End the task if its effect is there."""
        result = self._record.find()
        if result is not None:
            self._run.effect = Effect(result)
            raise EffectCommitted


class _Record(Protocol):
    """How the database knows that a job's effect is there."""

    def find(self) -> bytes | None:
        """Give the result, if an earlier transaction has committed the effect."""

    def write(self, result: bytes) -> bool:
        """Say so in the transaction; False if it may not be said any more."""

    def effect(self, result: bytes) -> Effect:
        """Give what is now committed."""

    def tidy(self) -> None:
        """Do what can be done afterwards."""


class _Completed:
    """The ledger is in the same database: the job itself is completed in the transaction."""

    def __init__(self, run: Run, ledger: LedgerWithin) -> None:
        self._run = run
        self._ledger = ledger

    def find(self) -> None:
        """Nothing to find: a job whose effect is there does not begin."""

    def write(self, result: bytes) -> bool:
        # What a renewal is answered from here on may come from this very settlement.
        self._run.is_settling = True
        # A job that was lost, as by a fail-over of this database, is recorded again in the same transaction.
        answer = self._run.ask(lambda ledger, lease: ledger.settle(lease, Complete(result=result)), self._ledger)
        if not isinstance(answer, Settled):
            return False
        self._answer = answer
        return True

    def effect(self, result: bytes) -> Effect:
        return Effect(result, self._answer)

    def tidy(self) -> None:
        self._ledger.emit_held()


class _InInbox:
    """The ledger is elsewhere: a row in the inbox goes with the effect, and the job is completed after it."""

    def __init__(self, run: Run, inbox: Inbox, keep: timedelta) -> None:
        self._run = run
        self._inbox = inbox
        self._keep = keep

    def find(self) -> bytes | None:
        found = self._inbox.find(self._run.lease)
        return found[1] if found and self._is_of_this_job(found[0]) else None

    def _is_of_this_job(self, fence: int) -> bool:
        """Whether it was a run of this job; an earlier one, long forgotten, may have had the same id."""
        job = self._run.ledger.get(self._run.job_id)
        # A ledger knows an id for all of its job's history: if it takes this job for a newer one, it had lost it.
        if job is None or fence > (job.created_at - self._keep - EPOCH) // MICROSECOND:
            return True
        # The clock may have been set back after the job was accepted.
        return fence in {attempt.fence for attempt in job.past}

    def write(self, result: bytes) -> bool:
        try:
            self._run.raise_if_cancelled()
        except StoreUnavailableError as error:
            # The row decides between this run and another that may have begun.
            _logger.warning("could not ask whether job %s is still ours: %s", self._run.job_id, error)
        return self._insert(result) or self._insert_instead(result)

    def _insert(self, result: bytes, *, instead_of: int = 0) -> bool:
        return self._inbox.insert(self._run.lease, result, keep=self._keep, instead_of=instead_of)

    def _insert_instead(self, result: bytes) -> bool:
        found = self._inbox.find(self._run.lease)
        return bool(found and not self._is_of_this_job(found[0]) and self._insert(result, instead_of=found[0]))

    def effect(self, result: bytes) -> Effect:
        return Effect(result)

    def tidy(self) -> None:
        try:
            self._inbox.prune(self._run.lease.task, self._is_needed)
        except Exception as error:  # noqa: BLE001 - the next one will
            _logger.warning("could not delete old rows from the inbox: %s", error)

    def _is_needed(self, job_id: str, key: str) -> bool:
        """Whether a job may yet run again: it would find no other trace of its effect."""
        job = self._run.ledger.get(job_id)
        return job is not None and job.key == key and (job.state.live or job.state is State.BURIED)


class _Unrecorded:
    """There is no job, as where a task is called directly in a unit test: a transaction like any other."""

    def find(self) -> None:
        pass

    def write(self, _: bytes) -> bool:
        return True

    def effect(self, result: bytes) -> Effect:
        return Effect(result)

    def tidy(self) -> None:
        pass


def _record_of(run: Run, caller: Caller) -> _Record:
    if run.keep is None:
        return _Unrecorded()
    if ledger := ledger_within(run.ledger, caller):
        return _Completed(run, ledger)
    return _InInbox(run, Inbox(caller, run.ledger.store.namespace), run.keep)


def one_of(run: Run, target: object, current: Transaction | None) -> Transaction:
    """Give the transaction of a run: the one that is open, if it is on the same target, else a new one."""
    if run.effect is not None:
        raise ConfigurationError(
            f"job {run.job_id} was completed at the end of its transaction: put all its writes into that one block"
        )
    if run.in_doubt:
        raise StoreUnavailableError(f"job {run.job_id}: nobody knows yet whether its transaction has committed")
    if current is None or not current.is_open:
        return Transaction(run, target)
    if current.target is not target:
        raise ConfigurationError(
            "a run has one transaction, for two cannot be committed as one: write the rest through an outbox "
            "(apply_async(..., within=...)), or in a run.step(...)"
        )
    return current
