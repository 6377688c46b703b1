"""Tasks to call, and the trip of a call through the broker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kombu.serialization import dumps, loads


def charge(order_id: str, amount: int = 500, *, currency: str = "EUR") -> None: ...


def relay(first: object, /, *rest: object, flag: bool = False, **more: object) -> None: ...


def place(order: object, request_id: str = "") -> None: ...


@dataclass
class Order:
    id: int
    customer: object = None
    lines: list[object] = field(default_factory=list)


def sent(args: tuple[Any, ...], kwargs: dict[str, Any], serializer: str) -> tuple[Any, Any]:
    content_type, encoding, body = dumps((args, kwargs, {}), serializer)
    args, kwargs, _ = loads(body, content_type, encoding, accept={content_type})
    return args, kwargs
