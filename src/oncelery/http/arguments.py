"""The arguments of a task as a JSON object: their schema, and how they are read."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any, NotRequired, get_type_hints

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError
from typing_extensions import TypedDict

from oncelery.codec import TAG, is_tagged
from oncelery.http.problems import INVALID_ARGUMENTS, ProblemError, in_words

_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


class Arguments:
    """What a task takes over HTTP: its parameters by name, each of the type that it is annotated with."""

    def __init__(self, call: Callable[..., object]) -> None:
        parameters = inspect.signature(call).parameters.values()
        hints = _hints(call)
        fields = {}
        # `def charge(order_id, /)` is not called by name; whoever posts names it all the same.
        self._placed = [
            each.name
            for each in parameters
            if each.kind is Parameter.POSITIONAL_ONLY and each.default is Parameter.empty
        ]
        for each in parameters:
            if each.kind in _NAMED or each.name in self._placed:
                kind = _known(hints.get(each.name, Any))
                fields[each.name] = kind if each.default is Parameter.empty else NotRequired[kind]
        takes_more = any(each.kind is Parameter.VAR_KEYWORD for each in parameters)
        make: Any = TypedDict  # of fields that are known only now
        shape = make("Arguments", fields)
        shape.__pydantic_config__ = ConfigDict(extra="allow" if takes_more else "forbid")
        self._adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(shape)

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema, whole in itself."""
        schema = self._adapter.json_schema()
        definitions = schema.pop("$defs", {})
        inlined: dict[str, Any] = _inlined(schema, definitions, ())
        return inlined | {"title": "Arguments"}

    def read(self, body: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Read a body as arguments by place and by name.

        They are plain values, and what JSON has no form for is of its annotated type.

        Raises:
            ProblemError: it is no JSON, or the task cannot be called like this.
        """
        try:
            # Strict, for 500 and "500" would else be two payloads with one meaning.
            read = self._adapter.validate_json(body, strict=True)
        except ValidationError as error:
            errors = error.errors(include_url=False, include_context=False, include_input=False)
            raise ProblemError(INVALID_ARGUMENTS, in_words(errors)) from None
        # Models as dictionaries: a message holds no classes of yours.
        plain: dict[str, Any] = self._adapter.dump_python(read)
        if is_tagged(plain):
            # The worker would get bytes, a Decimal or an error where an object was checked here.
            raise ProblemError(INVALID_ARGUMENTS, f"{TAG!r} cannot be a name in an argument: the broker's JSON uses it")
        return tuple(plain.pop(name) for name in self._placed), plain


def _hints(call: Callable[..., object]) -> Mapping[str, Any]:
    try:
        return get_type_hints(inspect.unwrap(call), include_extras=True)
    except Exception:  # noqa: BLE001 - an annotation may name what is only there for type checkers
        return {}


def _known(kind: Any) -> Any:  # noqa: ANN401 - an annotation
    """Answer the annotation, or Any where JSON can be no such thing."""
    try:
        TypeAdapter(kind).json_schema()
    except (PydanticSchemaGenerationError, PydanticUserError):
        return Any
    return kind


def _inlined(schema: Any, definitions: Mapping[str, Any], inside: tuple[str, ...]) -> Any:  # noqa: ANN401 - any JSON
    """Put definitions where they are referred to; one that holds itself may be anything there."""
    match schema:
        case {"$ref": str(reference), **others}:
            name = reference.rpartition("/")[2]
            if name in inside:
                return {}
            return {**_inlined(definitions[name], definitions, (*inside, name)), **others}
        case dict():
            return {name: _inlined(part, definitions, inside) for name, part in schema.items()}
        case list():
            return [_inlined(part, definitions, inside) for part in schema]
        case _:
            return schema
