"""The message of a job, as the ledger keeps it: enough to publish the job again, from any process of the app."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from hashlib import blake2b
from numbers import Real
from typing import Any

from celery import Celery
from celery.app.amqp import AMQP
from kombu import Exchange, Queue
from kombu.exceptions import EncodeError
from kombu.serialization import dumps, loads, prepare_accept_content, registry
from kombu.utils.encoding import str_to_bytes
from msgspec import Struct

from oncelery.fingerprint import Fingerprint

#: The headers that tell the worker of a job: its key, and some that few messages have.
KEY = "oncelery_key"
DIGEST = "oncelery_digest"
ALIAS = "oncelery_alias"
SCOPE = "oncelery_scope"
NOTIFY = "oncelery_notify"
#: That this message may be one too many; and how often it was put aside.
RESENT = "oncelery_resent"
PARKED = "oncelery_parked"
#: That it is another call under the id of a job that was there: whoever made it waits for what follows.
ASKED = "oncelery_asked"
#: What it follows in a canvas; and the id of its job, where its task id is taken. Empty: the worker has to find out.
FOLLOWS = "oncelery_follows"
JOB = "oncelery_job"
HEADERS = frozenset({KEY, DIGEST, ALIAS, SCOPE, NOTIFY, RESENT, PARKED, ASKED, FOLLOWS, JOB})

#: The content type of most that is kept.
JSON = "application/json"

#: A call that is longer than this, in characters, is left to Celery to show, which cuts it.
SHOWN_LENGTH = 500

#: Options of one publication that a later one must not repeat: when, over which connection, how, for whom.
_PASSING = frozenset(
    {
        *("countdown", "eta"),
        *("producer", "publisher", "connection", "router", "declare", "event_dispatcher"),
        *("retry", "retry_policy", "timeout", "confirm_timeout"),
        *("result_cls", "task_type", "add_to_parent"),
    }
)

#: Options that may be given as an object, and are kept by its name.
_NAMED = frozenset({"queue", "exchange"})

#: Options that tell of the life a message has had.
_SPENT = frozenset({"expires", "retries"})


class Message(Struct, frozen=True):
    """A call of a task, with the options that go with it."""

    task: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any] = {}

    def pack(self, app: Celery, serializer: str = "") -> bytes:
        """Write it with the serialiser of the call, or that of its task: so what can be sent can be kept."""
        options = {name: value for name, value in self.options.items() if name not in _PASSING and value is not None}
        for name in _NAMED & options.keys():
            if isinstance(value := options[name], Queue | Exchange):
                options[name] = value.name
        if (expires := options.get("expires")) is not None:
            # As an instant: a job that is published again must not live longer for it. As text: not all serialisers
            # know instants.
            until = app.now() + timedelta(seconds=float(expires)) if isinstance(expires, Real) else expires
            options["expires"] = until.isoformat() if isinstance(until, datetime) else until
        serializer = options.get("serializer") or serializer or app.conf.task_serializer
        return write([self.task, list(self.args), dict(self.kwargs), options], serializer)

    def revived(self, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> Message:
        """Give the message a new life, perhaps with other arguments: it has neither expired nor been retried."""
        return Message(
            self.task,
            self.args if args is None else tuple(args),
            self.kwargs if kwargs is None else kwargs,
            {name: value for name, value in self.options.items() if name not in _SPENT},
        )

    @classmethod
    def unpack(cls, app: Celery, body: bytes) -> Message:
        """Read what `pack` wrote, if the app accepts content of that type."""
        task, args, kwargs, options = read(body, accept=app.conf.accept_content)
        return cls(task, tuple(args), kwargs, options)


def follows_of(root_id: str | None, parent_id: str | None, group_id: str | None) -> str:
    """Name what a task id is sent after; the same when the same call is published again."""
    # The group of several callbacks has another id each time, the body of a chord has no parent.
    told = "/".join(filter(None, (root_id, parent_id or group_id)))
    return blake2b(told.encode(), digest_size=8).hexdigest() if told else ""


def job_id_of(task: Any, task_id: str, replaced: int | None, follows: str = "") -> str:
    """Name the job of a message: its task id, except for a task that replaced another one under that id.

    With what it follows: the job of a call whose task id another call has.
    """
    if not replaced and not follows:
        return task_id
    name = f"{task_id}/{task.name}/{replaced}"
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{name}/{follows}" if follows else name))


def job_id_in(headers: Mapping[str, Any], task: Any) -> str:
    """Read the id of a message's job from its headers."""
    return headers.get(JOB) or job_id_of(task, headers["id"], headers.get("replaced_task_nesting"))


