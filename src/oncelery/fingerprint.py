"""A call and its key: what makes two calls of a task the same work.

`Identity` is made once per task, of its signature and its options `key`, `ignore` and `scope`, and then turns each call
into a `Fingerprint`. Publisher and worker come to the same one, whatever serialiser is between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from hashlib import sha256
from inspect import BoundArguments, Parameter, signature
from typing import Any, Final, Literal, TypeAlias
from uuid import UUID

from msgspec import Struct

from oncelery.canonical import canonical_json, fields_of, key_text
from oncelery.errors import ConfigurationError, FingerprintError, ScopeError


class _Sentinel(Enum):
    TASK_ID = "task id"


#: `key=TASK_ID`: only redeliveries of one message are the same work, equal arguments are not.
TASK_ID: Final = _Sentinel.TASK_ID

#: Names of arguments, or dotted paths into them: one, or several.
Paths: TypeAlias = str | Iterable[str]

#: What the option `key` may be.
KeyChoice: TypeAlias = Paths | Callable[..., object] | Literal[_Sentinel.TASK_ID] | None

#: Part of every key. It changes with the recipe, so that keys of two recipes never meet.
VERSION: Final = "1"


def fingerprint(task_name: str, payload: object) -> str:
    """Return the key of a task called with these arguments: 64 hex digits, the same in every process and release.

    It is the key of a task without namespace and scope of which all arguments count, when `payload` maps the names of
    the arguments to their values. See `canonical_json` for which values are one.

    Raises:
        FingerprintError: an argument cannot be part of a key; the message names it by its path.
    """
    return _key(task_name=task_name, kind="arguments", identity=_digest(task_name, payload))


class Fingerprint(Struct, frozen=True, kw_only=True):
    """What a call is known by."""

    #: The identity of the work: 64 hex digits.
    key: str
    #: Of the arguments that count: 64 hex digits. One name with two digests is one name for two works.
    digest: str
    #: The tenant, to be read; empty for a task without `scope`. Several values are joined by `/`; a `/` or `%` inside a
    #: value is percent-encoded, so that no tenant's name can be taken for another's.
    scope: str
    #: The identity of the request, where the caller gave one and the task's `key` names the work: 64 hex digits.
    alias: str = ""


class Identity:
    """What makes two calls of one task the same work.

    Args:
        task_name: The task's name; part of every key.
        call: The function that arguments are bound to: `f(1)` and `f(a=1)` are one call.
        key: What counts: an argument's name, a dotted path into one, several of these, or a callable that is called
            like the task, with the defaults filled in, and returns any value. None: all arguments. `TASK_ID`: none.
        ignore: Names and paths that do not count. A path through a list is left out of each of its items.
        scope: Names and paths of the tenant; part of every key, whatever `key` says.

    Raises:
        ConfigurationError: an option names what the task does not take, or leaves nothing that counts.
    """

    __slots__ = ("_ignore", "_key", "_scope", "_signature", "task_name")

    def __init__(
        self,
        task_name: str,
        call: Callable[..., object],
        *,
        key: KeyChoice = None,
        ignore: Paths = (),
        scope: Paths = (),
    ) -> None:
        self.task_name = task_name
        self._signature = _TaskSignature(task_name, call)
        self._key = key if key is None or key is TASK_ID or callable(key) else self._signature.paths("key", key)
        self._ignore = self._signature.paths("ignore", ignore)
        self._scope = self._signature.paths("scope", scope)
        self._check_that_something_counts()

    def of(
        self,
        args: Sequence[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        namespace: str = "",
        task_id: str | None = None,
        idempotency_key: str | None = None,
        apart: str = "",
        scope: str = "",
        unbound: bool = False,
    ) -> Fingerprint:
        """Return what a call is known by: the work by what `key` chooses of the call, the request by its alias.

        A task without `key` has no other name for its work than the caller's `idempotency_key`, if there is one.

        Args:
            args: Of the call, by place.
            kwargs: Of the call, by name.
            namespace: Keeps the keys of one app apart from those of others.
            task_id: Of the message; the key, if that is `TASK_ID`.
            idempotency_key: What the caller calls this request: its alias, or the key of a task without `key`.
            apart: A key in the place of the one that `key` chooses, for work that only looks the same.
            scope: For whom the call is made, as whoever lets callers in knows it: the tenant of a task whose own
                `scope` names none, and who the tenant must be of one that names some.
            unbound: The task cannot be called like this: all that was given counts, whatever `key` and `scope` say.

        Raises:
            TypeError: the task cannot be called like this.
            FingerprintError: an argument cannot be part of a key, a path leads nowhere, or the key is empty.
            ScopeError: the arguments name another tenant.
        """
        args, kwargs = args or (), kwargs or {}
        arguments = {**kwargs, "*": list(args)} if unbound else self._signature.bind(args, kwargs)
        own = "" if unbound else self._scope_of(arguments)
        if own and scope and own != scope:
            raise ScopeError(f"task {self.task_name!r}: its arguments name {own!r}, but the caller is {scope!r}.")
        scope = own or scope
        given = apart or (idempotency_key if self._key is None else None)
        if given is not None:
            kind, identity = "given", self._given("idempotency_key", given)
            digest = self._payload_digest(arguments, args, kwargs)
        elif self._key is TASK_ID:
            # Nothing of the arguments counts: nothing in them can be refused, and a retry may change them.
            kind, identity, digest = "task", self._given("task_id", task_id), _NOTHING
        else:
            counted = arguments if unbound else self._not_empty(self._counted(arguments, args, kwargs))
            digest = _digest(self.task_name, counted)
            kind, identity = "arguments", digest
        key = _key(task_name=self.task_name, kind=kind, identity=identity, namespace=namespace, scope=scope)
        if idempotency_key is None or self._key is None:
            return Fingerprint(key=key, digest=digest, scope=scope)
        request = self._given("idempotency_key", idempotency_key)
        alias = _key(task_name=self.task_name, kind="alias", identity=request, namespace=namespace, scope=scope)
        digest = self._payload_digest(arguments, args, kwargs)
        return Fingerprint(key=key, digest=digest, scope=scope, alias=alias)

    def fits(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether the task can be called like this."""
        try:
            self._signature.bind(args, kwargs)
        except TypeError:
            return False
        return True

    def _payload_digest(self, arguments: dict[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return what two calls under one given name are compared by: all that is not to be ignored."""
        try:
            return _digest(self.task_name, self._heeded(arguments))
        except FingerprintError:
            if self._key is None:
                raise
            # What `key=` leaves out may be anything.
            return _digest(self.task_name, self._counted(arguments, args, kwargs))

    def _given(self, name: str, value: object) -> str:
        if isinstance(value, str) and value:
            return value
        raise FingerprintError(f"task {self.task_name!r}: {name} must be a text that is not empty, not {value!r}.")

    def _counted(self, arguments: dict[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return what counts of a call, each part under the name that it is chosen by."""
        if callable(self._key):
            call = self._signature.call(args, kwargs)
            return {"key()": self._key(*call.args, **call.kwargs)}
        heeded = self._heeded(arguments)
        if isinstance(self._key, tuple):
            return {".".join(path): self._at("key", path, heeded) for path in self._key}
        return heeded

    def _heeded(self, arguments: dict[str, Any]) -> dict[str, Any]:
        for path in self._ignore:
            arguments = _without(arguments, path)
        return arguments

    def _not_empty(self, counted: dict[str, Any]) -> dict[str, Any]:
        # A task that takes no arguments is one work; but a choice that comes out empty would make one work of many.
        if self._key is not None and all(map(_is_empty, counted.values())):
            what = f"{', '.join(map(repr, counted))} is empty, but `key=` tells calls apart by it"
            raise FingerprintError(f"task {self.task_name!r}: {what}. Choose what is never empty.")
        return counted

    def _scope_of(self, arguments: dict[str, Any]) -> str:
        names = []
        for path in self._scope:
            value = self._at("scope", path, arguments)
            name = _name_of(value) if isinstance(value, _SCALARS) else None
            if not name:
                what = "empty" if _is_empty(value) else f"a {type(value).__name__} without a name"
                text = f"{'.'.join(path)!r} is {what}, but `scope=` needs a text, a number or an id"
                raise FingerprintError(f"task {self.task_name!r}: {text}.")
            names.append(name.replace("%", "%25").replace("/", "%2F"))
        return "/".join(names)

    def _at(self, option: str, path: tuple[str, ...], arguments: dict[str, Any]) -> object:
        found: object = arguments
        for depth, step in enumerate(path):
            try:
                found = _step(found, step)
            except LookupError as missing:
                place = f"argument {'.'.join(path[:depth])!r}" if depth else "the call"
                text = f"task {self.task_name!r}: `{option}=` names {'.'.join(path)!r}, but {place} {missing.args[0]}."
                raise FingerprintError(text) from None
        return found

    def _check_that_something_counts(self) -> None:
        if callable(self._key) and self._ignore:
            raise self._signature.wrong("`ignore=` has no effect on a callable `key=`: leave it out there")
        if self._key == ():
            raise self._signature.wrong(
                "`key=` names nothing: leave it out if all arguments count; "
                "if none does, and all calls are the same work, write key=lambda *args, **kwargs: 'one'"
            )
        if self._signature.names and self._signature.names <= {path[0] for path in self._ignore if len(path) == 1}:
            raise self._signature.wrong("`ignore=` names every argument, so that all calls would be one")
        chosen = self._key if isinstance(self._key, tuple) else ()
        both = [path for path in chosen for other in self._ignore if path[: len(other)] == other]
        if both:
            raise self._signature.wrong(f"`key=` and `ignore=` both name {'.'.join(both[0])!r}")


class _TaskSignature:
    """How a task may be called, read once."""

    __slots__ = ("_defaults", "_positional", "_rest", "_simple", "_takes_more", "_task_name", "_whole", "names")

    def __init__(self, task_name: str, call: Callable[..., object]) -> None:
        self._task_name = task_name
        self._whole = signature(call)
        parameters = self._whole.parameters.values()
        kinds = {each.name: each.kind for each in parameters}
        self._positional = tuple(name for name, kind in kinds.items() if kind is Parameter.POSITIONAL_OR_KEYWORD)
        self._defaults = {each.name: each.default for each in parameters if each.default is not Parameter.empty}
        self._rest = next((name for name, kind in kinds.items() if kind is Parameter.VAR_POSITIONAL), None)
        self._takes_more = next((name for name, kind in kinds.items() if kind is Parameter.VAR_KEYWORD), None)
        #: Whether each parameter may be given by name, and nothing else may: then binding needs no `inspect`.
        self._simple = {Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY}.issuperset(kinds.values())
        #: What the parameters are called in a bound call.
        self.names = frozenset(f"*{name}" if name == self._rest else name for name in kinds)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return each argument under its name, defaults filled in; those of `**kwargs` beside the others.

        Raises:
            TypeError: Python would not let the task be called like this.
        """
        if self._simple and len(args) <= len(self._positional):
            arguments = {**self._defaults, **dict(zip(self._positional, args, strict=False)), **kwargs}
            if arguments.keys() == self.names and kwargs.keys().isdisjoint(self._positional[: len(args)]):
                return arguments
        arguments = dict(self.call(args, kwargs).arguments)
        if self._rest and (rest := arguments.pop(self._rest)):
            arguments[f"*{self._rest}"] = rest
        more = arguments.pop(self._takes_more) if self._takes_more else {}
        # One name may be given twice, to a positional-only parameter and to `**kwargs`: the latter then stays apart.
        apart = {name: more[name] for name in more if name in arguments or name.startswith("*")}
        if apart:
            arguments[f"**{self._takes_more}"] = apart
        return {**{name: more[name] for name in more if name not in apart}, **arguments}

    def call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> BoundArguments:
        """Return the call as Python sees it, defaults filled in; TypeError where Python would raise one."""
        try:
            bound = self._whole.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._task_name}(): {error}") from None
        bound.apply_defaults()
        return bound

    def paths(self, option: str, given: Paths) -> tuple[tuple[str, ...], ...]:
        """Read an option that names arguments; ConfigurationError when the task does not take such ones."""
        texts = (given,) if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)
        return tuple(self._path(option, text) for text in texts)

    def _path(self, option: str, text: object) -> tuple[str, ...]:
        first, *others = text.split(".") if isinstance(text, str) else [""]
        path = (f"*{first}" if first == self._rest else first, *others)
        if not all(path):
            raise self.wrong(f"`{option}=` takes names of arguments and dotted paths into them, not {text!r}")
        unknown = path[0] not in self.names and not self._takes_more
        if unknown or first == self._takes_more:
            taken = ", ".join(name for name in self._whole.parameters if name != self._takes_more)
            raise self.wrong(f"`{option}=` names {first!r}, which is not among its arguments: {taken or 'it has none'}")
        return path

    def wrong(self, what: str) -> ConfigurationError:
        """Return the error for an option of this task."""
        return ConfigurationError(f"task {self._task_name!r}: {what}.")


def _step(found: object, step: str) -> object:
    """Go one step down a path; LookupError says why that is not possible."""
    if isinstance(found, dict | Mapping):  # dict first: asking an abstract class is slow
        if step in found:
            return found[step]
        # Behind a JSON serialiser every key is text, and a path must lead to the same part on both sides.
        for key in found:
            if _name_of(key) == step:
                return found[key]
        raise LookupError(f"has no {step!r}, only: {', '.join(sorted(map(str, found))[:_SHOWN]) or 'nothing'}")
    if isinstance(found, list | tuple) and step.isdecimal():
        if int(step) < len(found):
            return found[int(step)]
        raise LookupError(f"has {len(found)} items, so no {step}")
    try:
        return getattr(found, step)
    except AttributeError:
        raise LookupError(f"is a {type(found).__name__} without {step!r}") from None


def _without(value: Any, path: tuple[str, ...]) -> Any:  # noqa: ANN401 - truly any
    """Return a value without what a path leads to; the value itself when it leads nowhere."""
    if isinstance(value, list | tuple):
        return [_without(item, path) for item in value]
    parts = fields_of(value)
    if parts is None:
        return value
    step, *further = path
    hit = next((key for key in parts if _name_of(key) == step), _NOWHERE)
    if hit is _NOWHERE:
        return value
    kept = {key: item for key, item in parts.items() if key != hit}
    return {**kept, hit: _without(parts[hit], tuple(further))} if further else kept


def _name_of(key: object) -> str | None:
    """Return the text of a key or a tenant, None when it has none."""
    try:
        return key_text(key)
    except FingerprintError:
        return None


def _is_empty(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_empty, value))
    return value is None or (isinstance(value, str | bytes | dict | set | frozenset) and not value)


def _digest(task_name: str, counted: object) -> str:
    try:
        return sha256(canonical_json(counted)).hexdigest()
    except FingerprintError as error:
        raise FingerprintError(f"task {task_name!r}: {error}") from None


def _key(*, task_name: str, kind: str, identity: str, namespace: str = "", scope: str = "") -> str:
    # Each part stands behind its length: ("a:b", "c") and ("a", "b:c") are two keys.
    parts = (
        f"{len(VERSION)}:{VERSION},{len(namespace)}:{namespace},{len(task_name)}:{task_name},"
        f"{len(scope)}:{scope},{len(kind)}:{kind},{len(identity)}:{identity},"
    )
    try:
        return sha256(parts.encode()).hexdigest()
    except UnicodeEncodeError:
        raise FingerprintError(f"task {task_name!r}: its key has a lone surrogate, which UTF-8 cannot carry.") from None


#: The digest of a call of which nothing counts.
_NOTHING: Final = sha256(b"").hexdigest()

#: Is no key of any mapping.
_NOWHERE: Final = object()

#: What a tenant may be known by.
_SCALARS: Final = (str, int, UUID, Enum)

#: How many names an error lists.
_SHOWN: Final = 10
