"""A server program as a private child process: its folder, port, readiness, signals and end. No protocol here."""

from __future__ import annotations

import atexit
import fcntl
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from oncelery.embedded import tether
from oncelery.errors import ConfigurationError, OnceleryError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType
    from typing import TextIO

#: The only address a private server listens on.
LOOPBACK = "127.0.0.1"

#: Free ports are taken from here, below the range from which Linux gives clients theirs (32768 and up): a client that
#: reconnects to a killed server could be given the server's own port, connect to itself, and keep the port for ever.
#: A node of a Redis cluster also takes the port that is 10,000 higher, so that one must not be a client's either.
FREE_PORTS = range(10_000, 20_000)

#: How many free ports are tried, should other programs take them between our look and the server's.
PORT_TRIES = 5

#: How long a server may take to answer its first query, and to end when asked to.
PATIENCE_SECONDS = 30.0

#: How long a folder's last server may take to let go of it: a killed one can leave a child that is writing a file.
FOLDER_PATIENCE_SECONDS = 1.0

#: How often a thing that sends no signal is looked at again.
POLL_SECONDS = 0.01

#: How much of a server's log an error quotes.
LOG_TAIL_CHARACTERS = 1_500


class ServerNotFoundError(ConfigurationError):
    """There is no server program for this platform. Install one, or put one on PATH."""


class PortTakenError(ConfigurationError):
    """Another program listens on the port. Choose another port, or 0 for any free one."""


class FolderInUseError(ConfigurationError):
    """Another live server keeps its data in the folder. Stop that one, or choose another folder."""


class ServerStartError(OnceleryError):
    """A private server did not become ready; the message ends with its log."""


class ServerProcess(ABC):
    """A server on loopback that is ready when `start()` returns, and that does not outlive this process."""

    #: Ends the server in good order, whatever its clients do.
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    #: The account the server runs under; empty for our own.
    user: str = ""

    def __init__(self, folder: Path | str, *, port: int = 0) -> None:
        self.folder = Path(folder).absolute()
        self.port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()

    @property
    def pid(self) -> int:
        """The id of the server's process."""
        if self._process is None:
            raise OnceleryError(f"the server in {self.folder} has not been started")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process is there; a paused one is, and does not answer."""
        return self._process is not None and self._process.poll() is None

    @property
    def log_file(self) -> Path:
        """What the server says of itself."""
        return self.folder / "server.log"

    def start(self) -> Self:
        """Start the server and wait until it answers; on the port it had before, if it ran before."""
        if self.is_running:
            return self
        self._owner = os.getpid()
        self._make_folder()
        # Before the launch, for the case that we are interrupted while we wait.
        atexit.register(self.stop)
        with self._locked_folder() as lock:
            self._prepare()
            self._launch(lock)
        return self

    def stop(self) -> None:
        """End the server in good order, also a paused one; its data stays, unless it is a server for tests."""
        atexit.unregister(self.stop)
        self._halt()
        if self._is_ours:
            self._forget()

    def restart(self) -> None:
        """Start again on the same port and data; a server that still runs is stopped first."""
        self._halt()
        self.start()

    def kill(self) -> None:
        """End the server as a power cut would, and return when it is gone."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(PATIENCE_SECONDS)

    def pause(self) -> None:
        """Freeze the server: it keeps its connections and answers nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused server go on."""
        self._signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @abstractmethod
    def _command(self) -> list[str]:
        """The program and its arguments, for the present folder and port."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether *this* server, not another on its port, answers a query."""

    def _prepare(self) -> None:  # noqa: B027 - most programs need nothing
        """Make what the program needs in the folder before it can start."""

    def _environment(self) -> dict[str, str]:
        """Give what the program needs in its environment beside what is there."""
        return {}

    def _forget(self) -> None:  # noqa: B027 - most servers leave their data
        """Remove what goes with the server."""

    def _signal(self, number: signal.Signals) -> None:
        """Signal the server, if it is still there."""
        if self._process is not None:
            self._process.send_signal(number)

    @property
    def _is_ours(self) -> bool:
        # A forked child has a copy of this object, and must not stop its parent's server when it exits.
        return os.getpid() == self._owner

    def _halt(self) -> None:
        if self._process is None or not self._is_ours:
            return
        self._signal(self.stop_signal)
        self.resume()
        try:
            self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.log_file.touch()
        except OSError as error:
            raise ConfigurationError(
                f"cannot keep data in {self.folder}: {error.strerror}; choose a folder that you may write to"
            ) from error

    @contextmanager
    def _locked_folder(self) -> Iterator[TextIO]:
        """Hold the folder's lock; the server inherits it, so that it is held exactly as long as the server lives."""
        with (self.folder / "server.lock").open("a+") as lock:
            if not eventually(lambda: _try_lock(lock), FOLDER_PATIENCE_SECONDS):
                lock.seek(0)
                raise FolderInUseError(
                    f"{self.folder} is in use by a live server ({lock.read().strip()}); stop it, or choose another"
                )
            yield lock

    def _launch(self, lock: TextIO) -> None:
        for port in [self.port] if self.port else free_ports():
            log_starts_at = self.log_file.stat().st_size
            self._process = self._spawn(port, lock)
            if eventually(lambda: not self.is_running or self._answers(), PATIENCE_SECONDS) and self.is_running:
                lock.truncate(0)
                lock.write(f"pid {self.pid}, port {port}\n")
                return
            self.kill()
            with self.log_file.open(errors="replace") as log:
                log.seek(log_starts_at)
                said = log.read()
            if "address already in use" not in said.lower():
                raise ServerStartError(
                    f"{self._command()[0]} did not become ready; its log: {said[-LOG_TAIL_CHARACTERS:]}"
                )
        raise PortTakenError(f"port {port} is taken; choose another, or 0 for any free port")

    def _spawn(self, port: int, lock: TextIO) -> subprocess.Popen[bytes]:
        self.port = port
        parent, death_signal = str(os.getpid()), str(int(self.stop_signal))
        arguments = [tether.__file__, parent, death_signal, self.user, *self._command()]
        environment = os.environ | self._environment()
        spawned: Future[subprocess.Popen[bytes]] = Future()

        def tend() -> None:
            with self.log_file.open("ab") as log:
                process = subprocess.Popen(  # noqa: S603 - our own program, no shell
                    [sys.executable, "-I", "-S", *arguments],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[lock.fileno()],
                    # A Ctrl-C in the terminal is for us; we decide when the server ends.
                    start_new_session=True,
                )
            spawned.set_result(process)
            process.wait()

        # Linux ends the server when the *thread* that started it ends, so that thread stays as long as the server.
        threading.Thread(target=tend, name=f"oncelery-server-{port}", daemon=True).start()
        return spawned.result(PATIENCE_SECONDS)


def eventually(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether the condition came true within the time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)  # nothing tells of any condition by itself
    return True


def _try_lock(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def free_ports() -> Iterator[int]:
    """Give a few ports on which nobody listens now."""
    found = 0
    while found < PORT_TRIES:
        # A generator of its own: a test run that seeds `random` alike in many processes must not collide on ports.
        port = random.SystemRandom().choice(FREE_PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
        found += 1
        yield port
