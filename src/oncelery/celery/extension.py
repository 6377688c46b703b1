"""`Oncelery(app, store=…)`: joins an app and a ledger."""

from __future__ import annotations

import inspect
import logging
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal, overload
from weakref import WeakSet

from celery import Celery
from celery.utils import uuid
from celery.utils.objects import FallbackContext
from celery.utils.text import match_case
from msgspec.structs import replace

from oncelery.celery.background import Background, BackgroundStep
from oncelery.celery.board import Board
from oncelery.celery.broker import Broker
from oncelery.celery.callbacks import Callbacks, declare
from oncelery.celery.declaring import refuse_lookalikes
from oncelery.celery.gate import GATE, at_the_gate
from oncelery.celery.identifying import function_of, key_of
from oncelery.celery.keeper import Keeper
from oncelery.celery.made_once import made_once
from oncelery.celery.message import NOTIFY, Message, shown
from oncelery.celery.mirror import Mirror
from oncelery.celery.publishing import Publication, publish_again, sent_as, tell_cancelled
from oncelery.celery.reading import Reading
from oncelery.celery.recommended import recommend
from oncelery.celery.reconnecting import Reconnecting
from oncelery.celery.sweeper import Sweeper, Swept, sweep
from oncelery.celery.task import IdempotentTask
from oncelery.errors import ConfigurationError, RevivalError
from oncelery.fingerprint import KeyChoice, Paths
from oncelery.heartbeat import Heartbeat
from oncelery.job import Durability, Job, OnDuplicate, Submission
from oncelery.ledger import Ledger
from oncelery.operations.dead_letters import DeadLetters
from oncelery.operations.duplicates import Duplicates
from oncelery.operations.jobs import Jobs
from oncelery.operations.redaction import SECRETS, Redaction, restored
from oncelery.policy import Backoff, Policy
from oncelery.settings import PREFIX, Settings
from oncelery.spelling import refuse_unknown
from oncelery.stores import open_store
from oncelery.telemetry.counting import Counting
from oncelery.telemetry.logging import log

if TYPE_CHECKING:
    from oncelery.operations.doctor import Finding

_logger = logging.getLogger("oncelery")

#: The brokers that mark what they deliver again, as Celery calls them.
MARKING = frozenset({"amqp", "redis", "memory"})

#: What may be given to `send_task` without a name, in this order.
_POSITIONAL = tuple(inspect.signature(Celery.send_task).parameters)[2:]
_ITS_OWN = frozenset({"task_type", "result_cls"})

#: Options of a message that go with its id: those of another task which it replaced under that id.
_OF_ONE_ID = frozenset({"task_id", "replaced_task_nesting"})