def headers_of(found: Fingerprint, digest: str, notify: str, given: Mapping[str, Any], **more: str) -> dict[str, Any]:
    """Return the headers of a call's message: those that were given, and ours."""
    told = {KEY: found.key, ALIAS: found.alias, DIGEST: digest, SCOPE: found.scope, NOTIFY: notify, **more}
    # Those that were given may be those of another message, which the caller passes on.
    kept = {name: value for name, value in given.items() if name not in HEADERS}
    return kept | {name: value for name, value in told.items() if value}


def write(value: object, serializer: str) -> bytes:
    """Write a value with one of Celery's serialisers; JSON as it is, any other behind its type. Never empty."""
    content_type, encoding, text = dumps(value, serializer)
    written: bytes = str_to_bytes(text)
    # No JSON is empty or begins with NUL; an app's own serialiser may say that it writes JSON, and not do so.
    if (content_type, encoding) == (JSON, "utf-8") and written[:1] not in {b"", b"\0"}:
        return written
    return f"\0{content_type}\n{encoding}\n".encode() + written


def writable(app: Celery, first: str, value: object) -> str:
    """Name a serialiser for what was read from a message: the first, if it can, else another that the app accepts."""
    names: Iterator[str] = (registry.type_to_name.get(kind, kind) for kind in app.conf.accept_content)
    for serializer in (first, *names):
        with suppress(EncodeError):
            dumps(value, serializer)
            return serializer
    return first


def read(written: bytes, *, accept: Iterable[str]) -> Any:
    """Read what `write` wrote, if content of its type is accepted."""
    content_type, encoding, text = typed(written)
    return loads(text, content_type, encoding, accept=prepare_accept_content(accept))


def read_written(app: Celery, result: bytes) -> Any:
    """Read what the run of a task has written as its result."""
    return read(result, accept=app.conf.result_accept_content or app.conf.accept_content)


def readable_formats(app: Celery) -> frozenset[str]:
    """Name the formats, as bodies name them, that this process can read and the app accepts."""
    accepted = {registry.name_to_type.get(name, name) for name in app.conf.accept_content}
    return frozenset("" if kind == JSON else kind for kind in accepted if kind in registry.type_to_name)


def typed(written: bytes) -> tuple[str, str, bytes]:
    """Part what `write` wrote into content type, encoding and content, which is not looked at."""
    if not written.startswith(b"\0"):
        return JSON, "utf-8", written
    content_type, encoding, content = written[1:].split(b"\n", 2)
    return content_type.decode(), encoding.decode(), content


def shown(amqp: AMQP, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, str]:
    """Write a call of plain values as Celery shows it in logs; its own way is ready for all, and takes far longer."""
    if type(amqp) is not AMQP or min(amqp.argsrepr_maxsize, amqp.kwargsrepr_maxsize) < SHOWN_LENGTH:
        # The app has its own mind about it.
        return {}
    try:
        values = ", ".join([_SHOW[type(value)](value) for value in args])
        names = ", ".join([f"{_quoted(name)}: {_SHOW[type(value)](value)}" for name, value in kwargs.items()])
    except KeyError:
        return {}
    if len(values) + len(names) > SHOWN_LENGTH:
        return {}
    return {"argsrepr": f"({values},)" if len(args) == 1 else f"({values})", "kwargsrepr": f"{{{names}}}"}


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "\\'") + "'"


#: How Celery shows what is plain.
_SHOW: dict[type, Callable[[Any], str]] = {str: _quoted, int: str, float: str, bool: str, type(None): str}
