"""RabbitMQServer: a private RabbitMQ for tests, with an Erlang port mapper of its own."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import amqp

from oncelery.embedded.process import (
    LOOPBACK,
    PATIENCE_SECONDS,
    ServerNotFoundError,
    ServerProcess,
    free_ports,
)
from oncelery.errors import OnceleryError
from oncelery.testing.servers.folder import fresh_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Where Debian keeps the script that starts the server as who we are; the one on PATH would become another account.
DEBIAN_SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")

#: In the words of rabbitmq.conf. Its log goes where all our servers' logs go.
RABBITMQ_OPTIONS = {"log.console": "true", "log.console.use_colors": "off", "log.file": "false"}

#: Erlang's own connections stay on loopback too; and a consumer's time-out is looked at every second, not every minute.
ERLANG_ARGUMENTS = "-kernel inet_dist_use_interface {127,0,0,1} -start_epmd false -rabbit channel_tick_interval 1000"

#: How long the server may take for one step of the greeting, while we wait for it to become ready.
GREETING_SECONDS = 2.0

#: What Erlang's port mapper is asked, in its protocol: the length of the question, and `n` for all names.
NAMES_REQUEST = b"\x00\x01n"


class RabbitMQServer(ServerProcess):
    """A private RabbitMQ: Debian's `rabbitmq-server`, run by whoever we are, on loopback alone."""

    def __init__(self, *, options: Mapping[str, str] | None = None) -> None:
        self.program = _find_rabbitmq()
        self.erl_call = _find("erl_call")
        self.options = RABBITMQ_OPTIONS | dict(options or {})
        self.node = f"oncelery-{secrets.token_hex(4)}@localhost"
        super().__init__(fresh_folder("rabbitmq"))
        self.mapper = PortMapper(self.folder / "epmd")

    @property
    def url(self) -> str:
        """Where clients connect: the virtual host `/`, as its administrator."""
        return self._url("/")

    def create_vhost(self) -> str:
        """Make a new, empty virtual host and give its URL; it takes about 20 ms."""
        name = secrets.token_hex(8)
        self.evaluate(
            f'ok = rabbit_vhost:add(<<"{name}">>, <<"test">>),'
            f' All = <<".*">>, Who = <<"guest">>,'
            f' ok = rabbit_auth_backend_internal:set_permissions(Who, <<"{name}">>, All, All, All, Who)'
        )
        return self._url(name)

    def evaluate(self, expressions: str) -> str:
        """Have the server evaluate Erlang expressions, with commas between them, and give the value of the last."""
        # A name of its own for each call, or two at once would be taken for one.
        answer = subprocess.run(  # noqa: S603 - Erlang's own program
            [self.erl_call, "-r", "-sname", self.node, "-e"],
            input=f"{expressions}.\n",
            env=os.environ | self._environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )
        if answer.returncode or not answer.stdout.startswith("{ok, "):
            raise OnceleryError(f"RabbitMQ says {answer.stdout or answer.stderr} to {expressions}")
        return answer.stdout.removeprefix("{ok, ").removesuffix("}")

    def stop(self) -> None:
        """End the server at once, and forget its data."""
        # In good order would take a second, for the sake of what is removed next.
        if self._is_ours:
            self.kill()
        super().stop()

    def _forget(self) -> None:
        self.mapper.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _url(self, vhost: str) -> str:
        return f"amqp://guest:guest@{LOOPBACK}:{self.port}/{vhost}"

    def _prepare(self) -> None:
        (self.folder / "rabbitmq.conf").write_text(
            "".join(f"{name} = {value}\n" for name, value in self.options.items())
        )
        (self.folder / "enabled_plugins").write_text("[].\n")
        cookie = self.folder / ".erlang.cookie"
        if not cookie.exists():
            cookie.touch(mode=0o600)
            cookie.write_text(secrets.token_hex(16))
        self.mapper.start()

    def _command(self) -> list[str]:
        return [self.program]

    def _environment(self) -> dict[str, str]:
        return {
            "HOME": str(self.folder),
            "ERL_EPMD_PORT": str(self.mapper.port),
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_NODE_IP_ADDRESS": LOOPBACK,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(next(free_ports())),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": ERLANG_ARGUMENTS,
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "ERL_CRASH_DUMP_SECONDS": "0",
            # The machine's own settings are for the machine's own server.
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "none"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.folder / "none"),
            # Then the script becomes the server, where else it would start a child that outlives a killed script.
            "RUNNING_UNDER_SYSTEMD": "true",
        }

    def _answers(self) -> bool:
        try:
            with amqp.Connection(
                f"{LOOPBACK}:{self.port}", connect_timeout=GREETING_SECONDS, read_timeout=GREETING_SECONDS
            ) as connection:
                properties = connection.server_properties  # type: ignore[attr-defined] # the stubs forgot it
        except (OSError, amqp.AMQPError):
            return False
        # The node's name, because another server may have come first on this port.
        return str(properties["cluster_name"]).startswith(self.node.partition("@")[0])


class PortMapper(ServerProcess):
    """Erlang's epmd, for one server: one that all share would be left running when they end."""

    def __init__(self, folder: Path) -> None:
        self.program = _find("epmd")
        super().__init__(folder)

    @property
    def url(self) -> str:
        """Where Erlang's programs ask for each other."""
        return f"epmd://{LOOPBACK}:{self.port}"

    def _command(self) -> list[str]:
        return [self.program, "-port", str(self.port), "-address", LOOPBACK]

    def _answers(self) -> bool:
        try:
            with socket.create_connection((LOOPBACK, self.port), GREETING_SECONDS) as connection:
                connection.sendall(NAMES_REQUEST)
                return connection.recv(4) == self.port.to_bytes(4)
        except OSError:
            return False


def _find_rabbitmq() -> str:
    return str(DEBIAN_SCRIPT) if DEBIAN_SCRIPT.exists() else _find("rabbitmq-server")


def _find(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise ServerNotFoundError(f"no {program} on PATH; on Debian: apt-get install rabbitmq-server")
    return found
