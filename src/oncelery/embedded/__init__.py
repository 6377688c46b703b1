"""A private Valkey from a wheel, or from PATH: broker and ledger with nothing installed or running beforehand.

with EmbeddedServer("var/oncelery") as server:
    app = Celery("shop", broker=server.url)

process      a server process on loopback that does not outlive this one (tether sees to that); server: Valkey as one
stack        all of `oncelery up`: server, service and worker; readiness tells when they can be used
playground   its demonstration, an app like yours; buttons has its page
proof        the self-test of `oncelery prove`
"""

from oncelery.embedded.process import FolderInUseError, PortTakenError, ServerNotFoundError, ServerStartError
from oncelery.embedded.server import EmbeddedServer

__all__ = ["EmbeddedServer", "FolderInUseError", "PortTakenError", "ServerNotFoundError", "ServerStartError"]
