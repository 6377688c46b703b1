"""Who uses the ledger, step by step, and what may go wrong between any two steps.

Callers reserve and publish; a broker delivers at least once; workers begin, take effect, settle and acknowledge; a
sweeper publishes again; an operator cancels and revives. Each step gives what the books say after it, what the worker
that made it is then, and what becomes of a message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .invariants import NAMED, UNNAMED, Memory, change, judge_ack, judge_answer, judge_run, observe, runs
from .ledger import BURIED, ENDS, JOIN, OPENED, REPLACE, RUNNING, TRAIL, Answer, Answered, Ledger, Store
from .mail import Mail, Post
from .steps import (
    ACT,
    BY_NAME,
    CALL,
    FAULT,
    IDLE,
    LOST,
    OLD,
    PROGRESS,
    Books,
    Bounds,
    Step,
    Worker,
    claim,
    forget_holder,
    leave,
    name,
    rename,
    who,
)


class Protocol:
    """The steps as they should be. A mutant overrides one of them, or a verb of its store."""

    store_type: type[Store] = Store

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.store = self.store_type()
        self.store.max_crashes = bounds.max_crashes
        self.store.hold = bounds.hold
        self.store.receipts = bounds.receipts

    def start(self) -> tuple[Books, Mail]:
        n = len(self.bounds.submissions)
        books = Books(Ledger((None,) * n), ("new",) * n, self.bounds.acts, Memory.of(n))
        return books, Mail((0,) * n, (False,) * n, self.bounds.redis, self.bounds.copies)

    def settled(self, books: Books) -> bool:
        """Whether all that was accepted has ended."""
        if any(record and record.live for record in books.ledger.records) or {"new", "reserved"} & {*books.callers}:
            return False
        return all(over or not self.owed(books, job) for job, over in enumerate(books.memory.over))

    def owed(self, books: Books, job: int) -> bool:
        """Whether the caller was told that its job is accepted. A message sent by name is no more than that."""
        return books.callers[job] == "done" and self.bounds.submissions[job] in (JOIN, TRAIL, REPLACE)

    # Callers, broker, sweeper, operator, time

    def world_steps(self, books: Books, attended: int, held: int, ending: int) -> Iterator[Step]:
        """Give the steps that no worker makes.

        Bits of jobs: `attended`, a live worker is the holder that the record names; `held`, one has the message;
        `ending`, one is about to acknowledge it or to give it back.
        """
        for job in range(len(books.callers)):
            yield from self.caller_steps(books, job)
            yield from self.broker_steps(books, job, held=bool(held >> job & 1))
            if books.ledger.records[job]:
                if not ending >> job & 1:
                    yield from self.failover_steps(books, job, attended=bool(attended >> job & 1))
                yield from self.sweeper_steps(books, job)
                yield from self.lease_steps(books, job, attended=bool(attended >> job & 1))
                if books.acts:
                    yield from self.operator_steps(books, job)
                    yield from self.calendar_steps(books, job)

    def caller_steps(self, books: Books, job: int) -> Iterator[Step]:
        phase, way = books.callers[job], self.bounds.submissions[job]
        if job and books.callers[job - 1] == "new" and not books.ledger.records[job - 1]:
            return  # they are numbered as they come
        if phase == "reserved" or (phase == "new" and way == BY_NAME):
            after = self.call(books, job, "done")
            yield self.step(f"caller publishes {name(job)}", PROGRESS, books, after, post=("publish", job))
        elif phase == "new" and way != CALL:
            ledger, answer = self.store.reserve(books.ledger, job, way)
            after = books._replace(ledger=ledger)
            label = f"caller: reserve {name(job)}: {answer.name}"
            told = "reserved" if answer.name == "Reserved" else "done" if answer.job == job else "joined"
            broken = judge_answer(books.memory, answer)
            yield self.step(label, PROGRESS, books, self.call(after, job, told), broken=broken)
            yield self.step(f"{label}, reply lost", FAULT, books, after)
        if phase == "reserved" or (phase == "new" and books.ledger.records[job]):
            yield self.step(f"caller of {name(job)} dies", FAULT, books, self.call(books, job, "gone"))

    def broker_steps(self, books: Books, job: int, *, held: bool) -> Iterator[Step]:
        # Of what ledger and broker have both lost, nobody is left to tell.
        if books.ledger.records[job] or not self.bounds.failovers:
            yield self.step(f"broker loses a message of {name(job)}", FAULT, books, books, post=("lose", job))
        label = f"broker delivers {name(job)} again, {'still held' if held else 'unacknowledged'}"
        yield self.step(label, FAULT if held else PROGRESS, books, books, post=("deliver_again", job))

    def failover_steps(self, books: Books, job: int, *, attended: bool) -> Iterator[Step]:
        """Undo all that the store knew of a live job; its run lives on, or a message of it waits.

        What it has answered to a worker that acknowledges just then is lost with it, as docs/guarantees.md says.
        """
        if self.bounds.failovers and books.ledger.get(job).live:
            after = books._replace(ledger=self.store.forget(books.ledger, job))
            post: Post = () if attended else ("is_waiting", job)
            yield self.step(f"the store fails over, and has lost {name(job)}", FAULT, books, after, post=post)

    def sweeper_steps(self, books: Books, job: int) -> Iterator[Step]:
        ledger, publish = self.store.due(books.ledger, job)
        after = books._replace(ledger=ledger)
        if not publish and ledger != books.ledger:
            yield self.step(f"sweeper: due: {name(job)} is ended", PROGRESS, books, after)
        elif publish:
            label = f"sweeper: due: {name(job)} is published"
            yield self.step(label, PROGRESS, books, after, post=("publish_if_none_waits", job))
            # While a message waits in the queue, a further one comes by the slow check only; a fault, to bound it.
            yield self.step(label, FAULT, books, after, post=("publish_though_one_waits", job))

    def lease_steps(self, books: Books, job: int, *, attended: bool) -> Iterator[Step]:
        record = books.ledger.get(job)
        if record.early:
            after = books._replace(ledger=self.store.ripen(books.ledger, job))
            yield self.step(f"the time of {name(job)} comes", PROGRESS, books, after)
        if record.state == RUNNING and not record.lapsed:
            after = books._replace(ledger=self.store.lapse(books.ledger, job))
            if attended:
                after = after._replace(memory=after.memory.scare(job))
            label = f"the lease of {name(job)} lapses, its holder {'paused' if attended else 'gone'}"
            yield self.step(label, FAULT if attended else PROGRESS, books, after)
        if record.opened == OPENED:
            told = record.received >= books.memory.duds[job]
            before = books._replace(memory=books.memory.dud(job)) if told else books
            after = before._replace(ledger=self.store.tire(books.ledger, job))
            label = f"the lease to open a message of {name(job)} is over, its holder {'paused' if told else 'gone'}"
            yield self.step(label, FAULT if told else PROGRESS, before, after)

    def operator_steps(self, books: Books, job: int) -> Iterator[Step]:
        record, ledger, store = books.ledger.get(job), books.ledger, self.store
        if record.live and not record.cancel_requested:
            yield from self.operate(books, job, "cancel", store.cancel(ledger, job, force=False))
        if record.state == RUNNING:
            yield from self.operate(books, job, "cancel by force", store.cancel(ledger, job, force=True))
        if record.state == BURIED:
            yield from self.operate(books, job, "revive", store.revive(ledger, job))
            if self.bounds.discards:
                yield from self.operate(books, job, "discard", store.discard(ledger, job))

    def operate(self, books: Books, job: int, verb: str, answered: Answered) -> Iterator[Step]:
        ledger, answer = answered
        label = f"operator: {verb} {name(job)}: {answer.name}"
        unsure = books._replace(ledger=ledger)
        post: Post = ("publish", job) if answer.name == "Revived" else ()
        yield self.step(label, ACT, books, unsure._replace(acts=books.acts - 1), post=post, by_hand=True)
        if ledger != books.ledger:
            yield self.step(f"{label}, reply lost", FAULT, books, unsure, by_hand=True)

    def calendar_steps(self, books: Books, job: int) -> Iterator[Step]:
        record, after = books.ledger.get(job), books._replace(acts=books.acts - 1)
        if record.retained:
            after = after._replace(ledger=self.store.expire(books.ledger, job))
            yield self.step(f"the retention of {name(job)} passes", ACT, books, after, by_hand=True)
        elif not record.live and record.state != BURIED:
            after = after._replace(ledger=self.store.prune(books.ledger, job))
            yield self.step(f"the history of {name(job)} passes", ACT, books, after, by_hand=True)

    # Workers

    def worker_steps(self, books: Books, worker: Worker) -> Iterator[Step]:  # noqa: C901, PLR0912 - one case for each phase
        """Give the steps of one worker, which are named with {w} for it."""
        match worker.phase:
            case "idle":
                yield from self.idle_steps(books, worker)
            case "got" if self.bounds.receipts >= 0:
                yield from self.open_steps(books, worker)
            case "noted":
                yield from self.begin_steps(books, worker)
                yield from self.wait_steps(books, worker)
            case "got" | "body":
                yield from self.begin_steps(books, worker)
            case "victim":
                yield from self.victim_steps(books, worker)
            case "running" | "done":
                yield from self.run_steps(books, worker)
            case phase if phase.startswith(LOST):
                yield from self.restore_steps(books, worker)
            case "settling":
                yield from self.settle_steps(books, worker, worker.how)
            case "dead":
                yield from self.settle_steps(books, worker, "crash")
            case "ending":
                yield from self.ending_steps(books, worker)
        if worker.phase != "idle":
            yield from self.crash_steps(books, worker)
        if worker.tag:
            label = f"broker delivers {name(worker.job)} again, still held by {{w}}"
            then = worker._replace(tag=False)
            yield self.step(label, FAULT, books, books, worker, then, post=("publish", worker.job))
        if worker.late:
            yield self.arrival_step(books, worker)

    def idle_steps(self, books: Books, worker: Worker) -> Iterator[Step]:
        if worker.late:
            return
        for job, way in enumerate(self.bounds.submissions):
            if way == CALL and books.callers[job] == "new":
                after = self.call(books, job, "done")
                yield self.step(f"{{w}} calls {name(job)}", PROGRESS, books, after, worker, Worker("body", job))
            got = Worker("got", job, tag=not self.bounds.redis)
            yield self.step(f"{{w}} receives {name(job)}", PROGRESS, books, books, worker, got, post=("receive", job))

    def open_steps(self, books: Books, worker: Worker) -> Iterator[Step]:
        """Open a message: when it comes, and then again when it is handed to who begins.

        What comes while another one opens it is put away; what was handed over goes on all the same.
        """
        phases = {"Counted": ("noted",), "Absent": ("noted",), "Busy": ("ending", "noted")}
        yield from self.tell(books, worker, "opening", phases)

    def wait_steps(self, books: Books, worker: Worker) -> Iterator[Step]:
        """Wait for a free child with a message that was opened."""
        yield from self.tell(books, worker, "opened", {"Counted": ("got",)})

    def victim_steps(self, books: Books, worker: Worker) -> Iterator[Step]:
        """Let the parent tell of a child that died before it began, and give the message back."""
        known = books._replace(memory=books.memory.dud(worker.job))
        yield from self.tell(known, worker._replace(how="reject"), "dead", {}, unsure=worker)

    def tell(
        self,
        books: Books,
        worker: Worker,
        how: str,
        phases: Mapping[str, tuple[str, ...]],
        unsure: Worker | None = None,
    ) -> Iterator[Step]:
        ledger, answer = self.store.received(books.ledger, worker.job, how)
        after = books._replace(ledger=ledger)
        label = f"{who(worker)}: received {name(worker.job)}, {how}: {answer.name}"
        for phase in phases.get(answer.name, ("ending",)):
            yield self.step(label, PROGRESS, books, after, worker, worker._replace(phase=phase))
        if ledger != books.ledger:
            # It is told again: as if another had died, of whom nobody knows.
            lost = books._replace(memory=books.memory.dud(worker.job))
            step = self.step(
                f"{label}, reply lost", FAULT, lost, lost._replace(ledger=ledger), worker, unsure or worker
            )
            yield step

    def begin_steps(self, books: Books, worker: Worker) -> Iterator[Step]:
        request = "begin with body" if worker.phase == "body" else "begin"
        ledger, answer = self.request(books.ledger, worker, request)
        match answer.name:
            case "Granted":
                then = worker._replace(phase="running", fence=answer.fence)
            case "Absent":
                then = worker._replace(phase="body")
            case _:
                then = self.declined(worker, answer)
        broken = judge_answer(books.memory, answer)
        if answer.name == "Later":  # it has come as far as a run can: whatever died before, it was not of this message
            books = books._replace(memory=books.memory.forgive(worker.job))
        yield from self.send(books, worker, request, (ledger, answer), then, worker, broken)

    def declined(self, worker: Worker, answer: Answer) -> Worker:
        """Give a worker that may not run: another has the job, or does its work under another id."""
        how = ""
        # A job that was reserved meets another one of its key only if the store had lost it.
        if answer.job != worker.job and (self.bounds.submissions[worker.job] == BY_NAME or self.bounds.failovers):
            how = {"Busy": "park", "Finished": "answered"}.get(answer.name, "")
        return worker._replace(phase="ending", how=how)

    def run_steps(self, books: Books, worker: Worker) -> Iterator[Step]:
        if worker.phase == "running":
            yield self.effect_step(books, worker)
        else:
            yield from self.settle_steps(books, worker, "complete")
        if books.acts:
            after = books._replace(acts=books.acts - 1)
            for how in ("retry", "handback", "bury"):
                then = worker._replace(phase="settling", how=how)
                yield self.step(f"{{w}} is about to settle: {how}", ACT, books, after, worker, then)
        ledger, answer = self.request(books.ledger, worker, "renew")
        then = worker
        if answer.name == "Absent":
            then = self.lost(worker)
        elif answer.name == "Fenced":
            then = worker._replace(phase="ending")
        elif answer.flag:
            then = worker._replace(phase="settling", how="cancel")
        broken = judge_run(books.memory, books.ledger, ledger, claim(worker), answer)
        if then != worker or ledger != books.ledger:
            yield from self.send(books, worker, "renew", (ledger, answer), then, worker, broken)

    def lost(self, worker: Worker) -> Worker:
        """Give a worker whose run the store does not know: it has no rival, and begins again."""
        return worker._replace(phase=f"{LOST}{worker.phase}", fence=0)

    def restore_steps(self, books: Books, worker: Worker) -> Iterator[Step]:
        """Record a run again, with its body, and go on with it; unless somebody else has the job by now."""
        answered = self.request(books.ledger, worker, "begin with body")
        answer = answered[1]
        then = self.declined(worker, answer)
        if answer.name == "Granted":
            then = worker._replace(phase=worker.phase.removeprefix(LOST), fence=answer.fence)
        broken = judge_answer(books.memory, answer)
        yield from self.send(books, worker, "begin with body", answered, then, worker, broken)

    def effect_step(self, books: Books, worker: Worker) -> Step:
        effects = books.memory.effects + self.bounds.effects
        after = books._replace(memory=books.memory._replace(effects=effects))
        label, broken = f"{{w}} takes effect for {name(worker.job)}", "" if worker.fence else "I10"
        return self.step(label, PROGRESS, books, after, worker, worker._replace(phase="done"), broken=broken)

    def settle_steps(self, books: Books, worker: Worker, how: str) -> Iterator[Step]:
        ledger, answer = self.request(books.ledger, worker, how)
        broken = judge_run(books.memory, books.ledger, ledger, claim(worker), answer, how)
        then = worker._replace(phase="ending", how="reject" if how in ("handback", "crash") else "")
        unsure = worker if worker.phase == "dead" else worker._replace(phase="settling", how=how)
        if answer.name == "Absent" and worker.phase != "dead":
            then = self.lost(unsure)
        yield from self.send(books, worker, how, (ledger, answer), then, unsure, broken)

    def ending_steps(self, books: Books, worker: Worker) -> Iterator[Step]:
        """Acknowledge the message; or reject it, so that it comes again; or publish it for later, and acknowledge."""
        job, idle = worker.job, leave(worker)
        if worker.how == "reject":
            yield self.step(
                f"{{w}} rejects {name(job)}", PROGRESS, books, books, worker, idle, post=self.give_back(worker)
            )
        elif worker.how == "park":
            yield self.step(f"{{w}} parks {name(job)}", PROGRESS, books, books, worker, idle, post=("park", job))
        else:
            after, broken = books, ""
            if worker.how == "answered":  # with another job's result: all that its sender is owed
                after = books._replace(memory=books.memory.end(job))
            elif self.bounds.submissions[job] != CALL:
                broken = judge_ack(books.ledger, books.memory, job)
            label = f"{{w}} acknowledges {name(job)}"
            yield self.step(label, PROGRESS, books, after, worker, idle, post=("acknowledge", job), broken=broken)

    def crash_steps(self, books: Books, worker: Worker) -> Iterator[Step]:
        job, memory = worker.job, books.memory
        if worker.phase not in ("dead", "victim") and runs(memory, books.ledger, claim(worker)):
            memory = memory.wreck(job)
        elif worker.phase in ("got", "noted", "victim", "body") and self.bounds.receipts >= 0:
            memory = memory.dud(job)
        broken = "I6" if memory.wrecks[job] > self.bounds.max_crashes + 1 else ""
        after = books._replace(memory=memory)
        label = f"{who(worker)} dies ({worker.phase})"
        # Redis keeps the message in `unacked` until a timeout; RabbitMQ sees the connection close.
        post = () if self.bounds.redis else self.give_back(worker)
        if self.is_last(books.ledger, worker):
            yield from self.last_steps(label, books, after, worker, leave(worker))
            return
        yield self.step(label, FAULT, books, after, worker, leave(worker), post=post, broken=broken)
        if worker.phase == "noted":
            child = worker._replace(phase="victim", how="")
            # A death that the parent tells of; unless it was of a run, to which a reply was lost.
            wrecked = after if memory.wrecks != books.memory.wrecks else books
            yield self.step(f"{{w}}'s child dies ({worker.phase})", FAULT, books, wrecked, worker, child, broken=broken)
        if worker.phase.removeprefix(LOST) in ("running", "done", "settling"):
            # The parent knows the lease that was lost, not the one under which the run was recorded again.
            fence = OLD if worker.phase.startswith(LOST) else worker.fence
            child = worker._replace(phase="dead", how="", fence=fence)
            yield self.step(f"{{w}}'s child dies ({worker.phase})", FAULT, books, after, worker, child, broken=broken)

    def is_last(self, ledger: Ledger, worker: Worker) -> bool:
        """Whether a run may be all there is of its job: the store has lost it, and a copy of its message was acked."""
        return self.bounds.failovers and not worker.tag and not ledger.records[worker.job]

    def last_steps(self, label: str, books: Books, after: Books, worker: Worker, then: Worker) -> Iterator[Step]:
        """Let a worker leave a job that the store has lost; without a message, nobody is left who knows of it."""
        gone = after._replace(memory=after.memory.end(worker.job))
        yield self.step(label, FAULT, books, gone, worker, then, post=("is_nowhere", worker.job))
        yield self.step(label, FAULT, books, after, worker, then, post=("is_somewhere", worker.job))

    # Requests to the store

    def request(self, ledger: Ledger, worker: Worker, request: str) -> Answered:
        job, fence, holder = worker.job, worker.fence, worker.holder
        match request:
            case "begin" | "begin with body":
                empty = self.bounds.submissions[job] == CALL
                return self.store.begin(ledger, job, holder, body=request != "begin", empty=empty)
            case "renew":
                return self.store.renew(ledger, job, fence, holder)
            case how:
                return self.store.settle(ledger, job, fence, holder, how)

    def send(  # noqa: PLR0917 - what is sent, and what follows if it is answered or not
        self, books: Books, worker: Worker, request: str, answered: Answered, then: Worker, unsure: Worker, broken: str
    ) -> Iterator[Step]:
        """Give a request with its answer; without it, so that it is sent again; and with it still on its way."""
        ledger, answer = answered
        after = books._replace(ledger=ledger)
        label = f"{who(worker)}: {request} {name(worker.job)}: {answer.name}"
        yield self.step(label, PROGRESS, books, after, worker, then, broken=broken)
        if ledger != books.ledger:
            yield self.step(f"{label}, reply lost", FAULT, books, after, worker, unsure, broken=broken)
        if self.bounds.silent and (request.startswith("begin") or request in ENDS) and worker.phase != "dead":
            yield from self.give_up_steps(books, worker, f"{who(worker)}: {request} {name(worker.job)}", ledger)
        if self.bounds.late and not worker.late:
            label = f"{who(worker)}: {request} {name(worker.job)}: no answer, still on its way"
            yield self.step(label, FAULT, books, books, worker, unsure._replace(late=request))

    def give_up_steps(self, books: Books, worker: Worker, label: str, ledger: Ledger) -> Iterator[Step]:
        """Give the message back, when the store has long been silent: it has done what was asked, or not."""
        then = worker._replace(phase="ending", how="reject")
        for outcome in {ledger, books.ledger}:
            told = f"{label}: silence, {'done' if outcome is ledger else 'not done'}, given up"
            if self.is_last(outcome, worker):
                yield from self.last_steps(told, books, books._replace(ledger=outcome), worker, then)
                continue
            step = self.step(told, FAULT, books, books._replace(ledger=outcome), worker, then)
            record = outcome.records[worker.job]
            if record and record.state == RUNNING and record.holder == worker.holder:
                # To the ledger the same as a run that crashed.
                step = step._replace(books=step.books._replace(memory=step.books.memory.wreck(worker.job)))
            yield step

    def arrival_step(self, books: Books, worker: Worker) -> Step:
        """Let a request arrive that its sender has sent again; nobody waits for the answer."""
        # Of one that has no lease now, it was sent under the one that was lost.
        sent = worker._replace(fence=worker.fence or OLD)
        ledger, answer = self.request(books.ledger, sent, worker.late)
        then = IDLE if worker.phase == "idle" else worker._replace(late="")
        label = f"{who(worker)}'s late {worker.late} {name(worker.job)} arrives: {answer.name}"
        broken = ""
        if not worker.late.startswith("begin"):
            broken = judge_run(books.memory, books.ledger, ledger, claim(sent), answer)
        step = self.step(label, PROGRESS, books, books._replace(ledger=ledger), worker, then, broken=broken)
        if ledger == books.ledger or answer.name != "Granted" or worker.phase in ("got", "noted", "body"):
            return step
        # A run that nobody makes: to the ledger the same as one that crashed.
        return step._replace(books=step.books._replace(memory=step.books.memory.scare(worker.job)))

    # What steps share

    def step(  # noqa: PLR0917 - before and after, of the books and of the worker
        self,
        label: str,
        kind: str,
        books: Books,
        after: Books,
        worker: Worker = IDLE,
        then: Worker = IDLE,
        *,
        post: Post = (),
        broken: str = "",
        by_hand: bool = False,
    ) -> Step:
        """Complete a step: hold it against the invariants, and name the holder anew if another has become it."""
        renamed, found = 0, {broken} - {""}
        if after.ledger is not books.ledger:
            by_holder = runs(books.memory, books.ledger, claim(worker))
            memory, seen = observe(after.memory, books.ledger, after.ledger, by_hand=by_hand, by_holder=by_holder)
            ledger, then, renamed = rename(books.ledger, after.ledger, then)
            after, found = after._replace(ledger=ledger, memory=memory), found | seen
        if then.phase in ("idle", "ending") and not then.late:
            if NAMED in (then.holder, worker.holder) and not renamed >> worker.job & 1:
                after = after._replace(ledger=forget_holder(after.ledger, worker.job))
            then = IDLE if then.phase == "idle" else then._replace(holder=UNNAMED, fence=0)
        return Step(label, kind, after, then, post, tuple(sorted(found)), renamed)

    def call(self, books: Books, job: int, phase: str) -> Books:
        return books._replace(callers=change(books.callers, job, phase))

    def give_back(self, worker: Worker) -> Post:
        return ("give_back", worker.job) if worker.tag or self.bounds.redis else ()
