"""API keys: kept as hashes, in a file or wherever a callable finds them, and read again when they change."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from os import PathLike
from pathlib import Path
from shutil import copymode
from tempfile import mkstemp
from time import monotonic

import msgspec

from oncelery.breaker import Breaker
from oncelery.errors import ConfigurationError
from oncelery.http.threads import looked

_logger = logging.getLogger("oncelery")

#: How every key begins, so that people and scanners know one that has leaked.
PREFIX = "once_"

#: How long keys are taken to be what they were, in seconds: that late a rotation is seen.
FRESH = 1.0

#: How long the source of keys may take to answer, in seconds; then those from before are good until it does.
PATIENCE = 5.0

_DIGEST = re.compile("[0-9a-f]{64}")


class Role(StrEnum):
    """What a caller may do."""

    #: Submit jobs.
    SUBMIT = "submit"
    #: Look at jobs, dead letters and duplicates.
    READ = "read"
    #: Cancel, revive and discard.
    OPERATE = "operate"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A key as it is kept: never the key itself, but its SHA-256.

    A plain hash is right here, and a slow one is not needed: a key is 256 random bits, which nobody finds by trying,
    while a password is what people think of. And it is looked up at every request.
    """

    name: str
    sha256: str
    #: The tenant that it is bound to; empty: all of them.
    scope: str = ""
    roles: frozenset[Role]

    def __post_init__(self) -> None:
        if not self.name or not _DIGEST.fullmatch(self.sha256):
            raise ConfigurationError(f"API key {self.name!r} needs a name, and its sha256 in 64 hex digits")


#: A file of keys (JSON: a list of name, sha256, scope, roles), the keys themselves, or what answers them.
KeySource = str | PathLike[str] | Collection[ApiKey] | Callable[[], Iterable[ApiKey]]


def new_key(name: str, *, scope: str = "", roles: Iterable[Role | str] = tuple(Role)) -> tuple[str, ApiKey]:
    """Make a key: the text for who is to use it, which is shown this once, and what to keep of it."""
    text = PREFIX + secrets.token_urlsafe(32)
    return text, ApiKey(name=name, sha256=digest_of(text), scope=scope, roles=frozenset(map(Role, roles)))


def add_to_file(path: Path, key: ApiKey) -> None:
    """Add a key to a file of keys, or make the file, for its owner alone.

    A process that reads it meanwhile has the old file or the new one, whole; two that add keys do so in turn.
    """
    try:
        with _locked(path.parent):
            known = _File(path)() if path.exists() else ()
            written = msgspec.json.format(msgspec.json.encode([*known, key], order="deterministic"))
            _replace(path, written + b"\n")
    except OSError as error:
        raise ConfigurationError(f"the file of API keys {str(path)!r} cannot be written: {error}") from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of the folder: the file itself is replaced, and its lock with it."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def _replace(path: Path, content: bytes) -> None:
    opened, name = mkstemp(dir=path.parent, prefix=f".{path.name}.")
    fresh = Path(name)
    try:
        with os.fdopen(opened, "wb") as file:
            file.write(content)
        if path.exists():
            copymode(path, fresh)
            about = path.stat()
            # Root may, and need not be who serves; others are the owner already, or may not.
            with suppress(PermissionError):
                os.chown(fresh, about.st_uid, about.st_gid)
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def digest_of(text: str) -> str:
    """Tell what is kept of a key."""
    return sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


class Keys:
    """The keys of a service, as they are now. What cannot be read leaves them as they were, and is logged."""

    def __init__(self, source: KeySource) -> None:
        self._read = _reader(source)
        self._known: Mapping[str, ApiKey] = _by_digest(self._read())
        self._read_at = monotonic()
        self._reading = Breaker(self._refresh, name="source of API keys", seconds=PATIENCE, every=FRESH)

    async def find(self, text: str) -> ApiKey | None:
        """Find the key that this is the text of."""
        if monotonic() - self._read_at > FRESH and not self._reading.is_late:
            # All wait for it: a key may have been taken away since.
            await looked(self._reading)
        # By its hash, so that how long it takes tells nothing of the keys that are there.
        return self._known.get(digest_of(text))

    def _refresh(self) -> None:
        try:
            self._known = _by_digest(self._read())
        except Exception:
            # Half a file must neither lock everybody out nor let anybody in.
            _logger.exception("the API keys could not be read again; those from before are still good")
        self._read_at = monotonic()


def _reader(source: KeySource) -> Callable[[], Iterable[ApiKey]]:
    if isinstance(source, str | PathLike):
        return _File(Path(source))
    if callable(source):
        return source
    keys = tuple(source)
    return lambda: keys


# A misspelt field must not be passed over: without its scope a key would be one for all tenants.
class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    """A key as a file has it."""

    name: str
    sha256: str
    roles: frozenset[Role]
    scope: str = ""


class _File:
    """A file that is read when it has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._keys: tuple[ApiKey, ...] = ()

    def __call__(self) -> tuple[ApiKey, ...]:
        try:
            about = self._path.stat()
            seen = (about.st_mtime_ns, about.st_size, about.st_ino)
            if seen != self._seen:
                entries = msgspec.json.decode(self._path.read_bytes(), type=tuple[_Entry, ...])
                self._keys = msgspec.convert(entries, tuple[ApiKey, ...], from_attributes=True)
                self._seen = seen
        except (OSError, msgspec.MsgspecError) as error:
            raise ConfigurationError(f"the file of API keys {str(self._path)!r} cannot be read: {error}") from error
        return self._keys


def _by_digest(keys: Iterable[ApiKey]) -> dict[str, ApiKey]:
    return {key.sha256: key for key in keys}
