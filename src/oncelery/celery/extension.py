"""`Oncelery(app, store=…)`: joins an app and a ledger."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from celery import Celery

from oncelery.celery.flusher import Flusher
from oncelery.celery.keeper import Board, Keeper
from oncelery.celery.message import Message
from oncelery.celery.mirror import Mirror
from oncelery.celery.publishing import publish_again
from oncelery.celery.sweeper import Sweeper, Swept, sweep
from oncelery.celery.task import IdempotentTask
from oncelery.errors import ConfigurationError
from oncelery.heartbeat import Heartbeat
from oncelery.job import Job
from oncelery.ledger import Ledger
from oncelery.operations.dead_letters import DeadLetters
from oncelery.operations.duplicates import Duplicates
from oncelery.operations.jobs import Jobs
from oncelery.policy import Policy
from oncelery.settings import Settings
from oncelery.stores import open_store
from oncelery.telemetry.counting import Counting
from oncelery.telemetry.logging import log


class Oncelery:
    """The extension: `once = Oncelery(app, store="redis://…")`, then `@once.task(...)`.

    Settings are taken from here, else from the app's configuration (`oncelery_store`, …), else from the environment
    (`ONCELERY_STORE`, …).
    """

    def __init__(self, app: Celery, **settings: Any) -> None:
        self.app = app
        self._given = settings
        #: Made here, before any child is forked, so that all of them see it.
        self.board = Board()
        #: Celery's own way to publish, past the ledger.
        self.send_task = app.send_task
        app.send_task = self._send_task
        app.oncelery = self
        app.on_after_finalize.connect(self._verify, weak=False)
        app.steps["consumer"] |= {Keeper, Sweeper, Flusher}

    @classmethod
    def of(cls, app: Celery) -> Oncelery:
        """Find the extension of an app; one that was never made is made from the app's configuration."""
        return getattr(app, "oncelery", None) or cls(app)

    # What it stands on

    @cached_property
    def settings(self) -> Settings:
        """The settings, read when they are first needed: the app may be configured after this was made."""
        return Settings.gather(self._given, self.app.conf.get)

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger of this app, with those who listen to it."""
        ledger = Ledger(open_store(self.settings.store, namespace=self.settings.namespace))
        ledger.events.subscribe(log)
        ledger.events.subscribe(self.counting)
        if queue := self.settings.dead_letter_queue:
            ledger.events.subscribe(Mirror(self.app, ledger, queue))
        return ledger

    @cached_property
    def counting(self) -> Counting:
        """What this process has decided, on its way to the ledger's counters."""
        return Counting(lambda counts: self.ledger.count(counts))  # noqa: PLW0108 - the ledger is made after it

    @cached_property
    def heartbeat(self) -> Heartbeat:
        """What keeps the leases of this process alive."""
        return Heartbeat(self.ledger, renewed=self.board.renewed)

    @property
    def namespace(self) -> str:
        """What keeps the keys of this app apart from those of others."""
        return self.settings.namespace

    @cached_property
    def caller(self) -> str:
        """Who submits, in the audit."""
        return f"{self.app.main or 'app'}@{socket.gethostname()}"

    def policy(self, **options: Any) -> Policy:
        """Make a task's policy: its own options on top of the app's defaults."""
        return Policy.of(**{**self.settings.policy, **options})

    # Tasks

    def task(self, *functions: Callable[..., Any], **options: Any) -> Any:
        """Declare a guarded task: Policy's options are ours, all others go to `app.task`."""
        ours = {name: options.pop(name) for name in Policy.__dataclass_fields__ if name in options}
        declare = self.app.task(base=options.pop("base", IdempotentTask), once=ours, **options)
        return declare(functions[0]) if functions else declare

    def _send_task(self, name: str, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Send by name: through the task, if it is a guarded one that this process knows."""
        task = self.app._tasks.get(name)  # noqa: SLF001 - `app.tasks` would finalize the app
        if options.get("task_type") is None and isinstance(task, IdempotentTask):
            return task.apply_async(args, kwargs, **options)
        return self.send_task(name, args, kwargs, **options)

    def _verify(self, sender: Celery, **_: Any) -> None:
        """Refuse to start with a guarded task whose message would not outlive its run."""
        for task in sender.tasks.values():
            if isinstance(task, IdempotentTask) and not (task.acks_late and task.reject_on_worker_lost):
                raise ConfigurationError(
                    f"task {task.name!r} must have acks_late and reject_on_worker_lost: remove what switches them off"
                )

    # Operating

    @cached_property
    def jobs(self) -> Jobs:
        """Jobs to look at and to cancel."""
        return Jobs(self.ledger, terminate=lambda job_id: self.app.control.revoke(job_id, terminate=True))

    @cached_property
    def dead_letters(self) -> DeadLetters:
        """Jobs that nobody runs any more, to look at, revive and discard."""
        return DeadLetters(self.ledger, publish=lambda job: publish_again(self, job), rewrite=self._rewrite)

    @cached_property
    def duplicates(self) -> Duplicates:
        """Who was answered what, and how often."""
        return Duplicates(self.ledger)

    def _rewrite(self, job: Job, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> bytes:
        message = Message.unpack(self.app, job.body or b"").revived(args, kwargs)
        task = self.app.tasks.get(message.task)
        if task is not None and task.typing:
            task.__header__(*message.args, **message.kwargs)
        return message.pack(self.app)

    def sweep(self) -> Swept:
        """Publish what is lost, delete what is old; what the workers do by themselves."""
        return sweep(self, self.ledger)