class Oncelery:
    """The extension: `once = Oncelery(app, store="redis://…")`, then `@once.task(...)`.

    Settings are taken from here, else from the app's configuration (`oncelery_store`, …), else from the environment
    (`ONCELERY_STORE`, …). With `recommended=True`, Celery's own settings are those of `oncelery.celery.recommended`,
    where you do not set them.
    """

    #: Those that the user made, not those that `of` made for an app.
    _asked_for: ClassVar[WeakSet[Oncelery]] = WeakSet()

    def __init__(self, app: Celery[Any], *, recommended: bool = False, **settings: Any) -> None:
        refuse_unknown(settings, Settings.names(), what="setting")
        self.app = app
        self._given = settings
        #: Made here, before any child is forked, so that all of them see it.
        self.board = Board()
        #: What the worker's main process asks of the ledger goes this way.
        self.background = Background()
        earlier: Oncelery | None = getattr(app, "oncelery", None)
        #: What the app itself had in the place of the methods that we replace.
        self._before: Mapping[str, Any] = (
            earlier._before  # noqa: SLF001 - one of us
            if earlier
            else {name: vars(app)[name] for name in ("send_task", "producer_or_acquire") if name in vars(app)}
        )
        app.send_task = self._send_task
        app.producer_or_acquire = self._producer_or_acquire
        app.oncelery = self
        self._asked_for.add(self)
        for task in app._tasks.values():  # noqa: SLF001 - `app.tasks` would finalize the app
            if isinstance(task, IdempotentTask):
                task.forget_defaults()
        app.steps["consumer"] |= {Reconnecting, BackgroundStep, Keeper, Sweeper}
        declare(app)
        if recommended:
            recommend(app)

    @classmethod
    def of(cls, app: Celery[Any]) -> Oncelery:
        """Find the extension of an app; one that was never made is made from the app's configuration."""
        once = getattr(app, "oncelery", None)
        if once is None:
            once = cls(app)
            cls._asked_for.discard(once)
        return once

    # What it stands on

    @made_once
    def settings(self) -> Settings:
        """The settings, read when they are first needed: the app may be configured after this was made."""
        settings = Settings.gather(self._given, self.app.conf.get)
        _refuse_misspelt(self.app.conf)
        return settings

    @made_once
    def ledger(self) -> Ledger:
        """The ledger of this app, with those who listen to it."""
        if not self.settings.store:
            raise ConfigurationError(
                "no store: write Oncelery(app, store='redis://…'), or set oncelery_store or ONCELERY_STORE"
            )
        ledger = Ledger(open_store(self.settings.store, namespace=self.settings.namespace))
        ledger.events.subscribe(log)
        ledger.events.subscribe(self.counting)
        if queue := self.settings.dead_letter_queue:
            ledger.events.subscribe(Mirror(self.app, ledger, queue))
        return ledger

    @made_once
    def counting(self) -> Counting:
        """What this process has decided, on its way to the ledger's counters."""
        return Counting(lambda counts: self.ledger.count(counts))  # noqa: PLW0108 - the ledger is made after it

    @made_once
    def broker(self) -> Broker:
        """The broker, for a process that serves others."""
        return Broker(self.app)

    @made_once
    def callbacks(self) -> Callbacks:
        """What tells others of the end of jobs."""
        return Callbacks(self)

    @made_once
    def reading(self) -> Reading:
        """What shows calls and results, without what is secret."""
        more = self.settings.redact
        hidden = Redaction((*SECRETS, *(more.replace(",", " ").split() if isinstance(more, str) else more)))
        return Reading(self.app, hidden, self.find_task)

    def find_task(self, name: str) -> Any:
        """Find a task of the app, also in a module that only its workers have imported so far; None: there is none."""
        return self.app.tasks.get(name) or self._all_tasks.get(name)

    @made_once
    def _all_tasks(self) -> Mapping[str, Any]:
        try:
            self.app.loader.import_default_modules()
        except Exception:  # whatever the app's own modules raise: what is asked is about one task of many
            _logger.exception("could not import the modules of the app's tasks")
        return self.app.tasks

    @made_once
    def heartbeat(self) -> Heartbeat:
        """What keeps the leases of this process alive."""
        return Heartbeat(self.ledger, renewed=self.board.renewed)

    @made_once
    def result_serializer(self) -> str:
        """How results are written."""
        serializer: str = self.app.conf.result_serializer
        return serializer

    @made_once
    def marks_redeliveries(self) -> bool:
        """Whether the broker marks what it delivers again; SQS, for one, does not."""
        with self.app.connection_for_read() as connection:
            return connection.transport.driver_type in MARKING

    @made_once
    def answers_its_callers(self) -> bool:
        """Whether a result goes to the process that made the call, as with `rpc://`, so that a job must know which."""
        return str(self.app.conf.result_backend or "").startswith("rpc")

    @property
    def namespace(self) -> str:
        """What keeps the keys of this app apart from those of others."""
        return self.settings.namespace

    @made_once
    def caller(self) -> str:
        """Who submits, in the audit."""
        return f"{self.app.main or 'app'}@{socket.gethostname()}"

    def policy(self, **options: Any) -> Policy:
        """Make a task's policy: its own options on top of the app's defaults."""
        return Policy.of(**{**self.settings.policy, **options})

    # Tasks

    @overload
    def task(self, function: Callable[..., Any], /, **options: Any) -> IdempotentTask: ...
    @overload
    def task(
        self,
        *,
        key: KeyChoice = ...,
        ignore: Paths = ...,
        scope: Paths = ...,
        retention: timedelta | float = ...,
        lease: timedelta | float = ...,
        history: timedelta | float = ...,
        on_duplicate: OnDuplicate | Literal["join", "reject", "trail", "replace"] = ...,
        retry_on: type[BaseException] | Sequence[type[BaseException]] = ...,
        bury_on: type[BaseException] | Sequence[type[BaseException]] = ...,
        max_attempts: int = ...,
        backoff: Backoff = ...,
        max_crashes: int = ...,
        on_takeover: Literal["rerun", "hold"] | Callable[..., Any] = ...,
        durability: Durability | Literal["fast", "safe"] = ...,
        notify: str = ...,
        **celery: Any,
    ) -> Callable[[Callable[..., Any]], IdempotentTask]: ...
    def task(self, *functions: Callable[..., Any], **options: Any) -> Any:
        """Declare a guarded task: Policy's options are ours, with the app's defaults; all others go to `app.task`."""
        ours = {name: options.pop(name) for name in Policy.names() & options.keys()}
        if (options.get("name") or "").startswith("celery."):
            raise ConfigurationError(
                f"task {options['name']!r}: names that begin with celery. are those of its own tasks"
            )
        base = options.setdefault("base", IdempotentTask)
        if not issubclass(base, IdempotentTask):
            # The app's own class, as it was given to `app.task` before: its way is gone around ours.
            options["base"] = type(
                base.__name__, (IdempotentTask, base), {"abstract": True, "__module__": base.__module__}
            )
        refuse_lookalikes(options, options["base"])
        declare: Any = self.app.task(once=ours, **options)
        return declare(functions[0]) if functions else declare

    def _send_task(self, name: str, *positional: Any, **options: Any) -> Any:
        """Send by name: through the task, if it is a guarded one that this process knows."""
        app = self.app
        tasks = app.tasks if app.autofinalize else app._tasks  # noqa: SLF001 - which have those that are known so far
        task = tasks.get(name)
        if options.get("task_type") is None and isinstance(task, IdempotentTask):
            options |= zip(_POSITIONAL, positional, strict=False)
            # It is the task that says what its results are.
            return task.apply_async(**{name: value for name, value in options.items() if name not in _ITS_OWN})
        gate = options.pop(GATE, None)
        if gate and len(positional) == 2:  # noqa: PLR2004 - args and kwargs, as Celery's tasks give them
            options = {**shown(app.amqp, *positional), **options}
        # Also where there is none: what is sent while another message is made has nothing to do with its gate.
        token = at_the_gate.set(gate)
        try:
            return self.send_unguarded(name, *positional, **options)
        finally:
            at_the_gate.reset(token)

    def send_unguarded(self, *args: Any, **options: Any) -> Any:
        """Publish as Celery does, past the ledger."""
        return self._celerys("send_task")(*args, **options)

    def _celerys(self, name: str) -> Any:
        """Return the app's method that ours replaces; looked up each time, as a test may patch its class."""
        if name in self._before:
            return self._before[name]
        found = getattr(self.app.__class__, name)
        return found.__get__(self.app) if hasattr(found, "__get__") else found

    def merely_knows(self, task: IdempotentTask) -> bool:
        """Whether another app declares the task, and this one has no store: Celery shares tasks among all apps."""
        function = function_of(task)
        if self in self._asked_for or function is None or self.settings.store:
            return False
        others = (other for other in self._asked_for if other.settings.store)
        return any(function_of(other.app.tasks.get(task.name)) is function for other in others)

    def _producer_or_acquire(self, producer: Any = None) -> Any:
        """Take a producer as Celery does, but only once the ledger has accepted the job that it is taken for."""
        bounded = producer is None and self.broker.is_bounded
        take: Any = self._celerys("producer_or_acquire")
        taking: Any = FallbackContext(None, self.broker.producer) if bounded else take(producer)
        # Before it is taken: others may be waiting for it.
        if gate := at_the_gate.get():
            gate.go_on()
        return taking

    # Operating

    @made_once
    def jobs(self) -> Jobs:
        """Jobs to look at and to cancel."""
        return Jobs(
            self.ledger,
            read=self.reading,
            terminate=self._terminate,
            tell=lambda job: tell_cancelled(self.app, job),
            key_of=key_of,
        )

    def _terminate(self, job: Job) -> None:
        self.broker.require()
        self.app.control.revoke(sent_as(self.app, job)[0], terminate=True)

    @made_once
    def dead_letters(self) -> DeadLetters:
        """Jobs that nobody runs any more, to look at, revive and discard."""
        return DeadLetters(self.ledger, publish=self._publish_revived, rewrite=self._rewrite)

    @made_once
    def duplicates(self) -> Duplicates:
        """Who was answered what, and how often."""
        return Duplicates(self.ledger)

    def _publish_revived(self, job: Job) -> None:
        headers = Message.unpack(self.app, job.body or b"").options.get("headers") or {}
        if notify := headers.get(NOTIFY):
            self.callbacks.expect(job.id, notify, again=True)
        publish_again(self, job)

    def _rewrite(self, job: Job, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> bytes | Submission:
        corrected = args is not None or kwargs is not None
        message = Message.unpack(self.app, job.body or b"")
        # Whoever corrects a call has seen it without its secrets.
        args = None if args is None else restored(args, message.args)
        kwargs = None if kwargs is None else restored(kwargs, message.kwargs)
        message = message.revived(args, kwargs)
        if corrected:
            shown = self.reading.reprs(message.task, message.args, message.kwargs)
            message = replace(message, options={**message.options, **shown})
        task = self.find_task(message.task)
        if task is None and corrected:
            raise RevivalError(f"this process does not know the task {message.task!r}: import its module, or let it be")
        if task is not None and task.typing:
            task.__header__(*message.args, **message.kwargs)
        if isinstance(task, IdempotentTask) and (corrected or job.scope):
            # Corrected or not, it stays what its tenant may ask for.
            found = task.identity.of(
                message.args, message.kwargs, namespace=self.namespace, task_id=job.id, scope=job.scope
            )
            # A digest tells of a key that the caller chose, which no arguments change.
            if corrected and not job.digest and found.key != job.key:
                return self._other_work(task, message, job)
        return message.pack(self.app)

    def _other_work(self, task: IdempotentTask, message: Message, job: Job) -> Submission:
        """Return the submission of a corrected call under its new key and a new id, with its other options."""
        options = {name: value for name, value in message.options.items() if name not in _OF_ONE_ID}
        call = Publication(
            task=task,
            args=message.args,
            kwargs=message.kwargs,
            task_id=uuid(),
            options=options,
            scope=job.scope,
            caller=job.caller,
            notify=(options.get("headers") or {}).get(NOTIFY, ""),
        )
        return call.prepared()[1]

    def doctor(self, *, ignore: Collection[str] = ()) -> tuple[Finding, ...]:
        """Look at app, broker, store and workers; tell what is wrong, why, and the line that mends it, errors first."""
        # Seldom wanted, and it knows modules that know this one.
        from oncelery.celery.facts import gather  # noqa: PLC0415
        from oncelery.operations.doctor import examine  # noqa: PLC0415

        return examine(gather(self), ignore=ignore)

    def sweep(self) -> Swept:
        """Publish what is lost, delete what is old; what the workers do by themselves."""
        return sweep(self)


def _refuse_misspelt(conf: Any) -> None:
    """Refuse what the app's configuration has under a name that begins like those of ours, and is none."""
    names = Settings.names()
    prefixes = {PREFIX, match_case(conf.prefix + PREFIX, conf.prefix)} if conf.prefix else {PREFIX}
    for prefix in prefixes:
        written = [name.removeprefix(prefix) for name in conf if name.startswith(prefix)]
        refuse_unknown(written, {match_case(name, prefix) for name in names}, what="setting", prefix=prefix)
