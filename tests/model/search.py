"""Every state that can be reached within the bounds, breadth first, so that what is found is found by the shortest way.

A state is one number, packed from the numbers of its parts: what all share, the faults left, and the workers in order
(they are alike, so that their order does not matter). The steps of a part are worked out once.
"""

from __future__ import annotations

import gc
import time
from array import array
from collections.abc import Collection, Hashable, Iterator
from itertools import pairwise
from typing import Generic, NamedTuple, TypeVar

from .invariants import INVARIANTS, NAMED
from .mail import Mail, Post
from .protocol import Protocol
from .steps import FAULT, IDLE, PROGRESS, Books, Step, Worker, unnamed

T = TypeVar("T", bound=Hashable)

WORKER_BITS, MAIL_BITS, FAULT_BITS, JOB_BITS = 12, 8, 4, 3
SHARED_BITS = MAIL_BITS + FAULT_BITS
WORKER_MASK, MAIL_MASK, FAULT_MASK = (1 << WORKER_BITS) - 1, (1 << MAIL_BITS) - 1, (1 << FAULT_BITS) - 1


class Verdict(NamedTuple):
    """What a search has found."""

    states: int
    steps: int
    seconds: float
    #: The invariant that is broken, and the shortest way there.
    broken: str
    trace: tuple[str, ...]
    #: The most effects for one commit, where they were counted.
    effects: int

    def __str__(self) -> str:
        rate = self.states / max(self.seconds, 1e-9)
        found = f"{self.states:,} states, {self.steps:,} steps in {self.seconds:.1f} s ({rate:,.0f} states/s)"
        if not self.broken:
            return f"{found}: all hold"
        return "\n  ".join([f"{found}: {self.broken} broken ({INVARIANTS[self.broken]})", *self.trace])


class Numbers(dict[T, int], Generic[T]):
    """Gives each value a number."""

    def __init__(self) -> None:
        self.in_order: list[T] = []

    def __missing__(self, value: T) -> int:
        self[value] = number = len(self.in_order)
        self.in_order.append(value)
        return number


class Deliveries(dict[int, int]):
    """Tells which mail follows on which when this becomes of a message; -1: it cannot."""

    def __init__(self, mails: Numbers[Mail], post: Post) -> None:
        self.mails = mails
        self.post = post

    def __missing__(self, number: int) -> int:
        after = self.mails.in_order[number].after(self.post)
        self[number] = follows = -1 if after is None else self.mails[after]
        return follows


class Compiled(NamedTuple):
    """A step, in numbers."""

    fault: int
    progress: bool
    books: int
    worker: int
    #: Which mail follows on which.
    mail: dict[int, int]
    renamed: int
    broken: str


