"""Celery's own settings as guarded tasks like them best: `Oncelery(app, recommended=True)`."""

from __future__ import annotations

from datetime import timedelta
from types import MappingProxyType
from typing import Any

from celery import Celery

#: A worker waits for its broker through a fail-over, holds no message that an idle one could run, and reads JSON only.
RECOMMENDED = MappingProxyType(
    {
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_pool_limit": 10,
        "worker_prefetch_multiplier": 1,
        "accept_content": ["json"],
        "task_serializer": "json",
        "result_serializer": "json",
    }
)

#: When Redis delivers a message once more, for its age alone. The ledger finds lost jobs in seconds, so this need only
#: be longer than any task and any delay: each time it passes costs one needless duplicate.
VISIBILITY_TIMEOUT = timedelta(hours=12)

#: How long a broker that says nothing is listened to. Workers wait for messages in another way: an idle queue is not
#: taken for a silent broker.
SILENCE = timedelta(seconds=30)

_REDIS = MappingProxyType(
    {
        "visibility_timeout": int(VISIBILITY_TIMEOUT.total_seconds()),
        "socket_timeout": SILENCE.total_seconds(),
        "socket_connect_timeout": 10.0,
        "socket_keepalive": True,
        "health_check_interval": 25,
        "retry_on_timeout": True,
    }
)
_AMQP = MappingProxyType({"read_timeout": SILENCE.total_seconds(), "write_timeout": SILENCE.total_seconds()})

#: Options of the way to the broker, by the scheme of its URL.
TRANSPORT_OPTIONS = MappingProxyType(
    dict.fromkeys(("redis", "rediss", "valkey", "valkeys", "sentinel"), _REDIS)
    | dict.fromkeys(("amqp", "amqps", "pyamqp"), _AMQP)
)


def recommend(app: Celery) -> None:
    """Apply the recommended settings where the user says nothing, as soon as that is known."""
    if app.configured:
        _apply(app)
    else:
        app.on_after_configure.connect(_apply, weak=False)


def _apply(sender: Celery, **_: Any) -> None:
    conf = sender.conf
    conf.update({name: value for name, value in RECOMMENDED.items() if not conf.value_set_for(name)})
    urls: str | list[str] = conf.broker_url or ""
    scheme = (urls if isinstance(urls, str) else urls[0]).partition(":")[0]
    if options := TRANSPORT_OPTIONS.get(scheme):
        conf.broker_transport_options = {**options, **(conf.broker_transport_options or {})}