class Search:
    """Searches one configuration of one protocol."""

    def __init__(self, protocol: Protocol, *, watch: Collection[str] = tuple(INVARIANTS)) -> None:
        assert protocol.bounds.faults <= FAULT_MASK
        assert len(protocol.bounds.submissions) <= JOB_BITS
        self.protocol = protocol
        self.watch = frozenset(watch)
        self.books: Numbers[Books] = Numbers()
        self.mails: Numbers[Mail] = Numbers()
        self.workers: Numbers[Worker] = Numbers()
        self.posts: dict[Post, Deliveries] = {}
        #: What a worker means to the world: bits of the job it attends to, whose message it holds, or ends.
        self.roles: list[int] = []
        #: A worker and the jobs whose record names another now -> the worker after that.
        self.unnamed: dict[tuple[int, int], int] = {}
        self.order: list[int] = []
        self.parents = array("q")
        #: The steps without faults: those of a state begin at its offset.
        self.edges = array("q")
        self.offsets = array("q", [0])

    def run(self) -> Verdict:
        begun = time.perf_counter()
        gc.disable()  # there is nothing to collect, and looking for it takes a third of the time
        try:
            last, steps, broken = self.explore()
        finally:
            gc.enable()
        assert len(self.mails) <= MAIL_MASK
        assert len(self.workers) <= WORKER_MASK
        trace = self.trace(last, broken) if broken else ()
        if not broken and "I5" in self.watch:
            last = self.dead_end()
            if last >= 0:
                broken, trace = "I5", (*self.trace(last), "... and no way leads on to an end without another fault")
        counted = [books.memory.effects for books in self.books.in_order if any(books.memory.results)]
        seconds = time.perf_counter() - begun
        return Verdict(len(self.order), steps, seconds, broken, trace, max(counted, default=0))

    def explore(self) -> tuple[int, int, str]:  # noqa: C901, PLR0912, PLR0915 - one loop, written out for speed
        """Visit all states; stop at the first step that breaks an invariant, with the place of its state."""
        slots = self.protocol.bounds.workers
        shifts = [SHARED_BITS + WORKER_BITS * slot for slot in range(slots)]
        top = SHARED_BITS + WORKER_BITS * slots
        world_memo: dict[int, list[Compiled]] = {}
        worker_memo: dict[int, list[Compiled]] = {}
        books, mail = self.protocol.start()
        start = self.pack(self.books[books], self.mails[mail], self.protocol.bounds.faults, [self.number(IDLE)] * slots)
        index = {start: 0}
        order, parents, edges, offsets = self.order, self.parents, self.edges, self.offsets
        order.append(start)
        parents.append(-1)
        roles, unnamed = self.roles, self.unnamed
        steps = 0
        for place, state in enumerate(order):
            page, faults, letters = state >> top, state & FAULT_MASK, state >> FAULT_BITS & MAIL_MASK
            team = [state >> shift & WORKER_MASK for shift in shifts]
            role = 0
            for worker in team:
                role |= roles[worker]
            key = page << 3 * JOB_BITS | role
            options = world_memo.get(key)
            if options is None:
                options = world_memo[key] = [self.compile(step) for step in self.world_steps(page, role)]
            moves = [(options, -1)]
            twin = -1
            for slot, worker in enumerate(team):
                if worker == twin:
                    continue
                twin = worker
                key = page << WORKER_BITS | worker
                options = worker_memo.get(key)
                if options is None:
                    options = worker_memo[key] = [self.compile(step) for step in self.worker_steps(page, worker)]
                moves.append((options, slot))
            for options, slot in moves:
                for fault, progress, next_page, next_worker, deliveries, renamed, broken in options:
                    if fault > faults:
                        continue
                    next_letters = deliveries[letters]
                    if next_letters < 0:
                        continue
                    steps += 1
                    if broken:
                        return place, steps, broken
                    after = [unnamed.get((w, renamed), w) for w in team] if renamed else team[:]
                    if slot >= 0:
                        after[slot] = next_worker
                    after.sort()
                    packed = next_page
                    for worker in after:
                        packed = packed << WORKER_BITS | worker
                    packed = (packed << MAIL_BITS | next_letters) << FAULT_BITS | faults - fault
                    found = index.get(packed)
                    if found is None:
                        found = index[packed] = len(order)
                        order.append(packed)
                        parents.append(place)
                    if progress:
                        edges.append(found)
            offsets.append(len(edges))
        return -1, steps, ""

    def dead_end(self) -> int:
        """Find the first state from which no way without faults leads to where all is settled; -1: there is none."""
        slots = self.protocol.bounds.workers
        top = SHARED_BITS + WORKER_BITS * slots
        settled = [self.protocol.settled(books) for books in self.books.in_order]
        empty = [mail.empty for mail in self.mails.in_order]
        idle = self.pack(0, 0, 0, [self.number(IDLE)] * slots) >> SHARED_BITS
        team = (1 << WORKER_BITS * slots) - 1
        ends = bytearray(
            settled[state >> top] and empty[state >> FAULT_BITS & MAIL_MASK] and state >> SHARED_BITS & team == idle
            for state in self.order
        )
        edges, offsets = self.edges, self.offsets
        changed = True
        while changed:
            changed = False
            for place in range(len(ends) - 1, -1, -1):
                if not ends[place]:
                    for edge in edges[offsets[place] : offsets[place + 1]]:
                        if ends[edge]:
                            ends[place] = changed = True
                            break
        return ends.find(0)

    # Numbers

    def number(self, worker: Worker) -> int:
        known = self.workers.get(worker)
        if known is not None:
            return known
        number, bit = self.workers[worker], 1 << worker.job
        attends = worker.holder == NAMED and worker.phase not in ("idle", "dead")
        held = bit << JOB_BITS if worker.phase != "idle" else 0
        self.roles.append((bit if attends else 0) | held | (bit << 2 * JOB_BITS if worker.phase == "ending" else 0))
        if worker.holder == NAMED:
            other = self.number(unnamed(worker))
            self.unnamed.update({(number, jobs): other for jobs in range(1 << JOB_BITS) if jobs & bit})
        return number

    def pack(self, books: int, mail: int, faults: int, team: list[int]) -> int:
        packed = books
        for worker in sorted(team):
            packed = packed << WORKER_BITS | worker
        return (packed << MAIL_BITS | mail) << FAULT_BITS | faults

    def unpack(self, state: int) -> tuple[int, int, int, list[int]]:
        slots = self.protocol.bounds.workers
        team = [state >> SHARED_BITS + WORKER_BITS * slot & WORKER_MASK for slot in reversed(range(slots))]
        return state >> SHARED_BITS + WORKER_BITS * slots, state >> FAULT_BITS & MAIL_MASK, state & FAULT_MASK, team

    def compile(self, step: Step) -> Compiled:
        deliveries = self.posts.get(step.post)
        if deliveries is None:
            deliveries = self.posts[step.post] = Deliveries(self.mails, step.post)
        fault, progress = step.kind == FAULT, step.kind == PROGRESS
        worker = self.number(step.worker)
        broken = next((invariant for invariant in step.broken if invariant in self.watch), "")
        return Compiled(fault, progress, self.books[step.books], worker, deliveries, step.renamed, broken)

    def world_steps(self, books: int, role: int) -> Iterator[Step]:
        jobs = (1 << JOB_BITS) - 1
        bits = (role >> shift & jobs for shift in (0, JOB_BITS, 2 * JOB_BITS))
        return self.protocol.world_steps(self.books.in_order[books], *bits)

    def worker_steps(self, books: int, worker: int) -> Iterator[Step]:
        return self.protocol.worker_steps(self.books.in_order[books], self.workers.in_order[worker])

    # The way to a state

    def trace(self, place: int, broken: str = "") -> tuple[str, ...]:
        """Tell the steps that lead to a state, and the one after them that breaks an invariant."""
        path = [place]
        while self.parents[path[-1]] >= 0:
            path.append(self.parents[path[-1]])
        path.reverse()
        names = [chr(ord("A") + slot) for slot in range(self.protocol.bounds.workers)]
        labels = []
        for here, there in pairwise(path):
            label, names = self.retrace(self.order[here], names, goal=self.order[there])
            labels.append(label)
        if broken:
            labels.append(self.retrace(self.order[place], names, broken=broken)[0])
        return tuple(labels)

    def retrace(self, state: int, names: list[str], *, goal: int = -1, broken: str = "") -> tuple[str, list[str]]:
        """Find the step from a state to the next, or the one that breaks an invariant; and who is who after it."""
        books, mail, faults, team = self.unpack(state)
        role = 0
        for worker in team:
            role |= self.roles[worker]
        moves = [(step, -1) for step in self.world_steps(books, role)]
        for slot, worker in enumerate(team):
            moves += [(step, slot) for step in self.worker_steps(books, worker)]
        for step, slot in moves:
            compiled = self.compile(step)
            letters = compiled.mail[mail]
            if compiled.fault > faults or letters < 0:
                continue
            after = [self.unnamed.get((worker, step.renamed), worker) for worker in team]
            if slot >= 0:
                after[slot] = compiled.worker
            packed = self.pack(compiled.books, letters, faults - compiled.fault, after)
            if packed == goal or (broken and compiled.broken == broken):
                label = step.label.format(w=names[slot])
                label = f"{label}  [{step.kind}]" if step.kind != PROGRESS else label
                return label, [names[slot] for slot in sorted(range(len(team)), key=after.__getitem__)]
        raise AssertionError("no step leads there")
